"""Logging in on the page, what a role is shown, and logging out."""

from collections.abc import Iterator

import pytest
from PIL import Image
from playwright import sync_api

from modules.access.auth_file import Account, write_accounts
from modules.access.passwords import Cost, hash_password
from modules.access.roles import Role
from modules.history.store import ImageFile
from tests.fakes import fake_services
from tests.ui.browser import needs_browser, served

pytestmark = needs_browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("users") / "users.json"
    entry = hash_password("a good password", Cost(4, 1, 1))
    write_accounts(file, {role.value: Account(role.value, role, entry) for role in Role})
    services = fake_services(tmp_path_factory.mktemp("data"), auth_file=str(file))
    path = services.paths.outputs_dir / "mine.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)
    services.history.history.add([ImageFile(path, "print", 8, 8, 1, 1.0, "a cat", 1e9, user="user")])
    with served(services) as address:
        yield address
    services.dispatcher.close()


@pytest.fixture
def page(window: sync_api.Page) -> Iterator[sync_api.Page]:
    """A window without a login: a cookie is of a machine, whatever the port."""
    yield window
    window.context.clear_cookies()


def log_in(page: sync_api.Page, address: str, name: str) -> None:
    """The page of this user, with nothing of whoever was logged in before."""
    page.context.clear_cookies()
    page.goto(address)
    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.fill("#username", name)
    page.fill("#password", "a good password")
    page.click("button")
    page.wait_for_selector("#fw_user:not([hidden])")
    page.wait_for_function("document.documentElement.dataset.role")
    assert page.inner_text("#fw_user b") == name


def tabs(page: sync_api.Page) -> list[str]:
    buttons = page.locator("#tabs > .tab-wrapper button[role=tab]:visible")
    return [text.strip() for text in buttons.all_inner_texts() if text.strip()]


def test_a_user_logs_in_makes_an_image_is_told_when_the_login_ends_and_logs_out(
    page: sync_api.Page, address: str
) -> None:
    log_in(page, address, "user")
    page.wait_for_selector("#txt2img_generate")
    shown = tabs(page)
    assert {"txt2img", "History", "Queue"} <= set(shown)
    assert not {"Settings", "Checkpoint Merger", "Precision"} & set(shown)
    page.wait_for_function("document.querySelector('#setting_sd_model_checkpoint').inert")
    assert "Only an admin" in str(page.locator("#setting_sd_model_checkpoint").get_attribute("title"))
    page.wait_for_function("featherweight.tab('txt2img').hasKeptForm !== undefined")
    page.fill("#txt2img_prompt textarea", "mine")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_gallery img")
    cookies = page.context.cookies()
    page.context.clear_cookies()
    page.wait_for_selector("#fw_logged_out:has-text('your login has ended')")
    page.context.add_cookies(cookies)  # type: ignore[arg-type]  # as after a login elsewhere
    page.wait_for_selector("#fw_logged_out", state="detached")
    with page.expect_navigation(url="**/login"):
        page.click("#fw_user button")
    page.goto(address)
    assert page.url.endswith("/login")


def test_a_viewer_sees_the_history_and_an_admin_chooses_whose(page: sync_api.Page, address: str) -> None:
    log_in(page, address, "viewer")
    page.wait_for_selector("#fw_history_search", state="visible")
    assert not {"txt2img", "img2img", "Extras", "Settings"} & set(tabs(page))
    assert page.is_hidden("#fw_history [data-do=import]")
    page.wait_for_selector(".fw-history-item")  # of the user
    page.click(".fw-history-item")
    assert page.is_hidden("#fw_history_dialog .fw-history-send")
    assert page.locator("#fw_history_dialog button", has_text="Delete").is_disabled()
    log_in(page, address, "admin")
    assert {"Settings", "Checkpoint Merger"} <= set(tabs(page))
    page.click("#tab_history-button")
    page.select_option("#fw_history_user", "user")
    page.wait_for_selector(".fw-history-item")
