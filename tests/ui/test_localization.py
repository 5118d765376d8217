"""Translations: which files count, which one a browser gets, that all texts of the page pass through the table, and
that the shipped ones are complete."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image
from playwright import sync_api

from modules.api.app import build_api
from modules.services import Services
from modules.ui.common.localization import (
    LANGUAGES,
    NONE,
    SHIPPED,
    chosen,
    find_localizations,
    preferred,
    read_localization,
)
from modules.ui.page.texts import NAMED_CHOICES, NO_TEXTS, html_texts, message_texts, page_texts, script_texts
from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services, page_config
from tests.ui.browser import STEADY, needs_browser, open_page, served, until


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """All texts of the page."""
    services = fake_services(tmp_path_factory.mktemp("texts"), start=False)
    yield page_texts(page_config(services))
    services.dispatcher.close()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    services = fake_services(tmp_path, start=False)
    yield services
    services.dispatcher.close()


def write(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def test_files_of_one_name_are_taken_together(tmp_path: Path) -> None:
    write(tmp_path / "a", "xx", {"Save": "1", "Skip": "2", "empty": "", "number": 3})
    write(tmp_path / "b", "xx", {"Skip": "3"})
    files = find_localizations([tmp_path / "a", tmp_path / "missing", tmp_path / "b"])
    assert read_localization("xx", files["xx"]).texts == {"Save": "1", "Skip": "3"}


@pytest.mark.parametrize("content", ["{", "[1]", '"text"', "\ud83d"[:0] + "[" * 100_000])
def test_a_broken_file_is_named_and_the_others_count(tmp_path: Path, content: str) -> None:
    good, bad = write(tmp_path / "a", "xx", {"Save": "1"}), write(tmp_path / "b", "xx", content)
    found = read_localization("xx", [good, bad])
    assert found.texts == {"Save": "1"}
    assert len(found.faults) == 1 and "xx.json was left out" in found.faults[0] and str(bad.parent) in found.faults[0]


def test_right_to_left_by_name_or_by_the_file(tmp_path: Path) -> None:
    assert read_localization("he", []).is_rtl and not read_localization("de", []).is_rtl
    assert read_localization("xx", [write(tmp_path, "xx", {"rtl": True})]).is_rtl


@pytest.mark.parametrize(
    ("languages", "name"),
    [
        (["de-AT", "en"], "de"),
        (["en-US", "de"], NONE),
        (["zh"], "zh-CN"),
        (["zh-Hant-HK"], "zh-TW"),
        (["pt"], "pt-BR"),
        (["nl", "fr-CA"], "fr"),
        (["nl"], NONE),
        ([""], NONE),
    ],
)
def test_the_browser_prefers(languages: list[str], name: str) -> None:
    assert preferred(languages, LANGUAGES) == name


def test_the_header_goes_before_the_setting_and_the_setting_before_the_browser() -> None:
    assert chosen("fr", "de", ["it"], LANGUAGES) == "fr"
    assert chosen(NONE, "de", ["it"], LANGUAGES) == NONE
    assert chosen("", "de", ["it"], LANGUAGES) == "de"
    assert chosen("gone", "gone", ["it"], LANGUAGES) == "it"


def test_the_page_gets_the_translation_of_an_extension(services: Services) -> None:
    write(services.paths.extensions_dir / "words" / "localizations", "Klingon", {"Generate": "qonwI'"})
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:
        reply = client.get("/internal/localization", params={"choice": "Klingon"}).json()
        assert (reply["name"], reply["texts"]) == ("Klingon", {"Generate": "qonwI'"})
        assert ["Klingon", "Klingon"] in reply["available"] and reply["available"][0] == [NONE, "English"]
        services.settings.update({"localization": "Klingon"})
        assert client.get("/internal/localization", params={"languages": "de"}).json()["name"] == "Klingon"


def test_marked_texts_are_found_in_scripts() -> None:
    script = r"""say(fw.t`Saved as ${reply.path}`); const key = "Zoom out"; // "A comment is none"
        throw new Error(fw.t`It is ${isOld ? fw.t`Not \`new\`` : `x}`}.\nPress it again.`)"""
    assert script_texts(script) == ["Saved as {0}", "It is {0}.", "Press it again.", "Not `new`"]
    assert script_texts('fw.t`<b title="A tip">Two  words</b><code>no</code>`') == ["A tip", "Two words"]


def test_marked_texts_are_found_in_python() -> None:
    code = """done = page_text(f"{name} is ready, {size}.")
html = page_text(f"<p>{count} images · {page_text('All is well.') if not found else ''}</p><b title='A tip'>Two</b>")
phase = "hashing"
"""
    assert message_texts(code) == ["{0} is ready, {1}.", "{0} images", "A tip", "Two", "All is well."]
    assert message_texts('LOW = (Slider("Low Threshold", 1, 255),)', ("Slider",)) == ["Low Threshold"]
    assert html_texts('<b title="A tip">Two  words</b><code>no</code>') == ["A tip", "Two words"]
    assert message_texts("note_box(f'{count} images')\nerror_box('Bad')") == ["{0} images", "Bad"]


@pytest.mark.parametrize("name", LANGUAGES)
def test_shipped_translations_are_complete(texts: dict[str, list[str]], name: str) -> None:
    table = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
    everything = {text for found in texts.values() for text in found}
    assert sorted(everything - table.keys()) == [], f"`launch.py texts {name}` lists them"
    assert [text for text in table if text not in everything | NO_TEXTS] == [], (
        "texts that the page has no longer, or that are not marked: page_text(...), fw.t`...`"
    )
    for source, shown in table.items():
        places = [f"{{{n}}}" for n in range(6)]
        assert [p for p in places if p in source] == [p for p in places if p in shown], source


FORMS = {"ru": {"one", "few", "many", "other"}}
"""The plural forms (CLDR) of a language beside those that German has; languages without plurals use none."""


@pytest.mark.parametrize("name", sorted(LANGUAGES))
def test_words_that_go_with_a_number_have_the_forms_of_the_language(name: str) -> None:
    known = FORMS.get(name, {"one", "other"})
    for source, shown in json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8")).items():
        for place, forms in re.findall(r"\{(\d):([^}]*)\}", str(shown)):
            names = {form.partition("=")[0] for form in forms.split(";")}
            assert f"{{{place}}}" in source and "other" in names and names <= known, source


TABS: tuple[str, ...] = ("txt2img", "img2img", "extras", "pnginfo", "modelmerger", "train", "precision", "getmodels")
TABS += ("queue", "history", "extensions")

VERDICT = (
    "a comes closest to b: its weights need 1 GB instead of 2 GB, 50% less; details differ (PSNR 26.5 dB); "
    "a step takes 6% less time. c differs most: another image (PSNR 9.5 dB)."
)
VERDICT_SHOWN = (
    "⟦a comes closest to b: its weights need 1 GB instead of 2 GB, 50% less; ⟦details differ⟧ (PSNR 26.5 dB); "
    "⟦a step takes 6% less time⟧.⟧ ⟦c differs most: ⟦another image⟧ (PSNR 9.5 dB).⟧"
)

REPORT = "#precision_result .fw-outcome"

FOLDER_REPORT = "#train_captions_report"

SETTINGS_PAGES = ("Defaults", "Actions", "Sysinfo", "Licenses", "Show all pages")

UNTRANSLATED = """([names, within]) => {
  const root = document.querySelector(within);
  const found = new Set();
  const skipped =
    "script, style, textarea, pre, code, svg, [translate=no], .fw-example, .token, #fw_brand";
  const look = (text, element) => {
    if (names.includes(text.trim()) || /\\.safetensors( \\[\\w+\\])?$/.test(text.trim())) return;
    if (/^[\\d.]+ [MG]B$/.test(text.trim())) return;
    if (/\\p{L}{2}/u.test(text) && !text.includes("⟦") && !element.closest(skipped)) found.add(text.trim());
  };
  const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    if (element.checkVisibility()) look(nodes.currentNode.data, element);
  }
  for (const name of ["placeholder", "title"]) {
    for (const element of root.querySelectorAll(`[${name}]`)) {
      if (element.checkVisibility()) look(element.getAttribute(name), element);
    }
  }
  return [...found];
}"""


OPEN_FOLDS = """() => {
  document.querySelectorAll("#tab_txt2img .fw-group:not([data-open]) .fw-group-head").forEach((head) => head.click());
  document.querySelectorAll("#tab_txt2img .fw-script button.label-wrap:not(.open)").forEach(
    (fold) => fold.checkVisibility() && fold.click());
}"""
"""But for those with nothing in them to be seen, which are hidden."""

CHOICES = """() => {
  const { get } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
  return [...document.querySelectorAll("input[role=combobox]")].filter((input) => input.checkVisibility())
    .map((input) => [input.closest("[id]:not(input)").id, get.call(input), input.value]);
}"""


CUT = """() => {
  const shown = [...document.querySelectorAll("#quicksettings *")].filter((one) => one.checkVisibility());
  const isFile = (one) => one.closest("#setting_sd_model_checkpoint");
  const hides = (one) => one.clientWidth > 2 && getComputedStyle(one).overflow !== "visible" && !isFile(one);
  const isFull = (one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 2;
  const cut = shown.filter((one) => hides(one) && isFull(one));
  const outside = shown.filter((one) => one.getBoundingClientRect().right > innerWidth);
  return [...cut, ...outside].map((one) => one.id || one.className || one.tagName);
}"""
"""What of the header is cut off or outside of the window; names of files may be."""


class TestInTheBrowser:
    pytestmark = needs_browser

    @pytest.fixture(scope="class")
    def fakes(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
        """Of its own: names of jobs and files that other tests leave on a page are nobody's language."""
        services = fake_services(tmp_path_factory.mktemp("data"))
        yield services
        services.dispatcher.close()

    @pytest.fixture(scope="class")
    def address(self, fakes: Services) -> Iterator[str]:
        with served(fakes) as address:
            yield address

    def test_all_texts_pass_through_the_table(
        self, context: sync_api.BrowserContext, address: str, fakes: Services, texts: dict[str, list[str]]
    ) -> None:
        table: dict[str, Any] = {text: f"⟦{text}⟧" for found in texts.values() for text in found}
        file = write(fakes.paths.localizations_dir, "pseudo", {**table, "rtl": True})
        page = context.new_page()
        page.add_init_script("localStorage.setItem('featherweight.language', 'pseudo')")
        try:
            open_page(page, address)
            page.wait_for_selector("#txt2img_generate:has-text('⟦Generate⟧')")
            assert page.evaluate("[document.documentElement.dir, document.documentElement.lang]") == ["rtl", "pseudo"]
            page.fill("#txt2img_prompt textarea", "Generate")
            page.press("#txt2img_prompt textarea", "Control+Enter")
            page.wait_for_selector("#txt2img_messages:has-text('⟦Time taken:')")
            assert "Steps: 20" in page.inner_text("#txt2img_infotext")  # is the image's, not the page's
            page.evaluate(OPEN_FOLDS)
            shown: list[list[str]] = []
            left = {}
            for tab in TABS:
                left[tab] = untranslated(page, tab)
                shown += page.evaluate(CHOICES)
            named = [row for row in shown if NAMED_CHOICES.search(row[0]) or row[1] in NO_TEXTS]
            assert {row[0]: row[1] for row in shown if row[1] and "⟦" not in row[1] and row not in named} == {}
            assert ["⟦Automatic⟧", "Automatic"] in [row[1:] for row in shown], "who reads the field gets the value"
            page.evaluate("featherweight.showTab('settings')")
            pages = page.query_selector_all("#settings_list [data-place]")[-len(SETTINGS_PAGES) :]
            for name, button in zip(SETTINGS_PAGES, pages, strict=True):
                button.click()
                left[name] = untranslated(page, "settings")
            left |= self.results(page, fakes)
            assert page.evaluate("(text) => featherweight.text(text)", VERDICT) == VERDICT_SHOWN
            assert {tab: found for tab, found in left.items() if found} == {}
        finally:
            page.evaluate("localStorage.clear()")
            page.close()
            file.unlink()

    def test_no_word_of_the_header_is_cut(self, context: sync_api.BrowserContext, address: str) -> None:
        page = context.new_page()
        page.add_init_script("localStorage.setItem('featherweight.language', 'de')")
        try:
            open_page(page, address)
            page.wait_for_selector("#fw_presets:has-text('Voreinstellungen')")
            for width in (1440, 1280, 1024, 800, 390):
                page.set_viewport_size({"width": width, "height": 900})
                until(page, lambda: page.evaluate(CUT) == [], seconds=5)
        finally:
            page.evaluate("localStorage.clear()")
            page.close()

    def results(self, page: sync_api.Page, fakes: Services) -> dict[str, list[str]]:
        """What stands untranslated in a precision report and in the check of a folder of images."""
        page.evaluate("featherweight.showTab('precision')")
        page.click("#precision_report")
        page.wait_for_selector(f"{REPORT} table")
        page.evaluate("featherweight.showTab('train')")
        folder = fakes.paths.data_dir / "few"
        folder.mkdir()
        for name, shade in (("a", 10), ("b", 10), ("c", 200)):
            Image.new("RGB", (32, 32), (shade, 0, 0)).save(folder / f"{name}.png")
        (folder / "broken.png").write_bytes(b"nothing")
        page.click("#train_captions button.label-wrap")
        page.fill("#train_captions_folder :is(input, textarea)", str(folder))
        page.click("#train_captions_look")
        page.wait_for_selector(f"{FOLDER_REPORT} .fw-note")
        return {
            "the report": untranslated(page, "precision", REPORT),
            "the folder": untranslated(page, "train", FOLDER_REPORT),
        }


def untranslated(page: sync_api.Page, tab: str, within: str = "body") -> list[str]:
    """What a tab shows that does not come out of the table; names and what lists hold are nobody's language."""
    page.evaluate(f"featherweight.showTab('{tab}')")
    page.evaluate(STEADY, f"#tab_{tab}")
    found: list[str] = []

    def is_translated() -> bool:
        found[:] = page.evaluate(UNTRANSLATED, [sorted(NO_TEXTS), within])
        return not found

    try:
        until(page, is_translated, seconds=15)  # texts are translated as they appear
    except AssertionError:
        return found
    return []
