"""What a user sees of forms and jobs over reloads, refusals and several pages, in a real browser."""

from collections.abc import Callable

from playwright import sync_api

from modules.services import Services
from tests.ui.browser import needs_browser, open_page, watched_page

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
STEPS = "#txt2img_steps input[type=number]"
IMAGE = "#txt2img_gallery .fw-image img"
NOTICE = "#txt2img_notice"
FORM = "featherweight.tab('txt2img').form"
UNKNOWN = (
    "a red circle <lora:nosuch:1>\nSteps: 2, Sampler: Res Multistep, Schedule type: Foo, CFG scale: 5.5, Seed: 1, "
    "Size: 4096x64, Denoising strength: 0.4, Hires upscale: 2, Hires upscaler: 4x-UltraSharp, VAE: gone.pt, "
    "Model: v1-5-pruned, Model hash: deadbeef00"
)


def until(page: sync_api.Page, happened: Callable[[], bool]) -> None:
    """Wait for something that the page does not show."""
    for _ in range(1200):
        if happened():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen within a minute")


def wait_form(page: sync_api.Page, condition: str) -> None:
    page.wait_for_function(f"(() => {{ const form = {FORM}; return {condition}; }})()")


def start_slow_job(page: sync_api.Page, prompt: str, steps: int = 150, batches: int = 1) -> str:
    page.fill(PROMPT, f"slow, {prompt}")
    page.fill(STEPS, str(steps))
    page.fill("#txt2img_batch_count input[type=number]", str(batches))
    page.click("#txt2img_generate")
    page.wait_for_function(f"document.title.includes(' of {steps * batches}')")
    return str(page.evaluate("featherweight.tab('txt2img').task()"))


def paste(page: sync_api.Page, text: str) -> None:
    page.fill(PROMPT, text)
    page.click("#paste")
    page.wait_for_selector(f"{NOTICE} .fw-note")


def test_pasted_names_that_are_not_here_are_left_out_and_named(page: sync_api.Page) -> None:
    paste(page, UNKNOWN)
    said = page.inner_text(NOTICE)
    for name in ("Res Multistep", "Foo", "4x-UltraSharp", "gone.pt", "v1-5-pruned", "nosuch"):
        assert f"'{name}' is not here" in said
    assert "DPM++ 2M is used" in said and "Width 4096 was left out" in said
    page.fill("#txt2img_width input[type=number]", "64")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('a red circle')")
    assert page.inner_text("#txt2img_infotext").startswith("a red circle <lora:nosuch:1>\n")
    page.wait_for_selector(IMAGE)


def test_hires_fix_that_is_pasted_shows_and_counts(page: sync_api.Page) -> None:
    assert not page.is_visible("#txt2img_hr_upscaler")
    paste(page, "a dog\nSteps: 3, Sampler: Euler, CFG scale: 5, Seed: 2, Size: 64x64, Hires upscale: 3")
    page.wait_for_selector("#txt2img_hr_upscaler", state="visible")
    assert page.is_checked("#txt2img_enable_hr input")
    page.wait_for_selector("#txt2img_hr .label-wrap [data-state='from 64x64 to 192x192']")
    wait_form(page, "form.hires_enabled === true && form.hires_scale === 3")
    page.click("#txt2img_enable_hr input")
    page.wait_for_selector("#txt2img_hr_upscaler", state="hidden")
    page.wait_for_selector("#txt2img_hr .label-wrap [data-state='']", state="attached")


def test_a_form_that_the_server_cannot_read_leaves_a_message(page: sync_api.Page) -> None:
    page.route("**/gradio_api/run/**", lambda route: route.fulfill(status=500, body="{}"))
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_messages .fw-error:has-text('was not started')")
    assert page.is_visible("#txt2img_generate")


def test_the_form_survives_a_reload_and_a_job_that_the_server_forgot_is_named(
    page: sync_api.Page, address: str, fakes: Services
) -> None:
    task = start_slow_job(page, "to be forgotten", 149)
    page.fill("#txt2img_seed input", "1234")
    page.click("#txt2img_enable_hr input")
    wait_form(page, "form.seed === '1234' && form.hires_enabled")
    fakes.queue.interrupt(task)
    assert fakes.queue.known.get(task).wait(120)
    page.wait_for_function("!featherweight.tab('txt2img').isRunning()")  # else its last question ends the job as well
    gone = {"active": False, "queued": False, "completed": False, "textinfo": "Waiting..."}
    page.route("**/internal/progress", lambda route: route.fulfill(json=gone))
    page.evaluate(f"sessionStorage.setItem('featherweight.task.txt2img', '{task}')")
    open_page(page, address)
    page.wait_for_selector("#txt2img_messages .fw-error:has-text('The server was restarted')")
    assert page.input_value(PROMPT) == "slow, to be forgotten"
    assert page.input_value(STEPS) == "149" and page.input_value("#txt2img_seed input") == "1234"
    assert page.is_checked("#txt2img_enable_hr input")


def test_pages_of_one_browser_watch_a_job_each(
    page: sync_api.Page, context: sync_api.BrowserContext, address: str, fakes: Services
) -> None:
    first = start_slow_job(page, "of the first page", steps=40, batches=100)
    with watched_page(context, address) as second:
        second.wait_for_timeout(600)
        assert second.is_visible("#txt2img_generate"), "the job of another page is not its own"
        second.fill(PROMPT, "of the second page")
        second.fill(STEPS, "2")
        second.fill("#txt2img_batch_count input[type=number]", "1")
        second.click("#txt2img_generate")
        second.wait_for_selector("#txt2img_progress :text('In line')")
        page.click("#txt2img_interrupt")
        page.wait_for_selector("#txt2img_messages :text('Interrupted at step')")
        second.wait_for_selector("#txt2img_infotext:has-text('of the second page')")
        open_page(page, address)
        page.wait_for_selector("#txt2img_messages :text('Interrupted at step')")
        assert fakes.queue.known.get(first).result().interrupted


def test_what_the_server_says_about_itself_is_shown(page: sync_api.Page, address: str) -> None:
    page.route("**/internal/notices", lambda route: route.fulfill(json=["styles.csv could not be read."]))
    open_page(page, address)
    page.wait_for_selector("#fw_notices :text('styles.csv could not be read.')")


def test_interrupting_is_confirmed_and_the_time_is_the_jobs(page: sync_api.Page) -> None:
    start_slow_job(page, "to be timed")
    page.wait_for_timeout(1000)
    seen = page.evaluate(
        """() => { document.querySelector('#txt2img_interrupt').click();
          return [document.querySelector('#txt2img_progress .fw-progress-text').textContent,
                  document.querySelector('#txt2img_interrupt').getAttribute('aria-busy')]; }"""
    )
    assert "interrupting" in seen[0] and seen[1] == "true"
    page.wait_for_selector("#txt2img_messages :text('Time taken')")
    took = float(page.inner_text("#txt2img_messages :text('Time taken')").split()[2])
    assert took >= 1.0
    assert "Interrupted at step" in page.inner_text("#txt2img_messages")


def test_escape_is_not_lost_while_the_form_is_on_its_way(page: sync_api.Page) -> None:
    forms: list[sync_api.Route] = []

    def keep_form(route: sync_api.Route) -> None:
        if "slow, regretted" in (route.request.post_data or ""):
            forms.append(route)
        else:
            route.continue_()

    page.route("**/run/predict", keep_form)
    page.fill(PROMPT, "slow, regretted")
    page.fill(STEPS, "150")
    with page.expect_request("**/run/predict"):
        page.press(PROMPT, "Control+Enter")
    page.keyboard.press("Escape")
    page.wait_for_selector("#txt2img_progress :text('interrupting')")
    with page.expect_response("**/internal/progress"):
        pass  # the server knows nothing of it
    forms[0].continue_()
    page.wait_for_selector("#txt2img_messages :text('Interrupted at step')")


def test_a_double_click_on_generate_makes_an_image(page: sync_api.Page, fakes: Services) -> None:
    page.fill(PROMPT, "clicked twice")
    page.fill(STEPS, "5")
    page.dblclick("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('clicked twice')")
    assert not fakes.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()")).result().interrupted


def test_a_click_on_interrupt_right_after_generate_interrupts(page: sync_api.Page) -> None:
    """Elsewhere on the button, so that it is no double click on Generate."""
    page.fill(PROMPT, "slow, regretted at once")
    page.fill(STEPS, "150")
    page.click("#txt2img_generate", position={"x": 40, "y": 20})
    page.click("#txt2img_interrupt", position={"x": 10, "y": 30})
    assert page.get_attribute("#txt2img_interrupt", "aria-busy") == "true"
    page.wait_for_selector("#txt2img_messages :text('Interrupted at step')")


def test_enter_that_is_held_down_on_generate_does_not_interrupt(page: sync_api.Page, fakes: Services) -> None:
    page.fill(PROMPT, "by a heavy hand")
    page.fill(STEPS, "5")
    page.focus("#txt2img_generate")
    page.keyboard.down("Enter")
    page.wait_for_function("document.activeElement.id === 'txt2img_interrupt'")
    page.keyboard.down("Enter")  # as a key repeats
    page.keyboard.up("Enter")
    page.wait_for_selector("#txt2img_infotext:has-text('by a heavy hand')")
    assert not fakes.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()")).result().interrupted


def test_generate_forever_shows_that_it_runs(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, for ever")
    page.fill(STEPS, "30")
    page.click("#txt2img_generate", button="right")
    page.wait_for_selector("#txt2img_progress :text('generating forever')")
    page.wait_for_selector("#txt2img_interrupt", state="visible")  # between two jobs it is away for an instant
    page.keyboard.press("Escape")
    page.wait_for_selector("#txt2img_generate", state="visible")


def test_a_change_of_weight_is_undone_in_one_step(page: sync_api.Page) -> None:
    page.fill(PROMPT, "")
    page.type(PROMPT, "a red circle")
    page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(4, 4)")
    page.press(PROMPT, "Control+ArrowUp")
    assert page.input_value(PROMPT) == "a (red:1.1) circle"
    page.press(PROMPT, "Control+z")
    assert page.input_value(PROMPT) == "a red circle"


def test_thumbnails_are_walked_through_by_keys_and_the_stage_is_never_empty(page: sync_api.Page) -> None:
    page.fill(PROMPT, "three images")
    page.fill(STEPS, "2")
    page.fill("#txt2img_batch_count input[type=number]", "3")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('three images')")
    page.wait_for_selector("#txt2img_gallery .fw-thumbs button >> nth=2")
    page.wait_for_selector(IMAGE)
    page.evaluate(
        """() => { window.blank = 0; const stage = document.querySelector('#txt2img_gallery .fw-stage');
          new MutationObserver(() => {
            const image = stage.querySelector('img');
            if (!image || !image.complete || !image.naturalWidth) window.blank += 1;
          }).observe(stage, { childList: true }); }"""
    )
    page.focus("#txt2img_gallery .fw-thumbs button >> nth=0")
    first = page.inner_text("#txt2img_infotext")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#txt2img_infotext") != first
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#txt2img_infotext") == first
    page.wait_for_timeout(500)
    assert page.evaluate("window.blank") == 0


def test_focus_is_not_lost_when_buttons_change_places(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, by keyboard")
    page.fill(STEPS, "150")
    page.focus("#txt2img_generate")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'txt2img_interrupt'")
    page.wait_for_function("document.title.includes(' of 150')")  # a key that is pressed twice does not interrupt
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'txt2img_generate'")
    page.wait_for_selector("#txt2img_messages :text('Interrupted at step')")


def test_nothing_is_cut_and_signs_have_names(page: sync_api.Page) -> None:
    for sign, name in (("⇅", "Swap width and height"), ("♻", "Use the seed of the selected image")):
        page.wait_for_selector(f"button[title='{name}'][aria-label='{name}']:has-text('{sign}')")
    field = page.locator("#setting_sd_model_checkpoint input[role=combobox]")
    field.hover()
    assert field.get_attribute("title") == field.input_value() != ""  # also where it is too long for its field
    caret = page.locator("#setting_sd_model_checkpoint .icon-wrap").bounding_box()
    padding = field.evaluate("field => parseFloat(getComputedStyle(field).paddingRight)")
    box = field.bounding_box()
    assert caret and box and box["x"] + box["width"] - padding <= caret["x"] + 1
    page.click("button[role=tab]:has-text('Settings')")
    button = page.locator("#settings_submit")
    button.wait_for(state="visible")
    assert button.evaluate("button => button.scrollHeight <= button.clientHeight + 1")


def test_primary_buttons_can_be_read_in_both_themes(page: sync_api.Page) -> None:
    page.emulate_media(reduced_motion="reduce")  # no colors halfway between two themes
    for _ in range(2):
        page.click("#fw_theme")
        colors = page.eval_on_selector(
            "#txt2img_generate",
            "button => [getComputedStyle(button).color, getComputedStyle(button).backgroundColor]",
        )
        light, dark = sorted((_luminance(color) for color in colors), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    page.emulate_media(reduced_motion="no-preference")


def _luminance(color: str) -> float:
    """WCAG 2.2, relative luminance of "rgb(r, g, b)"."""
    parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
