"""Whether the page is opened in a browser when the program starts."""

import os
import sys
from collections.abc import Mapping

from modules.flags.flags import Flags

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def opens_browser(
    flags: Flags, setting: str, environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> bool:
    """Return whether a browser is opened: by `--autolaunch`, or by the setting `auto_launch_browser`; not for
    --nowebui, and not where no screen is."""
    if flags.nowebui:
        return False
    if flags.autolaunch:
        return True
    has_screen = platform in ("win32", "darwin") or bool(
        environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    )
    is_wanted = setting == "Remote" or (setting == "Local" and flags.host in LOCAL_HOSTS)
    return has_screen and is_wanted
