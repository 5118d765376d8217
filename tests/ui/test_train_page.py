"""The Train tab in a browser: what is missing is said, a training shows its curve and ends with a card."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from modules.services import Services
from tests.ui.browser import needs_browser

pytestmark = needs_browser


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        (tmp_path / f"{index}.txt").write_text(f"toy, number {index}", encoding="utf-8")
    return tmp_path


def test_a_training_is_started_and_ends_among_the_cards(page: Page, fakes: Services, images: Path) -> None:
    page.click("#tabs > .tab-wrapper button[role=tab]:has-text('Train')")
    page.click("#train_start")
    page.wait_for_selector("#train_result >> text=Give the adapter a name")
    page.fill("#train_name :is(input, textarea)", "by page")
    page.fill("#train_folder :is(input, textarea)", str(images))
    page.check("#train_preset input[value=style]")
    page.click("#train_more > button")
    for field, value in {"steps": 2, "resolution": 64, "rank": 2}.items():
        page.fill(f"#train_{field} input", str(value))
    page.locator("#train_rank input").blur()
    page.click("#train_start")
    page.wait_for_selector("#train_result >> text=by page.safetensors is ready")
    assert "held-out images" in (page.get_attribute("#train_result .fw-training-curves svg", "aria-label") or "")
    assert page.locator("#train_result .fw-training-sample img").count() == 1
    assert (fakes.paths.lora_dirs[0] / "by page.safetensors").is_file()
    assert page.is_disabled("#train_pause")
