"""axe-core's rules in a page: by default in the light theme, in thorough runs in both."""

import shutil
import subprocess
from pathlib import Path

import pytest
from playwright import sync_api

from tests.thorough import is_thorough

AXE = Path(__file__).parent / "axe"
NPM = shutil.which("npm")
INSTALL_S = 600
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
COLORS = {"type": "rule", "values": ["color-contrast"]}
"""For the dark theme after the light one, between which nothing else differs."""
SERIOUS = """async ([script, within, rules]) => {
  if (!window.axe) (0, eval)(script);
  const hidden = [...document.querySelectorAll(".tabitem")].filter((tab) => !tab.offsetParent);
  const found = await axe.run({ include: [within], exclude: hidden }, { resultTypes: ["violations"], runOnly: rules });
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}"""


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's script, as the lock file pins it."""
    script = AXE / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if NPM is None:
            pytest.skip("Node.js is not installed (apt-get install nodejs npm)")
        words = [NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(words, cwd=AXE, capture_output=True, text=True, timeout=INSTALL_S)
        if done.returncode != 0:
            pytest.skip(f"npm could not install axe-core (no network?): {done.stderr.strip()[-300:]}")
    return script.read_text(encoding="utf-8")


def set_theme(page: sync_api.Page, theme: str) -> None:
    if (theme == "dark") is not page.evaluate("document.body.classList.contains('dark')"):
        page.evaluate("document.querySelector('#fw_theme').click()")


def assert_nothing_serious(page: sync_api.Page, axe: str, within: str = "body") -> None:
    """Look at what the page shows at this moment. Its animations are off: no colors are halfway between two."""
    page.emulate_media(reduced_motion="reduce")
    found = page.evaluate(SERIOUS, [axe, within, RULES])
    assert found == [], f"light: {found}"
    if is_thorough():
        set_theme(page, "dark")
        assert page.evaluate(SERIOUS, [axe, within, COLORS]) == [], "dark"
        set_theme(page, "light")
