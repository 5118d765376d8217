"""Scripts of extensions in the real page: loaded by address once it can be used, over the names that they know."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright import sync_api

from modules.services import Services
from tests.compat.conftest import registries_kept, write
from tests.compat.test_known_extensions import ROWS
from tests.fakes import fake_services
from tests.ui.browser import needs_browser, served

pytestmark = needs_browser

TAB = """
import gradio as gr
from modules import script_callbacks
from modules.ui_components import ToolButton, FormRow, InputAccordion

def tab():
    with gr.Blocks(analytics_enabled=False) as mine:
        with gr.Box():
            text = gr.Textbox(label="Mine", elem_id="mine_text").style(show_copy_button=True)
            names = gr.Dropdown(["a"], value="a", label="Names", elem_id="mine_names")
            button = gr.Button("Press", elem_id="mine_button", variant="tool")
        with InputAccordion(False, label="Fold", elem_id="mine_fold") as enabled:
            ToolButton("x", elem_id="mine_tool")
        def press(word):
            return word + "!", gr.Dropdown.update(choices=["a", "b"], value="b")
        button.click(fn=press, _js="mine_words", inputs=[text], outputs=[text, names])
    return [(mine, "Mine", "mine")]

script_callbacks.on_ui_tabs(tab)
"""
WIDE = """
import gradio as gr
import modules.scripts as scripts

class Wide(scripts.Script):
    def title(self):
        return "Wide"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def after_component(self, component, **kwargs):
        if kwargs.get("elem_id") == "txt2img_generate":
            with gr.Row():
                with gr.Column(scale=8, min_width=600):
                    gr.Dropdown(["Default"], value="Default", label="Presets", elem_id="wide_presets")
                with gr.Column(scale=2, min_width=400), gr.Row():
                    for number in range(6):
                        gr.Button(f"Button {number}", min_width=120)
"""
EARLY = """
import gradio as gr
import modules.scripts as scripts
from PIL import Image
from modules import script_callbacks, shared, ui
from modules.generation_parameters_copypaste import image_from_url_text
from modules.ui_components import ToolButton

found = {}

class Early(scripts.Script):
    def title(self):
        return "Early"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def ui(self, is_img2img):
        class Named(ToolButton):
            def __init__(self, number, **kwargs):
                super().__init__(**kwargs)
                self.number = number
        with gr.Group(), gr.Accordion("Early fold", open=False, elem_id=self.elem_id("fold")):
            Named(number=3, value="three", elem_id=self.elem_id("three"))
            gr.Textbox(visible=False, elem_id=self.elem_id("unseen"))
        return []
    def after_component(self, component, **kwargs):
        if kwargs.get("elem_id") == "txt2img_generation_info_button":
            gr.Markdown("behind the images", elem_id="early_behind")
        if isinstance(component, gr.Gallery) and component.elem_id == "txt2img_gallery":
            found["gallery"] = component
        if kwargs.get("elem_id") == "txt2img_send_to_extras":
            found["take"] = gr.Button("Take the shown one", elem_id="early_take")
        if kwargs.get("elem_id") == "img_inpaint_base":
            found["base"] = component

def tab():
    with gr.Blocks(analytics_enabled=False) as mine:
        text = gr.Textbox(elem_id="early_text", visible=False)
        with gr.Row(visible=False):
            gr.Button("Inside", elem_id="early_inside")
        gr.HTML("<iframe srcdoc='<p>frame</p>' onload='earlyFrame(this)'></iframe>")
        button = gr.Button("Send", elem_id="early_send", visible=False)
        prompt, negative = ui.txt2img_paste_fields[0][0], ui.txt2img_paste_fields[1][0]
        sampler = next(one for one, name in ui.txt2img_paste_fields if name == "Sampler")
        send = lambda words: (words, "not " + words, "DPM++ 2M Karras")
        button.click(send, inputs=[text], outputs=[prompt, negative, sampler])
        image = gr.Image(type="pil", elem_id="early_image")
        put = gr.Button("Put", elem_id="early_put")
        put.click(lambda: [Image.new("RGB", (64, 32), color) for color in ("red", "blue")], outputs=[found["gallery"]])
        found["take"].click(image_from_url_text, found["gallery"], image, _js="extract_image_from_gallery")
        found["take"].click(None, image, None, _js="early_show")
        base = gr.Button("Base", elem_id="early_base")
        base.click(lambda image: image.resize((48, 40)), image, found["base"])
    return [(mine, "Early", "early")]

script_callbacks.on_ui_tabs(tab)

files = ["a.csv"]
def look():
    files.append("b.csv")
more = shared.OptionInfo("a.csv", "Early file", gr.Dropdown, lambda: {"choices": files}, refresh=look)
script_callbacks.on_ui_settings(lambda: shared.opts.add_option("early_file", more))
"""
EARLY_SCRIPT = """
// The tab is the one whose number its part of #tabs has, as scripts for the reference UI count.
function early_show() {
    const parts = [...gradioApp().querySelector("#tabs").childNodes].filter((one) => one.nodeName === "DIV");
    const place = parts.findIndex((one) => one.id === "tab_early") - 1;
    gradioApp().querySelector("#tabs").querySelectorAll("button")[place].click();
}
document.addEventListener("DOMContentLoaded", () => { window.early = [document.readyState]; });
window.earlyFrames = [];
function earlyFrame(frame) { earlyFrames.push(frame.tagName); }
const earlyFields = ["#image_buttons_extras button", "#txt2img_script_container #controlnet input[type=file]"];
earlyFields.push("#tab_extras button#extras_tab", "#tab_pnginfo button#extras_tab", "#sd_checkpoint_hash[title]");
onOptionsChanged(() => { window.earlyOptions = opts.grid_format; });
// A list below the text of a field, as completions of tags are shown.
function earlyList() {
    const field = gradioApp().querySelector("#txt2img_prompt > label > textarea");
    const list = Object.assign(document.createElement("div"), { id: "early_list", textContent: "completions" });
    Object.assign(list.style, { position: "absolute", zIndex: 999, height: "200px", width: "100px" });
    field.parentNode.insertBefore(list, field.nextSibling);
    const isBelow = list.getBoundingClientRect().top >= field.getBoundingClientRect().bottom - 1;
    const around = [field.parentNode, field.closest("#txt2img_prompt"), field.closest(".form")];
    list.remove();
    return [isBelow, ...around.map((one) => getComputedStyle(one).overflow)];
}
onUiLoaded(() => {
    const ids = ["img2maskimg", "early_send", "early_inside", "script_txt2img_early_three", "setting_samples_format"];
    ids.push("txt2img_extra_refresh");
    window.early.push(ids.filter((id) => !gradioApp().getElementById(id)));
    const titles = [...document.getElementById("tabs").querySelectorAll("div.tab-nav > button")];
    window.early.push(titles.filter((one) => one.textContent === "Early ").length);
    const area = gradioApp().querySelector("#early_text textarea, #early_text input");
    area.value = "a fox";
    area.dispatchEvent(new Event("input"));
    setTimeout(() => gradioApp().getElementById("early_send").click(), 500);
});
"""
SCRIPT = """
window.mine = [];
const hasPrompt = () => Boolean(gradioApp().querySelector("#txt2img_prompt textarea"));
onUiLoaded(() => mine.push("loaded", hasPrompt(), typeof opts.samples_format));
document.addEventListener("DOMContentLoaded", () => { mine.ready = Boolean(document.querySelector("#mine_text")); });
onUiUpdate(() => { mine.updates = (mine.updates || 0) + 1; });
onUiTabChange(() => mine.push(get_uiCurrentTabContent()?.id));
function mine_words(text) { return [text + "?"]; }
fetch("file=extensions/mine/words.txt").then((reply) => reply.text()).then((text) => { mine.text = text; });
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Services]]:
    folder = tmp_path_factory.mktemp("data")
    files = {
        "mine/scripts/mine.py": TAB,
        "mine/javascript/mine.js": SCRIPT,
        "wide/scripts/wide.py": WIDE,
        "early/scripts/early.py": EARLY,
        "early/javascript/early.js": EARLY_SCRIPT,
        "mine/words.txt": "some words",
        "mine/secret.env": "key",
        "mine/scripts/frame.py": "SITE = '<iframe src=https://www.example.org/app?x=1>'\n",
        "mine/scripts/link.py": "LINK = 'https://elsewhere.example.org'\n",
        "broken/javascript/broken.js": "nothing_of_this_name();",
        "failed/scripts/failed.py": "raise RuntimeError('no')",
        "failed/javascript/failed.js": "window.failedRan = true;",
    }
    write(folder / "extensions", files)
    with registries_kept():
        services = fake_services(folder)
        with served(services) as address:
            yield address, services
        services.dispatcher.close()


@pytest.fixture(scope="module")
def opened(browser: sync_api.Browser, program: tuple[str, Services]) -> Iterator[sync_api.Page]:
    """One page for the whole file, with the scripts of its extensions loaded."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(program[0])
    page.wait_for_selector("body[data-extensions=loaded]", state="attached")
    yield page
    page.close()


def test_page_functions_tabs_and_faults(opened: sync_api.Page, program: tuple[str, Services]) -> None:
    page, (address, services) = opened, program
    assert [one for one in services.scripts.faults if not one.startswith("failed")] == []
    assert page.evaluate("mine.slice(0, 3)") == ["loaded", True, "string"]
    assert page.evaluate("mine.ready")  # its tab was opened once, and the event that is over was answered
    assert page.get_attribute("#tab_txt2img-button", "aria-selected") == "true"
    page.wait_for_function("mine.text === 'some words' && mine.updates > 0")
    assert page.evaluate("window.failedRan") is None
    policy = page.request.get(address).headers["content-security-policy"]
    assert "frame-src 'self' https://www.example.org blob:" in policy and "elsewhere" not in policy
    assert page.evaluate("!!gradioApp().querySelector('#txt2img_prompt > label > textarea')")
    assert page.evaluate("!!document.querySelector('#img2img_prompt > label > textarea')")
    assert page.evaluate("document.querySelectorAll('#tabs > .tab-nav > button').length") > 8
    wanted = sorted({name for row in ROWS.values() for name in row.get("page", ())})
    there = """name => name.startsWith("#") ? Boolean(gradioApp().querySelector(name))
        : typeof window[name] === (name === "opts" ? "object" : "function")"""
    page.wait_for_selector("#txt2img_token_counter", state="attached")
    assert [name for name in wanted if not page.evaluate(there, name)] == []
    size = page.evaluate(
        """() => { const box = document.querySelector("#txt2img_generate_box");
        const wide = document.documentElement.scrollWidth - innerWidth;
        return [box.scrollWidth - box.clientWidth, box.offsetHeight, wide]; }"""
    )
    assert size[0] <= 1 and size[1] < 300 and size[2] <= 0
    page.click("#tab_mine-button")
    page.fill("#mine_text textarea", "cat")
    page.click("#mine_button")
    page.wait_for_function("document.querySelector('#mine_text textarea').value === 'cat?!'")
    page.wait_for_function("document.querySelector('#mine_names input').value === 'b'")
    page.wait_for_function("mine.includes('tab_mine')")
    for path in ("extensions/mine/secret.env", "extensions/mine/../../config.json", "extensions/none/a.js"):
        assert page.request.get(f"{address}/file={path}").status == 404
    listed = {
        one["name"]: one for one in page.request.get(f"{address}/featherweight/v1/extensions").json()["extensions"]
    }
    assert listed["early"]["faults"] == []
    assert listed["failed"]["faults"][0]["reason"] == "RuntimeError: no."
    assert "nothing_of_this_name" in listed["broken"]["faults"][0]["reason"]
    assert "on_ui_tabs" in listed["mine"]["hooks"] and listed["mine"]["faults"] == []
    assert Path(listed["mine"]["folder"]).name == "mine"


def test_scripts_find_what_older_pages_had_from_the_start(opened: sync_api.Page) -> None:
    page = opened
    page.evaluate("featherweight.showTab('txt2img')")
    assert page.evaluate("early.slice(1, 3)") == [[], 1]
    assert page.evaluate("get_uiCurrentTabContent().id") == "tab_txt2img"
    page.wait_for_function("document.querySelector('#txt2img_neg_prompt textarea').value === 'not a fox'")
    assert page.input_value("#txt2img_prompt textarea") == "a fox"
    sync_api.expect(page.locator("#txt2img_sampling input")).to_have_value("DPM++ 2M")
    titles = page.locator("#txt2img_script_container button.label-wrap")
    sync_api.expect(titles.filter(has_text="Early")).to_have_count(1)
    assert page.evaluate("earlyFields.filter((one) => !gradioApp().querySelector(one))") == []
    assert page.evaluate("gradioApp().querySelector('#mode_img2img').querySelector('button').role") == "tab"
    page.wait_for_function("earlyFrames.length === 1")
    assert page.evaluate("earlyList()") == [True, "visible", "visible", "visible"]
    titles.filter(has_text="Early fold").click()
    sync_api.expect(page.locator("#script_txt2img_early_three")).to_have_text("three")
    sync_api.expect(page.locator("#early_behind")).to_be_visible()


def test_settings_that_are_saved_reach_scripts(opened: sync_api.Page, program: tuple[str, Services]) -> None:
    page, services = opened, program[1]
    shown = page.evaluate("earlyOptions")
    assert shown == services.settings.current["grid_format"]
    wanted = "webp" if shown != "webp" else "jpg"
    page.evaluate("featherweight.showTab('settings')")
    page.wait_for_selector("#setting_grid_format", state="attached")
    services.settings.update({"grid_format": wanted})
    page.evaluate("document.dispatchEvent(new CustomEvent('fw:settings'))")
    page.wait_for_function(f"earlyOptions === '{wanted}' && opts.grid_format === '{wanted}'")


def test_the_choices_of_a_setting_are_refreshed(opened: sync_api.Page, program: tuple[str, Services]) -> None:
    page = opened
    page.evaluate("featherweight.showTab('settings')")
    page.fill("#settings_search", "Early file")
    field = page.locator("#setting_early_file")
    choices = field.locator("option")
    sync_api.expect(choices).to_have_text(["a.csv"])
    field.get_by_role("button", name="Refresh").click()
    sync_api.expect(choices).to_have_text(["a.csv", "b.csv"])
    field.locator("select").select_option("b.csv")
    page.click("#settings_submit")
    page.wait_for_selector("#settings_result:has-text('Saved: Early file.')")
    assert program[1].settings.current["early_file"] == "b.csv"


def test_functions_take_and_give_what_the_page_draws_by_itself(opened: sync_api.Page) -> None:
    page = opened
    page.evaluate("featherweight.showTab('txt2img')")
    page.evaluate("document.querySelector('#early_put').click()")
    thumbs = page.locator("#txt2img_gallery .fw-thumbs button")
    sync_api.expect(thumbs).to_have_count(2)
    thumbs.nth(1).click()
    page.wait_for_function("selected_gallery_index() === 1 && all_gallery_buttons().length === 2")
    page.click("#early_take")
    sync_api.expect(page.locator("#early_image img")).to_be_visible()
    assert page.evaluate("get_uiCurrentTabContent().id") == "tab_early"
    page.click("#early_base")
    page.wait_for_function("featherweight.tab('img2img')?.getImage('inpaint_upload')")
