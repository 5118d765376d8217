"""`ui-config.json`, themes, `user.css`, order of tabs: what holds, and that nothing broken costs the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
from playwright import sync_api

from modules.scripts.acting import Acting
from modules.scripts.callbacks import Callbacks, Moment, Registered
from modules.scripts.extension import Extension
from modules.scripts.page_tab import PageTab
from modules.services import Services
from modules.ui.common.looks import theme_of, user_css
from modules.ui.common.tab_order import TAB_ORDER, is_hidden, ordered, tab_titles, tabs_of_extensions
from modules.ui.form.seed_field import SeedField
from modules.ui.form.ui_config import UiConfig, read_ui_config
from tests.fakes import fake_services, in_loop
from tests.ui.browser import needs_browser, served, visit, wait_until_open


def page_with() -> gr.Blocks:
    """A page with a control of each kind."""
    with gr.Blocks() as page, gr.Tabs(), gr.Tab("txt2img", elem_id="tab_txt2img"):
        gr.Slider(1, 150, 20, step=1, label="Sampling steps")
        gr.Textbox(label="Prompt")
        gr.Dropdown(["Euler", "DDIM"], value="Euler", label="Sampling method")
        gr.Dropdown(["a", "b"], multiselect=True, label="Styles")
        SeedField(label="Seed")
        gr.Dropdown(["Nothing", "Seed"], value="Seed", type="index", label="X type")
        gr.Checkbox(False, label="Tiling")
        gr.Textbox(label="Prompt")  # a second one of the name does not count
        gr.Textbox(visible="hidden", label="Task")
    assert isinstance(page, gr.Blocks)
    return page


def applied(file: Path, entries: object) -> tuple[UiConfig, tuple[str, ...]]:
    file.write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    config = UiConfig(file)
    return config, config.apply(in_loop(page_with))


def test_entries_change_their_controls(tmp_path: Path) -> None:
    entries = {
        "txt2img/Sampling steps/value": 30,
        "txt2img/Sampling steps/maximum": 60,
        "txt2img/Sampling method/value": "DDIM",
        "txt2img/Styles/value": ["b"],
        "txt2img/Seed/value": 2**64 - 1,
        "txt2img/Tiling/visible": False,
        "customscript/other.py/txt2img/Thing/value": 1,
    }
    config, faults = applied(tmp_path / "ui-config.json", entries)
    assert faults == ()
    controls: dict[str, Any] = config.controls
    steps = controls["txt2img/Sampling steps"]
    assert (steps.value, steps.maximum, steps.elem_classes) == (30, 60, ["fw-configured"])
    assert controls["txt2img/Sampling method"].value == "DDIM" and controls["txt2img/Styles"].value == ["b"]
    assert controls["txt2img/Seed"].value == str(2**64 - 1) and config.own["txt2img/Seed/value"] == -1
    assert config.changes({"txt2img/Seed": 2**64 - 1}) == {}
    assert controls["txt2img/Tiling"].visible is False
    assert "txt2img/Task" not in controls


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("txt2img/Sampling steps/value", "many", "takes a number"),
        ("txt2img/Sampling steps/value", True, "takes a number"),
        ("txt2img/Sampling steps/minimum", 200, "not below the maximum"),
        ("txt2img/Sampling steps/step", 0, "must be more than 0"),
        ("txt2img/Sampling method/value", "Eulr", "'Eulr' is not one of 'Euler', 'DDIM'"),
        ("txt2img/Sampling method/value", ["Euler"], "takes one name"),
        ("txt2img/Styles/value", "a", "takes a list"),
        ("txt2img/Tiling/value", 1, "takes true or false"),
        ("txt2img/Tiling/visible", "no", "takes true or false"),
        ("txt2img/Prompt/value", None, "takes a text"),
        ("txt2img/Seed/value", "many", "takes a whole number"),
    ],
)
def test_what_a_control_cannot_take_is_named_and_left_out(tmp_path: Path, entry: str, value: Any, said: str) -> None:
    config, faults = applied(tmp_path / "ui-config.json", {entry: value, "txt2img/Prompt/visible": False})
    assert len(faults) == 1 and entry in faults[0] and said in faults[0]
    assert config.defaults[entry] == config.own[entry]
    assert config.controls["txt2img/Prompt"].visible is False  # the others count


@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    config, faults = applied(tmp_path / "ui-config.json", text)
    assert len(faults) == 1 and "ui-config.json was left out" in faults[0]
    assert config.defaults == config.own


def test_changes_are_saved_beside_what_others_wrote(tmp_path: Path) -> None:
    file = tmp_path / "ui-config.json"
    config, _ = applied(file, {"img2img/Foreign/value": 3, "txt2img/Tiling/value": True})
    names = [name for name in config.names if name != "txt2img/X type"]
    values = {name: config.defaults[f"{name}/value"] for name in names} | {"txt2img/Sampling steps": 8}
    assert config.changes(values) == {"txt2img/Sampling steps/value": (20, 8)}
    assert config.changes({"txt2img/Styles": []}) == {}  # nothing chosen, as in the beginning
    assert config.changes({"txt2img/X type": 1}) == {}  # a control that gives the place of what is chosen
    assert config.changes({"txt2img/X type": 0}) == {"txt2img/X type/value": ("Seed", "Nothing")}
    config.save({"txt2img/Sampling steps/value": 8, "txt2img/Tiling/value": None})
    assert json.loads(file.read_text()) == {"img2img/Foreign/value": 3, "txt2img/Sampling steps/value": 8}
    assert read_ui_config(tmp_path / "none.json") == ({}, ())


def test_themes_by_name_without_fonts_from_elsewhere() -> None:
    theme, fault = theme_of("gradio/soft")
    assert (type(theme), fault) == (gr.themes.Soft, "")
    assert "fonts.googleapis" not in "".join(theme._stylesheets)
    theme, fault = theme_of("freddyaboulton/dracula_revamped")
    assert "dracula" in fault and "gradio/soft" in fault
    assert theme_of("Default")[1] == theme_of("High contrast")[1] == ""


@pytest.mark.parametrize("content", [b"a { color: red", b"\xff\xfe", b"</style><script>"])
def test_a_broken_style_sheet_is_named(tmp_path: Path, content: bytes) -> None:
    assert user_css(tmp_path) == (None, "")
    (tmp_path / "user.css").write_bytes(content)
    file, fault = user_css(tmp_path)
    assert file is None and "user.css was left out" in fault


def test_tabs_are_ordered_by_name_or_title_and_settings_stay() -> None:
    assert ordered(["History", "extras", "none"], TAB_ORDER)[:3] == ["history", "extras", "txt2img"]
    assert ordered([], TAB_ORDER) == list(TAB_ORDER)
    assert is_hidden("pnginfo", "PNG Info", ["PNG Info"]) and not is_hidden("settings", "Settings", ["settings"])


def test_tabs_of_extensions_stand_where_they_ask_to() -> None:
    callbacks, owner = Callbacks(), Extension("toybox", Path(), is_built_in=True)

    def add(*tabs: PageTab) -> None:
        acting = Acting("toybox/toy.py", owner=owner)
        callbacks.add(Registered(Moment.PAGE_TABS, lambda: tabs, "toybox/toy.py", acting=acting))

    add(PageTab("toys", "Toys", print, after="pnginfo"), PageTab("last", "Last", print))
    add(PageTab("queue", "Mine", print))
    callbacks.add(Registered(Moment.PAGE_TABS, lambda: 1 / 0, "broken"))
    added = tabs_of_extensions(callbacks)
    titles = tab_titles(added)
    names = list(titles)
    assert [name for name in names if name not in added] == list(TAB_ORDER)
    assert names[names.index("pnginfo") + 1] == "toys" and names[names.index("settings") - 1] == "last"
    assert (titles["toys"], titles["queue"]) == ("Toys", "Queue")
    assert ordered(["Toys"], titles)[0] == "toys" and is_hidden("toys", "Toys", ["TOYS"])
    assert [fault.reason for fault in owner.faults] == ["There is a tab 'queue' already. Give this one another name."]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A program whose user has changed the page, and broken a few things."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ui-config.json").write_text(
        json.dumps({"txt2img/Width/value": 192, "txt2img/CFG Scale/value": 3.5, "txt2img/Batch size/value": "x"})
    )
    (folder / "user.css").write_text("#txt2img_generate { letter-spacing: 3px; }")
    services = fake_services(folder)
    services.settings.update(
        {"ui_tab_order": ["txt2img", "history"], "hidden_tabs": ["precision"], "gradio_theme": "none/such"}
    )
    services.settings.update({"ui_density": "Compact"})
    yield services
    services.dispatcher.close()


class TestInTheBrowser:
    pytestmark = needs_browser

    def test_the_page_is_as_the_user_wants_it_and_names_what_is_broken(
        self, window: sync_api.Page, own: Services
    ) -> None:
        page = window  # which the tests after this one share
        with served(own) as address, visit(page, address):
            assert page.input_value("#txt2img_width input[type=number]") == "192"
            assert page.input_value("#txt2img_cfg_scale input[type=number]") == "3.5"
            assert page.input_value("#txt2img_batch_size input[type=number]") == "1"
            notices = page.inner_text("#fw_notices")
            assert "txt2img/Batch size/value was left out" in notices and "'none/such' was left out" in notices
            spacing = "getComputedStyle(document.querySelector('#txt2img_generate')).letterSpacing"
            assert page.evaluate(spacing) == "3px"
            tabs = page.locator(
                "#tabs > .tab-wrapper .tab-container.visually-hidden ~ .tab-container button, "
                "#tabs > .tab-wrapper .tab-container button"
            ).all_inner_texts()
            assert tabs.index("History") < tabs.index("img2img") and "Precision" not in tabs

            # compact: the seed, the image and its actions on one screen, and no scrolling of the page
            page.wait_for_selector("body.fw-compact")
            page.evaluate("featherweight.showTab('txt2img')")
            page.wait_for_selector("#txt2img_generate", state="visible")
            page.evaluate("document.querySelector('#fw_notices').replaceChildren()")
            bottom = page.evaluate(
                "Math.max(...['txt2img_steps', 'txt2img_seed_row', 'txt2img_gallery'].map((id) =>"
                " document.querySelector('#' + id).getBoundingClientRect().bottom + scrollY))"
            )
            assert bottom <= 900
            assert page.evaluate("document.documentElement.scrollHeight") <= 900

            # what the form holds becomes the default
            page.fill("#txt2img_steps input[type=number]", "9")
            page.evaluate("featherweight.showTab('settings')")
            page.click("#settings_list button:has-text('Defaults')")
            page.click("#ui_defaults_view")
            page.wait_for_selector("#ui_defaults_changes:has-text('txt2img/Sampling steps: 20 → 9')")
            page.click("#ui_defaults_apply")
            page.wait_for_selector("#ui_defaults_review .fw-note:has-text('Defaults saved: 1')")
            stored = json.loads(own.paths.ui_config_file.read_text())
            assert stored["txt2img/Sampling steps/value"] == 9 and stored["txt2img/Width/value"] == 192

            # Reload UI builds the page anew, with other tabs
            own.settings.update({"hidden_tabs": [], "gradio_theme": "Default"})
            page.evaluate("document.body.dataset.old = 1; featherweight.keep = () => {}")
            page.evaluate("localStorage.clear(); sessionStorage.clear()")
            page.click("#settings_reload")
            page.wait_for_function("!document.body.dataset.old")
            wait_until_open(page)
            page.wait_for_selector("#tab_precision-button", state="attached")
            assert page.input_value("#txt2img_steps input[type=number]") == "9"

    def test_settings_are_found_and_licences_listed(self, page: sync_api.Page) -> None:
        """How pages, marks and counts follow is in `js/page.test.mjs`."""
        page.evaluate("featherweight.showTab('settings')")
        page.wait_for_selector("#setting_samples_save", state="attached")
        page.fill("#settings_search", "clip skip")
        assert page.is_visible("#setting_CLIP_stop_at_last_layers") and not page.is_visible("#setting_samples_save")
        page.fill("#settings_search", "")
        page.click("#settings_list button:has-text('Licenses')")
        page.wait_for_selector("#settings_licences td:has-text('torch')")

    def test_the_page_is_small_on_the_wire(self, address: str) -> None:
        with httpx.stream("GET", address, headers={"Accept-Encoding": "gzip"}) as reply:
            reply.read()
        assert reply.headers["content-encoding"] == "gzip"
        assert reply.num_bytes_downloaded <= 110_000, reply.num_bytes_downloaded
