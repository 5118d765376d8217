"""The Checkpoint Merger tab in a real browser: a merge, its progress, a reload, cancelling, and refusals."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright import sync_api
from safetensors.torch import load_file

from modules.jobs.tasks import Task, TaskSpec
from modules.services import Services
from tests.models.merging.toys import UNET, Toys, toy
from tests.ui.browser import needs_browser, wait_until_open

pytestmark = needs_browser
LIST = "ul[role=listbox]"


@pytest.fixture(scope="module")
def folder(fakes: Services) -> Iterator[Path]:
    """The folder of checkpoints of the shared program, with three toys."""
    folder = fakes.paths.checkpoint_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    Toys(folder).add_three()
    yield folder
    for file in set(folder.iterdir()) - before:
        file.unlink()


@pytest.fixture(scope="module")
def merger(shared_page: sync_api.Page, folder: Path) -> sync_api.Page:
    shared_page.reload()  # without models that were chosen when tests of this file ran here before
    wait_until_open(shared_page)
    show_tab(shared_page)
    for letter in "ABC":
        shared_page.click(f"#refresh_checkpoint_{letter}")
    return shared_page


def show_tab(page: sync_api.Page) -> None:
    page.click("button[role=tab]:has-text('Checkpoint Merger')")
    page.wait_for_selector("#modelmerger_merge", state="visible")


def choose(page: sync_api.Page, field: str, text: str) -> None:
    page.click(f"#{field} input")
    page.click(f"{LIST} li:has-text('{text}')")


def test_a_merge_on_the_page_is_a_new_checkpoint_everywhere(merger: sync_api.Page, folder: Path) -> None:
    page = merger
    page.click("#modelmerger_merge")
    page.wait_for_selector("#modelmerger_result :text('needs a model A')")
    choose(page, "modelmerger_primary_model_name", "a.safetensors")
    choose(page, "modelmerger_secondary_model_name", "b.safetensors")
    choose(page, "modelmerger_storage", "fp32")
    page.fill("#modelmerger_custom_name textarea, #modelmerger_custom_name input", "mine")
    page.fill("#modelmerger_interp_amount input[type=number]", "0.5")
    page.click("#modelmerger_merge")
    page.wait_for_selector("#modelmerger_result :text('mine.safetensors is ready')")
    tensors = load_file(folder / "mine.safetensors")
    assert torch.equal(tensors[UNET], toy(0)[UNET].float() * 0.5 + toy(1)[UNET].float() * 0.5)
    for field in ("setting_sd_model_checkpoint", "modelmerger_tertiary_model_name"):
        if field.startswith("modelmerger"):
            page.click("#modelmerger_interp_method label:has-text('Add difference')")
            page.wait_for_selector("#modelmerger_interp_description :text('A + (B − C) × M')")
            page.wait_for_selector(f"#{field} input:enabled")
        page.click(f"#{field} input")
        page.wait_for_selector(f"{LIST} li:has-text('mine.safetensors')")
        page.keyboard.press("Escape")
    page.click("#modelmerger_merge")
    page.wait_for_selector("#modelmerger_result :text('needs a model C')")


def test_progress_survives_a_reload_and_can_be_cancelled(merger: sync_api.Page, fakes: Services) -> None:
    page = merger

    def work(task: Task) -> dict[str, object]:
        for _ in range(600):
            task.progress(1, 4, "1 of 4 tensors")
            time.sleep(0.05)
        return {}

    task = fakes.queue.submit_spec(TaskSpec("merge", "Merging long.safetensors", work))
    page.reload()
    show_tab(page)
    page.wait_for_selector("#modelmerger_result [role=progressbar]")
    assert "Merging long.safetensors: 25% · 1 of 4 tensors" in page.inner_text("#modelmerger_result")
    page.click("#modelmerger_cancel:enabled")
    page.wait_for_selector("#modelmerger_result :text('Cancelled by the user')")
    page.wait_for_selector("#modelmerger_cancel:disabled", state="attached")
    assert task.wait(120)


def test_metadata_of_the_chosen_models_is_read(merger: sync_api.Page, folder: Path) -> None:
    page = merger
    Toys(folder).add("told.safetensors", toy(9), {"author": "me"})
    page.click("#refresh_checkpoint_A")
    choose(page, "modelmerger_primary_model_name", "told.safetensors")
    page.click("#modelmerger_metadata button:has-text('Metadata')")
    page.click("#modelmerger_read_metadata")
    page.wait_for_function(
        "[...document.querySelectorAll('textarea')].some(t => t.value.includes('\"author\": \"me\"'))"
    )
