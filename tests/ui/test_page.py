"""The real page in a real browser, against a server with a model that computes nothing."""

import base64

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.services import Services
from tests.thorough import thoroughly
from tests.ui.browser import needs_browser, open_page

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
IMAGE = "#txt2img_gallery .fw-image img"
NOTE_POSTS = """() => {
  const post = featherweight.post;
  window.sent = {};
  featherweight.post = (path, body) => {
    const answer = post(path, body);
    window.sent[body.text] = answer.catch(() => null);
    return answer;
  };
}"""
"""What is sent with a text, as promises by these texts that keep until the answers have come."""


@pytest.fixture
def services(fakes: Services) -> Services:
    return fakes


def test_a_typed_prompt_becomes_an_image_with_its_infotext(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, a red circle on a blue background")
    page.fill("#txt2img_seed input", "77")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_progress:not([hidden])")
    page.wait_for_selector("#txt2img_infotext:has-text('slow, a red circle on a blue background')")
    assert "Seed: 77" in page.inner_text("#txt2img_infotext")
    page.wait_for_selector(IMAGE)
    assert page.evaluate(f"document.querySelector('{IMAGE}').naturalWidth") > 0
    assert page.title() == "Featherweight"


def test_a_reload_during_a_job_finds_the_job_again(page: sync_api.Page, address: str) -> None:
    page.fill(PROMPT, "slow, to be reloaded")
    page.fill("#txt2img_steps input[type=number]", "60")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_progress:not([hidden])")
    page.wait_for_timeout(700)
    open_page(page, address)
    page.wait_for_selector("#txt2img_infotext:has-text('slow, to be reloaded')")
    page.wait_for_selector(IMAGE)


def test_an_error_is_shown_beside_the_button(page: sync_api.Page) -> None:
    page.fill("#txt2img_cfg_scale input[type=number]", "7")
    page.fill("#txt2img_seed input", "-5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_notice .fw-error:has-text('seed is -5')")
    assert page.is_visible("#txt2img_generate")


def test_escape_interrupts_and_control_enter_generates(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, to be stopped")
    page.fill("#txt2img_steps input[type=number]", "150")
    page.press(PROMPT, "Control+Enter")
    page.wait_for_selector("#txt2img_interrupt", state="visible")
    page.wait_for_timeout(600)
    page.keyboard.press("Escape")
    page.wait_for_selector("#txt2img_generate", state="visible")


def test_a_setting_is_kept_over_a_reload(page: sync_api.Page, address: str, services: Services) -> None:
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    box = page.locator("#setting_samples_save input[type=checkbox]")
    before = box.is_checked()
    box.click()
    page.click("#settings_submit")
    page.wait_for_selector("#settings_result .fw-note")
    assert services.settings.current.saving.samples_save is not before
    open_page(page, address)
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    sync_api.expect(page.locator("#setting_samples_save input[type=checkbox]")).to_be_checked(checked=not before)


def test_settings_can_be_searched(page: sync_api.Page) -> None:
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    page.fill("#settings_search", "clip skip")
    assert page.is_visible("#setting_CLIP_stop_at_last_layers")
    assert not page.is_visible("#setting_samples_save")
    page.fill("#settings_search", "")


def test_control_up_weighs_the_word_and_brackets_are_checked(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a red circle")
    page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(4, 4)")
    page.press(PROMPT, "Control+ArrowUp")
    assert page.input_value(PROMPT) == "a (red:1.1) circle"
    page.press(PROMPT, "Control+ArrowUp")
    assert page.input_value(PROMPT) == "a (red:1.2) circle"
    page.press(PROMPT, "Control+ArrowDown")
    page.press(PROMPT, "Control+ArrowDown")
    assert page.input_value(PROMPT) == "a red circle"
    page.fill(PROMPT, "a (red circle")
    page.wait_for_selector("#txt2img_prompt .fw-counter.fw-bad")


def test_alt_arrows_move_an_element(page: sync_api.Page) -> None:
    page.fill(PROMPT, "one, two, three")
    page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(6, 6)")
    page.press(PROMPT, "Alt+ArrowLeft")
    assert page.input_value(PROMPT) == "two, one, three"


def test_tokens_are_counted_while_typing(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a cat")
    page.wait_for_function("document.querySelector('#txt2img_prompt .fw-counter')?.textContent === '2/75'")


@pytest.mark.parametrize("is_refused", [False, True], ids=["counted", "refused"])
def test_a_late_count_of_an_older_prompt_is_not_shown(page: sync_api.Page, is_refused: bool) -> None:
    older = "an older prompt of seven whole words"
    late: list[sync_api.Route] = []

    def keep_older(route: sync_api.Route) -> None:
        if "older" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    page.evaluate(NOTE_POSTS)
    counter = page.locator("#txt2img_prompt .fw-counter")
    page.route("**/internal/token-count", keep_older)
    with page.expect_request(lambda request: "older" in (request.post_data or "")):
        page.fill(PROMPT, older)
    page.fill(PROMPT, "a cat")
    sync_api.expect(counter).to_have_text("2/75")
    late[0].fulfill(status=500) if is_refused else late[0].continue_()
    page.evaluate("older => window.sent[older].then(() => new Promise((done) => setTimeout(done)))", older)
    assert counter.text_content() == "2/75"


def test_pasted_parameters_fill_the_form(page: sync_api.Page) -> None:
    text = "a dog\nNegative prompt: ugly\nSteps: 7, Sampler: Euler a, Schedule type: Karras, CFG scale: 5, Seed: 42, "
    page.fill(PROMPT, text + "Size: 192x256, Clip skip: 2, Version: v1.10.1")
    page.click("#paste")
    page.wait_for_function(f"document.querySelector('{PROMPT}').value === 'a dog'")
    assert page.input_value("#txt2img_neg_prompt textarea") == "ugly"
    assert page.input_value("#txt2img_steps input[type=number]") == "7"
    assert page.input_value("#txt2img_seed input") == "42"
    assert page.input_value("#txt2img_width input[type=number]") == "192"
    page.wait_for_selector("#txt2img_override_settings")
    assert "Clip skip: 2" in page.inner_text("#txt2img_override_settings")


def test_the_whole_image_is_shown_and_walked_through_by_keys(page: sync_api.Page) -> None:
    page.fill(PROMPT, "two images")
    page.fill("#txt2img_batch_size input[type=number]", "2")
    page.fill("#txt2img_seed input", "5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('two images')")
    page.wait_for_selector("#txt2img_gallery .fw-thumbs button >> nth=1")
    page.click("#txt2img_gallery .fw-image")
    page.wait_for_selector("#lightboxModal[open]")
    first = page.inner_text("#txt2img_infotext")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#txt2img_infotext") != first
    page.keyboard.press("Escape")
    page.wait_for_selector("#lightboxModal", state="hidden")
    page.click("#txt2img_reuse_seed")
    assert page.input_value("#txt2img_seed input") in ("5", "6")


def test_a_seed_above_what_a_browser_counts_to_stays_exact(page: sync_api.Page) -> None:
    """Pasted, sent, shown and reused."""
    seed = "18446744073709551615"
    page.fill(PROMPT, f"the largest seed\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: {seed}, Size: 64x64")
    page.click("#paste")
    page.wait_for_function(f"document.querySelector('#txt2img_seed input').value === '{seed}'")
    page.click("#txt2img_generate")
    page.wait_for_selector(f"#txt2img_infotext:has-text('Seed: {seed},')")
    page.click("#txt2img_random_seed")
    page.wait_for_function("document.querySelector('#txt2img_seed input').value === '-1'")
    page.click("#txt2img_reuse_seed")
    assert page.input_value("#txt2img_seed input") == seed
    page.fill("#txt2img_seed input", "a seed")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_notice .fw-error:has-text('is no whole number')")


def test_a_narrow_page_has_one_column_and_generate_in_reach(page: sync_api.Page) -> None:
    wide = page.viewport_size
    assert wide is not None
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.wait_for_function(
        """() => {
          const { bottom, width } = document.querySelector("#txt2img_generate").getBoundingClientRect();
          return bottom <= 844 && width > 300;
        }"""
    )
    page.set_viewport_size(wide)


def test_weights_of_selections_adapters_and_old_brackets_change(page: sync_api.Page) -> None:
    for before, start, end, key, after in (
        ("a red big cat", 2, 9, "ArrowUp", "a (red big:1.1) cat"),
        ("a <lora:x:1> cat", 5, 5, "ArrowUp", "a <lora:x:1.05> cat"),
        ("a <lora:x:1> cat", 5, 5, "ArrowDown", "a <lora:x:0.95> cat"),
        ("a ((red)) cat", 5, 5, "ArrowUp", "a (red:1.3) cat"),
        ("a [red] cat", 4, 4, "ArrowUp", "a red cat"),
        ("a [red:blue:3] cat", 4, 4, "ArrowUp", "a [(red:1.1):blue:3] cat"),
        ("a (red:0.9) cat", 4, 4, "ArrowUp", "a red cat"),
        ("(a:1.2) cat", 9, 9, "ArrowDown", "(a:1.2) (cat:0.9)"),
    ):
        page.fill(PROMPT, before)
        page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange({start}, {end})")
        page.press(PROMPT, f"Control+{key}")
        assert page.input_value(PROMPT) == after


def test_a_selection_made_right_after_a_change_of_weight_stays(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a red cat")
    selection = page.evaluate(
        f"""async () => {{
            const area = document.querySelector('{PROMPT}');
            area.setSelectionRange(3, 3);
            area.dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowUp", ctrlKey: true, bubbles: true }}));
            area.select();
            await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
            return [area.value, area.selectionStart, area.selectionEnd];
        }}"""
    )
    assert selection == ["a (red:1.1) cat", 0, len("a (red:1.1) cat")]


def test_brackets_are_checked_with_escapes_and_without_angles(page: sync_api.Page) -> None:
    for text, is_wrong in (
        ("a > b <3", False),
        (r"a \(cat", False),
        (r"a \\(cat", True),
        ("a {cat", True),
        ("a cat]", True),
        ("(a [b])", False),
    ):
        page.fill(PROMPT, text)
        sign = "" if is_wrong else "!"
        page.wait_for_function(
            f"{sign}document.querySelector('#txt2img_prompt .fw-counter').classList.contains('fw-bad')"
        )


DROP = """([data, type]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "image", { type }));
  document.querySelector("#txt2img_prompt textarea").dispatchEvent(
    new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer }));
}"""


# What is read of the other formats is said by `tests/images/test_metadata.py`.
@pytest.mark.parametrize("extension", ["png", *map(thoroughly, ("jpg", "webp", "avif"))])
def test_a_dropped_image_fills_the_form(page: sync_api.Page, extension: str) -> None:
    text = "a dog\nNegative prompt: ugly, été\nSteps: 7, Sampler: Euler a, CFG scale: 5, Seed: 42, Size: 192x256"
    data = base64.b64encode(encode_image(Image.new("RGB", (192, 256), "red"), extension, text)).decode()
    page.evaluate(DROP, [data, f"image/{extension}"])
    page.wait_for_function("document.querySelector('#txt2img_steps input[type=number]').value === '7'")
    assert page.input_value(PROMPT) == "a dog"
    assert page.input_value("#txt2img_neg_prompt textarea") == "ugly, été"
    page.wait_for_function("document.querySelector('#txt2img_neg_prompt .fw-counter').textContent !== '0/75'")


def test_a_dropped_image_without_parameters_says_so(page: sync_api.Page) -> None:
    data = base64.b64encode(encode_image(Image.new("RGB", (8, 8)), "png", "")).decode()
    page.evaluate(DROP, [data, "image/png"])
    page.wait_for_selector("#txt2img_messages .fw-error:has-text('holds no parameters')")


def test_an_override_that_is_removed_leaves_no_empty_field(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a dog\nSteps: 7, Sampler: Euler a, CFG scale: 5, Seed: 42, Clip skip: 2")
    page.click("#paste")
    page.wait_for_selector("#txt2img_override_settings")
    page.click("#txt2img_override_settings .token-remove >> nth=0")
    page.wait_for_selector("#txt2img_override_settings", state="hidden")


def finished_jobs(services: Services) -> int:
    return len(services.queue.store.recent(1000))


def test_generating_forever_goes_on_until_it_is_ended(page: sync_api.Page, services: Services) -> None:
    before = finished_jobs(services)
    page.fill(PROMPT, "again and again")
    page.fill("#txt2img_steps input[type=number]", "2")
    page.click("#txt2img_generate", button="right")
    for _ in range(1200):
        if finished_jobs(services) >= before + 2:
            break
        page.wait_for_timeout(100)
    assert finished_jobs(services) >= before + 2
    page.click("#txt2img_generate_box", button="right")
    page.wait_for_selector("#txt2img_messages :text('has ended')")
    page.wait_for_selector("#txt2img_generate", state="visible")
    page.wait_for_timeout(500)
    assert page.is_visible("#txt2img_generate")


def test_generating_forever_ends_with_an_error(page: sync_api.Page) -> None:
    page.fill("#txt2img_seed input", "-6")
    page.click("#txt2img_generate", button="right")
    page.wait_for_selector("#txt2img_notice .fw-error:has-text('seed is -6')")
    page.wait_for_timeout(1500)
    assert page.is_visible("#txt2img_generate")


def test_control_enter_while_a_job_runs_begins_anew(page: sync_api.Page, services: Services) -> None:
    page.fill(PROMPT, "slow, first try")
    page.fill("#txt2img_steps input[type=number]", "150")
    page.click("#txt2img_generate")
    page.wait_for_function("document.title.includes(' of 150')")
    first = page.evaluate("featherweight.tab('txt2img').task()")
    page.fill(PROMPT, "second try")
    page.fill("#txt2img_steps input[type=number]", "3")
    page.press(PROMPT, "Control+Enter")
    page.wait_for_selector("#txt2img_infotext:has-text('second try')")
    assert services.queue.known.get(first).result().interrupted


def test_the_screen_stays_awake_during_a_job_and_a_sound_ends_it(page: sync_api.Page) -> None:
    page.evaluate(
        """() => {
          window.heard = [];
          const lock = { release: () => window.heard.push("asleep") };
          navigator.wakeLock.request = async () => { window.heard.push("awake"); return lock; };
          const chime = featherweight.chime;
          featherweight.chime = () => { window.heard.push("sound"); chime(); };
        }"""
    )
    page.fill(PROMPT, "a sound")
    page.fill("#txt2img_steps input[type=number]", "5")
    page.click("#txt2img_generate")
    page.wait_for_function("window.heard.includes('sound')")
    assert page.evaluate("window.heard") == ["awake", "asleep", "sound"]


def test_tokens_of_chosen_styles_are_counted(page: sync_api.Page, address: str, services: Services) -> None:
    services.paths.styles_files[0].write_text("name,prompt,negative_prompt\noil,oil painting,\n")
    open_page(page, address)
    page.fill(PROMPT, "a cat")
    page.click("#txt2img_styles input")
    page.click("#txt2img_styles li:has-text('oil')")
    page.wait_for_function("document.querySelector('#txt2img_prompt .fw-counter').textContent === '5/75'")
    page.click("#txt2img_styles .token-remove >> nth=0")


def test_listed_settings_stand_at_the_top_and_are_stored(page: sync_api.Page, address: str, services: Services) -> None:
    services.settings.update(
        {"quicksettings_list": ["CLIP_stop_at_last_layers", "tiling"], "hide_samplers": ["DPM fast"]}
    )
    open_page(page, address)
    page.click("#quicksettings_more #setting_tiling input")
    page.fill("#quicksettings_more #setting_CLIP_stop_at_last_layers input[type=number]", "3")
    page.keyboard.press("Tab")
    for _ in range(1200):
        if services.settings.current["CLIP_stop_at_last_layers"] == 3 and services.settings.current["tiling"]:
            break
        page.wait_for_timeout(100)
    assert services.settings.current["CLIP_stop_at_last_layers"] == 3
    assert services.settings.current["tiling"] is True
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id).filter(Boolean)")
    assert sorted(ids) == sorted(set(ids))
    page.click("#txt2img_sampling input")
    page.wait_for_selector("#txt2img_sampling li:has-text('Euler a')")
    page.wait_for_selector("#txt2img_sampling li:has-text('DPM fast')", state="detached")
    services.settings.update({"quicksettings_list": ["sd_model_checkpoint"], "hide_samplers": [], "tiling": False})
    services.settings.update({"CLIP_stop_at_last_layers": 1})


def test_interrupt_finishes_the_present_image_where_more_are_to_come(page: sync_api.Page, services: Services) -> None:
    page.fill(PROMPT, "slow, one of many")
    page.fill("#txt2img_steps input[type=number]", "120")
    page.fill("#txt2img_batch_count input[type=number]", "20")
    page.click("#txt2img_generate")
    page.wait_for_function("document.title.includes(' of 2400')")
    page.click("#txt2img_interrupt")
    page.wait_for_selector("#txt2img_progress :text('stops after this image')")
    page.wait_for_selector("#txt2img_infotext:has-text('one of many')")
    result = services.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()")).result()
    assert result.interrupted and 1 <= len(result.samples) < 20
