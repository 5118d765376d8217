"""The Train tab in a browser: what is missing is said, a training shows its curve and ends with a card."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from lib_training.sampling import UNUSUAL
from lib_training.stepping import Trainer
from lib_training.work import TrainingWork
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from tests.ui.axe_checks import assert_nothing_serious, axe
from tests.ui.browser import needs_browser

pytestmark = needs_browser
__all__ = ["axe"]  # a fixture
TRAINED_MS = 240_000
"""For what a real training has to do first."""
STEP_S = 0.3
"""Of a step that is slowed."""


def write_images(folder: Path) -> Path:
    """Five with captions; gives the folder."""
    for index in range(5):
        pixels = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"toy, number {index}", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the images that a training draws: of what they show, nothing is asked here."""
    monkeypatch.setattr("lib_training.run.UNUSUAL", replace(UNUSUAL, steps=2))


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a training that only has to go on: its steps leave the cores to the page."""
    train_step = Trainer.train_step

    def later(*args: Any, **options: Any) -> Any:
        time.sleep(STEP_S)
        return train_step(*args, **options)

    monkeypatch.setattr(Trainer, "train_step", later)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path)


def fill(page: Page, name: str, folder: Path, steps: int) -> None:
    page.fill("#train_name :is(input, textarea)", name)
    page.fill("#train_folder :is(input, textarea)", str(folder))
    page.check("#train_preset input[value=style]")
    if not page.is_visible("#train_steps input"):
        page.click("#train_more > button")
    for field, value in {"steps": steps, "resolution": 64, "rank": 2}.items():
        page.fill(f"#train_{field} input", str(value))
    page.locator("#train_rank input").blur()


def test_a_training_is_started_and_ends_among_the_cards(page: Page, fakes: Services, images: Path) -> None:
    page.click("#tabs > .tab-wrapper button[role=tab]:has-text('Train')")
    page.click("#train_start")
    page.wait_for_selector("#train_refusal >> text=Enter a name for the adapter")
    fill(page, "by page", images, 1)
    page.click("#train_start")
    page.wait_for_selector("#train_result >> text=by page.safetensors is ready", timeout=TRAINED_MS)
    assert "held-out images" in (page.get_attribute("#train_result .fw-training-curves svg", "aria-label") or "")
    assert page.locator("#train_result .fw-training-sample img").count() == 1
    assert (fakes.paths.lora_dirs[0] / "by page.safetensors").is_file()
    assert page.is_disabled("#train_pause")


def test_a_paused_training_is_resumed_by_the_same_button_and_lets_images_in(
    page: Page, fakes: Services, images: Path, slow_steps: None, axe: str
) -> None:
    """Also what axe says of a training that runs, and of one that is paused."""
    fakes.queue.repeats.add(TrainingWork(fakes).starters)  # the queue of these tests is not the one that was built
    page.click("#tabs > .tab-wrapper button[role=tab]:has-text('Train')")
    fill(page, "cut off", images, 2000)
    page.click("#train_start")
    page.wait_for_selector("#train_result >> text=/step [2-9]\\d* of 2000/", timeout=TRAINED_MS)
    image = fakes.queue.submit(GenerationRequest(steps=1, width=64, height=64))
    assert image.wait(120) and image.is_let_in
    page.wait_for_selector("#train_start:disabled")  # nothing is started beside a training
    assert_nothing_serious(page, axe, "#tab_train")
    page.click("#train_pause:has-text('Pause')")
    page.wait_for_selector("#train_result >> text=/Paused at step \\d+/", timeout=TRAINED_MS)
    assert_nothing_serious(page, axe, "#tab_train")
    page.click("#train_pause:has-text('Resume')")
    page.wait_for_selector("#train_result >> text=Resumed at step", timeout=TRAINED_MS)
    page.click("#train_pause:has-text('Pause')")
    page.wait_for_selector("#train_result >> text=/Paused at step \\d+/", timeout=TRAINED_MS)
    assert (fakes.paths.lora_dirs[0] / "cut off.training").is_file()


def test_captions_are_looked_at_replaced_and_saved(page: Page, images: Path) -> None:
    page.click("#tabs > .tab-wrapper button[role=tab]:has-text('Train')")
    if not page.is_visible("#train_captions_look"):
        page.click("#train_captions button.label-wrap")
    page.fill("#train_captions_folder :is(input, textarea)", str(images))
    page.click("#train_captions_look")
    page.wait_for_selector("#train_captions_table >> text=toy, number 4")
    page.wait_for_selector("#train_captions_gallery img")
    page.fill("#train_captions_find :is(input, textarea)", "Toy")
    page.fill("#train_captions_replace :is(input, textarea)", "doll")
    page.click("#train_captions_replace_all")
    page.wait_for_selector("#train_captions_table >> text=doll, number 4")
    page.click("#train_captions_save")
    page.wait_for_selector("#train_captions_report >> text=5 captions were saved.")
    assert (images / "4.txt").read_text(encoding="utf-8").strip() == "doll, number 4"
