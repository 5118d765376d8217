"""When the browser is opened at the start."""

import pytest

from modules.cli.browser import opens_browser
from modules.flags.flags import Flags

SCREEN = {"DISPLAY": ":0"}


@pytest.mark.parametrize(
    ("flags", "setting", "environment", "expected"),
    [
        ({}, "Local", SCREEN, True),
        ({}, "Local", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ({}, "Local", {}, False),
        ({}, "Disable", SCREEN, False),
        ({"listen": True}, "Local", SCREEN, False),
        ({"server_name": "0.0.0.0"}, "Local", SCREEN, False),
        ({"listen": True}, "Remote", SCREEN, True),
        ({"autolaunch": True}, "Disable", {}, True),
        ({"nowebui": True, "autolaunch": True}, "Local", SCREEN, False),
    ],
)
def test_it_opens_where_it_is_wanted_and_can_be_seen(
    flags: dict[str, bool | str], setting: str, environment: dict[str, str], expected: bool
) -> None:
    assert opens_browser(Flags(**flags), setting, environment, "linux") is expected  # type: ignore[arg-type]


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_desktops_need_no_display_variable(platform: str) -> None:
    assert opens_browser(Flags(), "Local", {}, platform)
