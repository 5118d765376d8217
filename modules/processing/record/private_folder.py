"""Folders in a place where others may write too: only what nobody else can have put there is read as our own."""

import os
import stat
from pathlib import Path

NOT_OURS = 0o077  # permissions of the group and of others


def make_private(folder: Path) -> None:
    """Have a folder that only this user reads and writes; raises OSError where somebody else's is in its place."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        why = why_not_private(folder)
        if why:
            raise PermissionError(f"{folder} {why}") from None


def why_not_private(folder: Path) -> str:
    """Why a folder is not this user's own, to follow its name; "" when it is: then it is closed to others now."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is a link or no folder"
    if os.name != "posix":
        return ""  # the temporary folder is the user's own
    if found.st_uid != os.geteuid():
        return "belongs to another user"
    if found.st_mode & NOT_OURS:
        folder.chmod(0o700)
    return ""


def is_own_file(path: Path) -> bool:
    """Whether a path names a file itself: no link, under no other name, and this user's."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_ours = os.name != "posix" or (found.st_uid == os.geteuid() and found.st_nlink == 1)
    return stat.S_ISREG(found.st_mode) and is_ours
