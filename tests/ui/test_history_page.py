"""The History tab in a browser: boards, choosing, comparing two images, going from one to the next, making one again,
the trash, tags and importing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright import sync_api

from modules.jobs.job import Job
from modules.services import Services
from tests.history.test_history import png
from tests.ui.browser import needs_browser
from tests.ui.dragging import drag

pytestmark = needs_browser
DIALOG = "#fw_history_dialog"
TEXT = "a {} lantern, at night\nSteps: {}, Sampler: Euler, CFG scale: 7.0, Seed: 1, Size: 64x64"
NAMES = ("copper", "golden", "silver")  # the newest first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images, of which two are equal in size."""
    folder = tmp_path_factory.mktemp("lanterns")
    for number, name in enumerate(reversed(NAMES)):
        png(folder / f"{name}.png", (60 * number, 20, 10), TEXT.format(name, 10 + number))
    return folder


def import_folder(page: sync_api.Page, fakes: Services, folder: Path) -> None:
    """Press the button of the History tab, and wait until all images are in."""
    page.once("dialog", lambda asked: asked.accept(str(folder)))
    page.get_by_role("tab", name="History", exact=True).first.click()
    page.click("#fw_history [data-do=import]")
    assert fakes.history.importer.wait(60)


@pytest.fixture
def tab(page: sync_api.Page, fakes: Services, folder: Path) -> Iterator[sync_api.Page]:
    """The tab with these images; a test's boards are removed."""
    if not fakes.history.history.count("lantern"):
        import_folder(page, fakes, folder)
    page.get_by_role("tab", name="History", exact=True).first.click()
    page.fill("#fw_history_search", "lantern")
    sync_api.expect(page.locator(".fw-history-item")).to_have_count(3)
    yield page
    while page.locator("dialog[open]").count():
        page.keyboard.press("Escape")
    page.locator(".fw-board").first.click()
    for board in fakes.history.history.boards.all():
        fakes.history.history.boards.remove(board.id)
    page.fill("#fw_history_search", "")


def title(page: sync_api.Page) -> sync_api.Locator:
    return page.locator(f"{DIALOG} h2")


def test_images_are_dragged_on_a_board_that_is_renamed_and_deleted(tab: sync_api.Page, fakes: Services) -> None:
    tab.once("dialog", lambda asked: asked.accept("Warm <b>light</b>"))
    tab.click(".fw-boards button:has-text('New board')")
    board = tab.locator(".fw-board", has_text="Warm <b>light</b>")
    cell = tab.locator(".fw-history-cell").first
    drag(cell, board)
    sync_api.expect(board.locator("small")).to_have_text("1")
    tab.locator(".fw-history-choose").nth(1).check(force=True)
    tab.locator(".fw-history-item").nth(2).click(modifiers=["Control"])
    sync_api.expect(tab.locator(".fw-history-chosen b")).to_have_text("Chosen: 2")
    tab.select_option(".fw-history-chosen select", label="Warm <b>light</b>")
    sync_api.expect(board.locator("small")).to_have_text("3")
    board.click()
    sync_api.expect(board).to_have_attribute("aria-pressed", "true")
    sync_api.expect(tab.locator(".fw-history-item")).to_have_count(3)
    drag(cell, tab.locator(".fw-board", has_text="Not on a board"))
    sync_api.expect(tab.locator(".fw-history-item")).to_have_count(2)
    tab.once("dialog", lambda asked: asked.accept("Lanterns"))
    tab.click(".fw-boards button:has-text('Rename')")
    sync_api.expect(tab.locator(".fw-board", has_text="Lanterns")).to_be_visible()
    tab.fill("#fw_history_search", "lantern board:lanterns")
    sync_api.expect(tab.locator(".fw-history-item")).to_have_count(2)
    tab.once("dialog", lambda asked: asked.accept())
    tab.click(".fw-boards button:has-text('Delete board')")
    sync_api.expect(tab.locator(".fw-board")).to_have_count(2)
    assert fakes.history.history.count("lantern") == 3


def test_arrows_go_from_image_to_image(tab: sync_api.Page) -> None:
    tab.locator(".fw-history-item").first.click()
    names = [(title(tab).text_content() or "").split(" ")[0]]
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
        sync_api.expect(title(tab)).not_to_contain_text(names[-1])
        names.append((title(tab).text_content() or "").split(" ")[0])
    tab.keyboard.press("ArrowRight")
    assert len(set(names)) == 3
    sync_api.expect(tab.locator(f"{DIALOG} [data-step='1']")).to_be_disabled()
    tab.click(f"{DIALOG} [data-step='-1']")
    sync_api.expect(title(tab)).to_contain_text(names[1])
    tab.fill(f"{DIALOG} input[aria-label=Tags]", "warm, night")
    tab.keyboard.press("ArrowLeft")  # moves in the text
    sync_api.expect(title(tab)).to_contain_text(names[1])
    tab.click(f"{DIALOG} button:has-text('Save tags')")
    sync_api.expect(tab.locator(f"{DIALOG} [role=status]")).to_have_text("Tags saved.")
    tab.keyboard.press("Escape")
    tab.fill("#fw_history_search", "lantern tag:warm")
    sync_api.expect(tab.locator(".fw-history-item")).to_have_count(1)


def test_two_images_are_compared(tab: sync_api.Page) -> None:
    tab.locator(".fw-history-item").nth(0).click()
    tab.click(f"{DIALOG} button:has-text('Choose to compare')")
    tab.keyboard.press("ArrowRight")
    tab.click(f"{DIALOG} button:has-text('Compare with the chosen one')")
    box = tab.locator("#fw_history_compare")
    rows = box.locator("tbody tr").all_inner_texts
    sync_api.expect(box.locator("tbody tr")).to_have_count(2)
    assert [row.split("\t")[0] for row in rows()] == ["Prompt", "Steps"]
    assert len(box.locator("mark").all_inner_texts()) == 2
    sync_api.expect(box.locator("[role=status]")).to_contain_text("PSNR")
    tab.keyboard.press("Tab")
    box.locator("input[type=range]").fill("20")
    assert "20%" in (box.locator(".fw-compare-slider").get_attribute("style") or "")
    box.get_by_role("button", name="Difference").click()
    difference = box.locator(".fw-compare-stage img")
    sync_api.expect(difference).to_have_count(1)
    tab.wait_for_function("document.querySelector('.fw-compare-stage img').naturalWidth === 8")
    tab.keyboard.press("Escape")
    tab.keyboard.press("Escape")
    tab.click("button:has-text('Clear selection')")


def test_an_image_is_made_again_with_several_values(tab: sync_api.Page, fakes: Services) -> None:
    fakes.queue.pause()
    try:
        tab.locator(".fw-history-item").first.click()
        tab.click(f"{DIALOG} button:has-text('Vary a parameter')")
        tab.fill(f"{DIALOG} .fw-again input", "0, 3")
        tab.click(f"{DIALOG} button:has-text('Enqueue')")
        sync_api.expect(tab.locator(f"{DIALOG} .fw-bad")).to_contain_text("steps is 0; allowed is 1 to 1000")
        tab.fill(f"{DIALOG} .fw-again input", "2, 3 4")
        tab.click(f"{DIALOG} button:has-text('Enqueue')")
        sync_api.expect(tab.locator(f"{DIALOG} [role=status]")).to_contain_text("Queued: 3")
        tab.select_option(f"{DIALOG} .fw-again select[aria-label=Parameter]", label="Sampling method")
        tab.select_option(f"{DIALOG} .fw-again select[multiple]", label="Heun")
        tab.click(f"{DIALOG} button:has-text('Enqueue')")
        sync_api.expect(tab.locator(f"{DIALOG} [role=status]")).to_contain_text("waiting")
        jobs = [entry.request for entry in fakes.queue.first(10) if isinstance(entry, Job)]
        assert [(job.steps, job.sampler, job.seed) for job in jobs[:3]] == [(n, "Euler", 1) for n in (2, 3, 4)]
        assert jobs[3].sampler == "Heun" and jobs[3].prompt.endswith("lantern, at night")
    finally:
        fakes.queue.clear()
        fakes.queue.pause(False)


def hold(page: sync_api.Page, address: str) -> list[sync_api.Route]:
    """Requests to this address from now on; each waits until its route goes on."""
    held: list[sync_api.Route] = []
    page.route(address, lambda route: held.append(route))
    return held


def test_delete_goes_by_the_search_that_is_typed(tab: sync_api.Page, fakes: Services, tmp_path: Path) -> None:
    png(tmp_path / "kite.png", (1, 2, 3), "a kite\nSteps: 5, Sampler: Euler, Size: 64x64")
    import_folder(tab, fakes, tmp_path)
    tab.fill("#fw_history_search", "")
    kite = tab.locator(".fw-history-item[aria-label='a kite']")
    kite.wait_for()
    held = hold(tab, "**/history?q=kite*")
    with tab.expect_request("**/history?q=kite*"):
        tab.fill("#fw_history_search", "kite")
    kite.click()
    with tab.expect_response("**/history/delete"):
        tab.click(f"{DIALOG} button:has-text('Delete')")
    while held:
        held.pop().continue_()
    tab.unroute("**/history?q=kite*")
    tab.wait_for_selector(DIALOG, state="detached")  # not one of the images that were found before
    said = tab.locator("#fw_history .fw-history-status")
    sync_api.expect(said).to_have_text("kite.png is in the trash.")
    with tab.expect_response("**/history?q=kite*"):  # it is looked now and then whether there are other images
        tab.dispatch_event("#fw_history_search", "input")
    sync_api.expect(said).to_have_text("kite.png is in the trash.")
    tab.fill("#fw_history_search", "kites")
    sync_api.expect(said).to_have_text("Nothing found.")
    assert not (tmp_path / "kite.png").exists()


def test_what_became_of_a_delete_is_said_beside_the_next_image(tab: sync_api.Page, fakes: Services) -> None:
    status = tab.locator(f"{DIALOG} .fw-history-status")
    tab.locator(".fw-history-item").first.click()
    name = f"{NAMES[0]}.png"
    held = hold(tab, "**/history/delete")
    tab.click(f"{DIALOG} button:has-text('Delete')")
    sync_api.expect(tab.locator(f"{DIALOG} button:has-text('Delete')")).to_be_disabled()
    tab.keyboard.press("ArrowRight")
    sync_api.expect(title(tab)).to_contain_text(NAMES[1])
    held[0].fulfill(status=503, json={"errors": "The disk is full."})
    sync_api.expect(status).to_have_text(f"{name}: The disk is full.")
    tab.unroute("**/history/delete")
    tab.keyboard.press("ArrowLeft")
    sync_api.expect(title(tab)).to_contain_text(NAMES[0])
    tab.click(f"{DIALOG} button:has-text('Delete')")
    sync_api.expect(title(tab)).to_contain_text(NAMES[1])
    sync_api.expect(status).to_have_text(f"{name} is in the trash.")
    for entry in fakes.history.history.search("lantern is:trashed"):
        if entry.path.name == name:
            fakes.history.history.restore(entry.id)


def test_chosen_images_go_to_the_trash_and_come_back(tab: sync_api.Page, folder: Path) -> None:
    tab.locator(".fw-history-choose").nth(0).check(force=True)
    tab.locator(".fw-history-item").nth(2).click(modifiers=["Shift"])
    tab.click(".fw-history-chosen button:has-text('Star')")
    sync_api.expect(tab.locator(".fw-history-star")).to_have_count(3)
    tab.click(".fw-history-chosen button:has-text('Delete')")
    sync_api.expect(tab.locator(".fw-history-item")).to_have_count(0)
    assert not list(folder.glob("*.png"))
    tab.fill("#fw_history_search", "")
    tab.click("#fw_history [data-do=trashed]")
    cells = tab.locator(".fw-history-cell", has=tab.locator("[aria-label*=lantern]"))
    sync_api.expect(cells).to_have_count(3)
    for place in range(3):
        cells.nth(place).locator(".fw-history-choose").check(force=True)
    tab.click(".fw-history-chosen button:has-text('Restore')")
    sync_api.expect(cells).to_have_count(0)
    assert len(list(folder.glob("*.png"))) == 3
    tab.click("#fw_history [data-do=trashed]")
    sync_api.expect(cells).to_have_count(3)
