"""Opening a folder in the file manager of this machine."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)


def show_folder(folder: Path) -> bool:
    """Whether the file manager was called; False on a machine without a screen."""
    command = {"darwin": "open", "win32": "explorer"}.get(sys.platform, "xdg-open")
    has_screen = command != "xdg-open" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not has_screen or shutil.which(command) is None:
        return False
    try:
        subprocess.Popen([command, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        log.info("The folder %s could not be opened: %s", folder, error)
        return False
    return True
