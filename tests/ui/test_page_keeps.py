"""What a user sees of forms and jobs over reloads, refusals and several pages, in a real browser."""

from playwright import sync_api

from modules.services import Services
from tests.ui.browser import needs_browser, open_page

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
    page.evaluate("selector => document.querySelector(selector)?.classList.add('earlier')", f"{NOTICE} .fw-note")
    page.click("#paste")
    page.wait_for_selector(f"{NOTICE} .fw-note:not(.earlier)")


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


def test_the_tab_and_the_sub_tab_that_were_shown_come_back(page: sync_api.Page) -> None:
    page.click("#tab_img2img-button")
    page.click("#img2img_img2img_sketch_tab-button")
    page.wait_for_selector("#img2img_img2img_sketch_tab")
    page.reload()
    page.wait_for_selector("#img2img_img2img_sketch_tab")
    page.wait_for_function(f"{FORM.replace('txt2img', 'img2img')}.mode === 'sketch'")


SHIFTED = """() => new Promise((done) => {
  let sum = 0;
  const add = (list) => { for (const one of list.getEntries()) if (!one.hadRecentInput) sum += one.value; };
  const observer = new PerformanceObserver(add);
  observer.observe({ type: "layout-shift" });
  window.shifted = () => { add({ getEntries: () => observer.takeRecords() }); observer.disconnect(); return sum; };
  done();
})"""


def test_nothing_jumps_while_a_job_runs_and_its_image_comes(page: sync_api.Page) -> None:
    page.evaluate(SHIFTED)
    start_slow_job(page, "nothing jumps", 40)
    page.wait_for_selector("#txt2img_infotext:has-text('nothing jumps')")
    page.wait_for_function("!featherweight.tab('txt2img').isRunning()")
    assert page.evaluate("shifted()") < 0.05


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
