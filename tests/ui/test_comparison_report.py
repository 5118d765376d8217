"""The report of a comparison in a browser: its plot, with the headers of the server and without a server."""

from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from playwright import sync_api

from lib_workbench.comparison.compare import Row
from lib_workbench.comparison.report_page import as_html
from lib_workbench.routes import report_headers
from tests.ui.browser import needs_browser

pytestmark = needs_browser
PLOT = "figure.fw-plot svg[role=img]"


@pytest.fixture(scope="module")
def report() -> str:
    rows = [Row(name, name, [Image.new("RGB", (16, 16))], step_seconds=[0.1], weight_bytes=1000) for name in "abc"]
    for row, factor in zip(rows, (0, 1, 2), strict=True):
        row.psnr_db, row.ssim = [40.0], [0.9]
        row.latent_differences = [[0.25 * factor, 0.5 * factor]]
    return as_html(rows, ["a cat"], "tiny")


def note(faults: list[str], message: sync_api.ConsoleMessage) -> None:
    faults.append(message.text)


def test_the_plot_runs_under_the_policy_of_the_server(browser: sync_api.Browser, report: str) -> None:
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        faults: list[str] = []
        page.on("console", partial(note, faults))
        page.route("**/*", lambda route: route.fulfill(body=report, headers=report_headers(), content_type="text/html"))
        page.goto("http://report.invalid/")
        page.focus(PLOT)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.inner_text(".fw-plot-said") == "step 2 · b 0.50 · c 1.0"
        assert page.inner_text(".fw-plot-numbers tbody tr:first-child").split() == ["step", "1", "0.25", "0.50"]
        assert [text for text in faults if "Content Security Policy" in text] == []
        page.close()


def test_the_file_alone_draws_it_and_has_a_table_without_scripts(
    browser: sync_api.Browser, report: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report, encoding="utf-8")
    for has_scripts, shown in ((True, PLOT), (False, "[data-plot] td:has-text('step 2')")):
        context = browser.new_context(java_script_enabled=has_scripts)
        page = context.new_page()
        page.goto(file.as_uri())
        page.wait_for_selector(shown, timeout=60_000)
        context.close()
