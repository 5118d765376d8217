"""Memory, the X/Y/Z plot, units of ControlNet and the Precision tab in a real browser, with the tiny model really
computing."""

import base64
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from PIL import Image
from playwright import sync_api

from compat.foreign import Foreign
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.images.metadata import read_metadata
from modules.services import Services
from tests.recordings import TINY
from tests.ui.browser import needs_browser, open_group, served, visit
from tests.ui.test_page import IMAGE, PROMPT

pytestmark = needs_browser
SIDE = 64
LIST = "ul[role=listbox]"
SLOW_MS = 120_000  # the first estimate and the first image import PyTorch's larger parts
MODEL_MS = 240_000
"""For a first job that loads the model and measures every layer in every format, on a busy machine."""
KEEP = os.environ.get("FEATHERWEIGHT_SCREENSHOTS")
"""A folder to look at the pages that the tests see."""


TOO_MUCH = {
    "device": "CPU",
    "line": "needs 4.3 of 4.0 GB",
    "needs": 4_300_000_000,
    "available": 4_000_000_000,
    "fits": False,
    "worst": "decode",
    "weights": 1,
    "learnt_from": 0,
    "stages": [{"stage": "decode", "needs": 4_300_000_000}],
    "proposals": [
        {
            "title": "VAE in tiles",
            "line": "needs 3.0 of 4.0 GB",
            "needs": 3_000_000_000,
            "fits": True,
            "settings": {"vae_tile_size": 512},
            "fields": {"batch_size": 2},
        }
    ],
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("data")
    services = build_services(
        Flags(data_dir=str(folder), ckpt=str(TINY), use_cpu=("all",), no_half=True), foreign=Foreign()
    )
    services.dispatcher.start()
    services.engine.model(None)
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def page(services: Services, window: sync_api.Page) -> Iterator[sync_api.Page]:
    window.set_default_timeout(SLOW_MS)
    with served(services) as address, visit(window, address):
        window.set_viewport_size({"width": 1440, "height": 1200})
        yield window


def choose(page: sync_api.Page, field: str, text: str) -> None:
    page.click(f"#{field} input")
    page.fill(f"#{field} input", text)
    page.click(f"{LIST} li:has-text('{text}') >> nth=0")


def open_tab(page: sync_api.Page, *names: str) -> None:
    """A tab, and one inside of it."""
    for name in names:
        page.click(f"button[role=tab]:has-text('{name}'):visible")


def choose_plot(page: sync_api.Page) -> None:
    open_tab(page, "txt2img")
    choose(page, "txt2img_script_list", "X/Y/Z plot")
    page.wait_for_selector("#script_xyz_plot_x_type", state="visible")


def keep(page: sync_api.Page, name: str) -> None:
    if KEEP:
        page.screenshot(path=Path(KEEP) / f"{name}.png", full_page=True)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_what_the_form_needs_stands_beside_generate(page: sync_api.Page) -> None:
    page.wait_for_selector("#fw_scales.fw-ready")
    page.wait_for_selector("#txt2img_plan_line .fw-plan-text")
    assert re.fullmatch(r"needs \d+\.\d of \d+(\.\d)? GB RAM", page.inner_text("#txt2img_plan_line .fw-plan-text"))
    assert "denoise" in str(page.get_attribute("#txt2img_plan_line .fw-plan-text", "title"))
    assert not page.query_selector("#txt2img_plan_line button")


def test_after_an_image_its_memory_is_drawn(page: sync_api.Page) -> None:
    for name in ("width", "height"):
        page.fill(f"#txt2img_{name} input[type=number]", "64")
    page.fill("#txt2img_steps input[type=number]", "2")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_memory:not([hidden])")
    page.click("#txt2img_memory summary")
    assert re.search(r"Memory: at most \d+\.\d\d GB", page.inner_text("#txt2img_memory summary"))
    page.wait_for_selector("#txt2img_memory svg polyline")
    stages = page.locator("#txt2img_memory td:first-child").all_inner_texts()
    assert stages[0] == "load" and {"text", "denoise", "decode", "save"} <= set(stages)


def test_hires_fix_counts_before_it_was_ever_shown(page: sync_api.Page) -> None:
    text = "a dog\nSteps: 2, Sampler: Euler, CFG scale: 5, Seed: 2, Size: 64x64, Hires upscale: 4"
    page.fill("#txt2img_prompt textarea", text)
    page.click("#paste")
    page.wait_for_function("featherweight.tab('txt2img').form.hires_scale === 4")
    page.fill("#txt2img_width input[type=number]", "72")
    page.wait_for_function(
        "document.querySelector('#txt2img_plan_line .fw-plan-text')?.title.includes('denoise hires')"
    )
    page.click("#txt2img_enable_hr input")
    page.fill("#txt2img_width input[type=number]", "64")


def test_one_click_makes_the_change_that_is_proposed(page: sync_api.Page, services: Services) -> None:
    page.route(
        "**/internal/memory-estimate",
        lambda route: route.fulfill(body=json.dumps(TOO_MUCH), content_type="application/json"),
    )
    page.fill("#txt2img_width input[type=number]", "128")
    button = page.wait_for_selector("#txt2img_plan_line.fw-over button")
    assert button is not None and button.inner_text() == "VAE in tiles: needs 3.0 of 4.0 GB"
    button.click()
    page.wait_for_function("document.querySelector('#txt2img_messages').textContent.includes('VAE in tiles')")
    assert services.settings.current.vae.vae_tile_size == 512
    assert page.input_value("#txt2img_batch_size input[type=number]") == "2"
    page.unroute_all()
    services.settings.update({"vae_tile_size": 0})
    page.fill("#txt2img_batch_size input[type=number]", "1")


# -- scripts and precision ---------------------------------------------------------------------------------------------


def test_weights_fit_what_the_settings_say_and_wildcard_files_are_read(page: sync_api.Page, services: Services) -> None:
    wildcards = services.paths.data_dir / "wildcards"
    wildcards.mkdir()
    (wildcards / "beasts.txt").write_text("heron\n", encoding="utf-8")
    open_tab(page, "Settings")
    page.wait_for_selector("#setting_samples_save", state="attached")
    page.fill("#settings_search", "Fit weights into")
    page.fill("#setting_weights_budget_gb input[type=number]", "0.035")
    page.click("#settings_submit")
    page.wait_for_selector("#settings_result .fw-message")
    open_tab(page, "txt2img")
    for field, value in (("txt2img_width", SIDE), ("txt2img_height", SIDE), ("txt2img_steps", 2)):
        page.fill(f"#{field} input[type=number]", str(value))
    page.fill(PROMPT, "a gray __beasts__")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('a gray heron')", timeout=MODEL_MS)
    assert "Weights budget: 0.035" in page.inner_text("#txt2img_infotext")
    page.wait_for_selector("#fw_scales:has-text('at most 0.035 GB')")
    services.settings.update({"weights_budget_gb": 0})


def images_of(services: Services) -> set[Path]:
    """The files of txt2img."""
    return set((services.paths.outputs_dir / "txt2img-images").rglob("*.png"))


def test_a_two_by_two_plot_from_the_script_panel(page: sync_api.Page, services: Services) -> None:
    before = images_of(services)
    page.fill(PROMPT, "a red cat")
    for field, value in (("txt2img_width", SIDE), ("txt2img_height", SIDE), ("txt2img_steps", 2)):
        page.fill(f"#{field} input[type=number]", str(value))
    page.fill("#txt2img_seed input", "5")
    choose(page, "txt2img_sampling", "Euler")
    choose_plot(page)
    page.fill("#script_xyz_plot_x_values textarea, #script_xyz_plot_x_values input", "5, 6")
    choose(page, "script_xyz_plot_y_type", "Sampler")
    page.wait_for_selector("#script_xyz_plot_y_values_dropdown", state="visible")
    choose(page, "script_xyz_plot_y_values_dropdown", "Euler a")
    choose(page, "script_xyz_plot_y_values_dropdown", "DDIM")
    page.keyboard.press("Escape")
    page.check("#script_xyz_plot_include_lone_images input")
    page.click("#txt2img_generate")
    page.wait_for_selector(IMAGE)
    page.wait_for_selector("#txt2img_gallery .fw-thumbs button >> nth=4")
    keep(page, "xyz")
    infotext = page.inner_text("#txt2img_infotext")
    assert "Script: X/Y/Z plot" in infotext
    assert 'X Type: Seed, X Values: "5, 6"' in infotext
    assert 'Y Type: Sampler, Y Values: "Euler a, DDIM"' in infotext
    (file,) = (services.paths.outputs_dir / "txt2img-grids").rglob("*.png")
    assert (read_metadata(file)[0] or "").startswith("a red cat")
    with Image.open(file) as grid:
        assert grid.width > 2 * SIDE and grid.height > 2 * SIDE
        assert np.asarray(grid.convert("L"))[:4, :4].min() > 200  # the corner of the legend
    assert len(images_of(services) - before) == 4


def test_wrong_values_of_an_axis_are_said_on_the_page(page: sync_api.Page) -> None:
    choose_plot(page)
    page.fill("#script_xyz_plot_x_values textarea, #script_xyz_plot_x_values input", "five")
    page.click("#txt2img_generate")
    page.wait_for_selector(".fw-error:has-text('no whole number')")


SENT = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="


def unit_of_page(page: sync_api.Page, number: int = 0) -> Any:
    """Return a unit of ControlNet as the form has it."""
    return json.loads(page.input_value("#txt2img_controlnet_units textarea, #txt2img_controlnet_units input"))[number]


def test_a_unit_previews_its_map_and_takes_an_edited_pose(page: sync_api.Page) -> None:
    open_tab(page, "txt2img")
    for field in ("txt2img_width", "txt2img_height"):
        page.fill(f"#{field} input[type=number]", str(SIDE))
    open_group(page, "control")
    page.click("button.label-wrap:has-text('ControlNet'):visible")
    page.locator(".controlnet-units[data-tab=txt2img]").scroll_into_view_if_needed()
    unit = page.locator(".controlnet-units[data-tab=txt2img] [role=tabpanel]").first
    unit.get_by_role("button", name="Preview").click()
    unit.get_by_text("This unit has no image to look at.").wait_for()
    content = io.BytesIO()
    Image.new("RGB", (120, 80), "white").save(content, "PNG")
    image: sync_api.FilePayload = {"name": "white.png", "mimeType": "image/png", "buffer": content.getvalue()}
    unit.get_by_label("Image", exact=True).set_input_files(image)
    unit.get_by_label("Preprocessor").select_option("canny")
    unit.get_by_label("Pixel perfect").check()
    with page.expect_request("**/controlnet/detect") as asked:
        unit.get_by_role("button", name="Preview").click()
    assert json.loads(asked.value.post_data or "")["controlnet_processor_res"] == SIDE, (
        "the short side of the image that is made"
    )
    unit.get_by_alt_text("Map of the preprocessor").wait_for()

    unit.get_by_label("Preprocessor").select_option("openpose")
    unit.get_by_role("button", name="Edit pose").click()
    dialog = page.get_by_role("dialog", name="Edit the pose")
    wrist = dialog.get_by_role("button", name="Person 1: Right wrist")
    written = json.loads(dialog.get_by_label("Pose as JSON").input_value())
    wrist.focus()
    for key in ("ArrowLeft", "Shift+ArrowUp"):
        page.keyboard.press(key)
    box = dialog.get_by_role("button", name="Person 1: Left ankle").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 40, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    dialog.get_by_role("button", name="Person 1: Left ear").focus()
    dialog.get_by_role("button", name="Hide point").click()
    keep(page, "pose")
    pose = json.loads(dialog.get_by_label("Pose as JSON").input_value())
    before, after = (np.array(one["people"][0]["pose_keypoints_2d"]).reshape(18, 3) for one in (written, pose))
    moved = after - before
    assert moved[4].tolist() == pytest.approx([-1, -10, 0]), "the wrist, by keys"
    assert moved[13, 0] > 3 and moved[13, 1] == pytest.approx(0, abs=0.2), "the ankle, by the mouse"
    assert moved[17].tolist() == [0, 0, -1], "a hidden point"
    assert np.count_nonzero(moved.any(axis=1)) == 3
    dialog.locator("summary").click()
    dialog.get_by_label("Pose as JSON").fill('{"people": 3}')
    dialog.get_by_role("button", name="Read this JSON").click()
    dialog.get_by_text("This is no pose").wait_for()
    dialog.get_by_label("Pose as JSON").fill(json.dumps([{**pose, "people": pose["people"] * 2}]))
    dialog.get_by_role("button", name="Read this JSON").click()
    dialog.get_by_role("button", name="Person 2: Nose").focus()
    dialog.get_by_role("button", name="Remove person").click()
    dialog.get_by_role("button", name="Use this pose").click()
    dialog.wait_for(state="detached")
    unit.locator("button:has-text('Edit pose'):enabled").wait_for()
    given = unit_of_page(page)
    assert given["module"] == "none" and given["enabled"]
    rendered = page.request.post(urljoin(page.url, "controlnet/render_openpose_json"), data=[pose]).json()["images"][0]
    shown = given["image"].partition(",")[2]
    pixels, wanted = (np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in (shown, rendered))
    assert pixels.shape == (80, 120, 3) and pixels.any()
    np.testing.assert_array_equal(pixels, wanted)

    unit.locator("summary").click()
    unit.get_by_role("button", name="Paint mask").click()
    dialog = page.get_by_role("dialog", name="Where the unit counts")
    dialog.get_by_role("img", name="Painted mask").click(position={"x": 20, "y": 20})
    keep(page, "region")
    dialog.get_by_role("button", name="Use this mask").click()
    unit.get_by_alt_text("Mask of where the unit counts").wait_for()
    mask = base64.b64decode(unit_of_page(page)["effective_region_mask"].partition(",")[2])
    painted = np.asarray(Image.open(io.BytesIO(mask)).convert("L"))
    assert painted.shape == (SIDE, SIDE) and painted[2, 2] == 255 and painted[SIDE // 2, SIDE // 2] == 0
    unit.get_by_role("button", name="Remove mask").click()
    assert "effective_region_mask" not in unit_of_page(page)

    unit.get_by_label("Images").select_option("merge")
    colors = ("red", "green", "blue")
    files: list[sync_api.FilePayload] = []
    for color in colors:
        content = io.BytesIO()
        Image.new("RGB", (SIDE, SIDE), color).save(content, "PNG")
        files.append({"name": f"{color}.png", "mimeType": "image/png", "buffer": content.getvalue()})
    unit.get_by_label("Image", exact=True).set_input_files(files)
    unit.get_by_alt_text("Image 3 of the unit").scroll_into_view_if_needed()
    keep(page, "several-images")
    given = unit_of_page(page)
    assert given["input_mode"] == "merge" and given["enabled"]
    contents = [base64.b64decode(one["image"].partition(",")[2]) for one in given["image"]]
    assert contents == [one["buffer"] for one in files]
    unit.get_by_label("Images").select_option("simple")
    assert unit_of_page(page)["image"] == given["image"][0]["image"]
    unit.get_by_role("button", name="Clear").click()
    assert "image" not in unit_of_page(page)
    unit.get_by_label("Enable").uncheck()


GIVE = """([kind, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "given.png", { type: "image/png" }));
  const place = document.querySelector("#txt2img_controlnet_unit_1 .fw-canvas-drop");
  place.querySelector("input").focus();
  const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  place.dispatchEvent(event);
}"""


def test_a_unit_takes_images_that_are_dropped_pasted_or_sent_and_says_what_it_lacks(page: sync_api.Page) -> None:
    open_tab(page, "txt2img")
    units = page.locator(".controlnet-units[data-tab=txt2img]")
    if not units.count():
        page.click("button.label-wrap:has-text('ControlNet'):visible")
    units.scroll_into_view_if_needed()
    units.get_by_role("tab", name="Unit 0").click()
    page.keyboard.press("ArrowRight")
    unit = units.get_by_role("tabpanel", name="Unit 1")

    def given() -> bytes:
        return base64.b64decode(str(unit_of_page(page, 1)["image"]).partition(",")[2])

    for kind, color in (("drop", "red"), ("paste", "blue")):
        content = io.BytesIO()
        Image.new("RGB", (SIDE, SIDE), color).save(content, "PNG")
        page.evaluate(GIVE, [kind, list(content.getvalue())])
        page.wait_for_function(
            "text => document.querySelector('#txt2img_controlnet_unit_1 img').src.endsWith(text)",
            arg=base64.b64encode(content.getvalue()).decode(),
        )
        assert given() == content.getvalue()
    assert unit.get_by_label("Enable").is_checked()
    unit.get_by_text("The unit needs a control model.").wait_for()
    unit.get_by_role("button", name="Get models").wait_for()
    unit.get_by_label("Control weight").fill("1.5")
    assert unit.locator("input[type=range]").nth(1).input_value() == "1.5"
    before = unit_of_page(page, 1)["image"]
    page.evaluate("featherweight.tab('txt2img').showImages([], 0)")
    unit.get_by_role("button", name="Use the result").click()
    unit.get_by_text("There is no image on the stage yet.").wait_for()
    page.evaluate("url => featherweight.send('controlnet', { url })", SENT)
    page.wait_for_function("() => document.querySelector('#txt2img_controlnet_unit_1 img').src.includes('image/gif')")
    assert unit_of_page(page, 1)["image"] != before
    keep(page, "unit")
    unit.get_by_label("Enable").uncheck()


def test_a_pasted_unit_whose_model_is_not_here_stays_off_and_is_named(page: sync_api.Page) -> None:
    open_tab(page, "txt2img")
    page.fill(
        "#txt2img_prompt textarea",
        'a cat\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, ControlNet 0: "Module: canny, '
        'Model: control_v11p_sd15_canny [d14c016b], Weight: 1"',
    )
    page.click("#paste")
    page.wait_for_selector(
        "#txt2img_notice:has-text(\"Control model 'control_v11p_sd15_canny [d14c016b]' is not here\")"
    )
    assert page.input_value("#txt2img_controlnet_units textarea, #txt2img_controlnet_units input") == ""


def test_a_precision_report_is_made_and_found_again_after_a_reload(page: sync_api.Page, services: Services) -> None:
    open_tab(page, "Precision", "Report")
    page.click("#precision_report")
    page.wait_for_selector("#precision_result .fw-table")
    keep(page, "precision-report")
    assert "instead of" in page.inner_text("#precision_result")
    page.reload()
    open_tab(page, "Precision")
    page.wait_for_selector("#precision_result .fw-table")


def test_a_comparison_shows_its_report_on_the_page(page: sync_api.Page, services: Services) -> None:
    open_tab(page, "Precision", "Compare images")
    page.fill("#precision_prompts textarea", "a red cat")
    page.fill("#precision_steps input[type=number]", "2")
    page.click("#precision_tabs button:has-text('More'):visible")
    for name in ("width", "height"):
        page.fill(f"#precision_{name} input", str(SIDE))
    for label in ("fp8 e4m3fn, one scale per row", "fp8 e4m3fn, plain", "fp8 e5m2, plain"):
        page.click(f"#precision_formats label:has-text('{label}')")
    page.click("#precision_compare")
    page.wait_for_selector("#precision_result iframe", timeout=120_000)
    assert "int8 row comes closest to fp32" in page.inner_text("#precision_result")
    page.frame_locator("#precision_result iframe").locator("p.verdict").wait_for()
    keep(page, "precision-comparison")
    assert len(list((services.paths.outputs_dir / "reports").glob("precision-comparison-*"))) == 2


def test_saving_under_no_name_is_refused_in_a_sentence(page: sync_api.Page) -> None:
    open_tab(page, "Precision", "Save as")
    page.click("#precision_convert")
    page.wait_for_selector("#precision_result .fw-error:has-text('is no name for a checkpoint')")


def test_a_smaller_file_that_fits_is_saved_and_offered(page: sync_api.Page, services: Services) -> None:
    open_tab(page, "Precision", "Save as")
    page.fill("#precision_name :is(input, textarea)", "smaller")
    choose(page, "precision_convert_format", "fp8 e4m3fn, one scale per row")
    if not page.is_visible("#precision_convert_budget"):
        page.click("#precision_tabs button:has-text('More'):visible")
    page.fill("#precision_convert_budget input", "0.035")
    page.click("#precision_convert")
    page.wait_for_selector("#precision_result :text('smaller.safetensors is ready')")
    keep(page, "precision-saved")
    assert (services.paths.checkpoint_dirs[0] / "smaller.safetensors").stat().st_size < TINY.stat().st_size
    open_tab(page, "txt2img")
    page.click("#setting_sd_model_checkpoint input")
    page.wait_for_selector(f"{LIST} li:has-text('smaller.safetensors')")
    page.keyboard.press("Escape")
