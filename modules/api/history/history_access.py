"""Which images and boards of the history a caller sees and may change, and how the API shows them."""

from dataclasses import dataclass
from pathlib import Path

from fastapi import Request

from modules.access.roles import NotAllowedError, Role, Sees
from modules.api.access.auth import identity_of
from modules.api.schema.reply_models import HistoryItem
from modules.errors import UnknownNameError
from modules.history.boards import Board
from modules.history.store import History, HistoryEntry

EVERYBODY = "*"
NOT_THERE = "The history has no image {}; it may have been deleted."
NO_IMAGE = "The history has no image 1767225600000000; it may have been deleted."
NO_BOARD_THERE = "There is no board {}; it may have been deleted."
MEDIA_TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".avif": "avif"}
GONE = "{}: the file is no longer at {}. Import its new folder in the History tab to have it found again."


@dataclass(frozen=True)
class HistoryAccess:
    """The history as the caller of a route sees it."""

    history: History

    def whose(self, request: Request, wanted: str | None = None) -> str | None:
        """Whose images are shown; None: everybody's. By default one's own, where there are users; to viewers, who
        have none, all that they see. Raises `NotAllowedError`."""
        identity = identity_of(request)
        if wanted is None:
            sees_all = identity.sees is Sees.ALL and not identity.role.includes(Role.USER)
            return None if sees_all or not identity.name else identity.name
        if wanted == EVERYBODY:
            return None if identity.is_admin or identity.sees is Sees.ALL else identity.name
        if not identity.may_see(wanted):
            raise NotAllowedError(f"The images of {wanted!r} are not shown to you.")
        return wanted

    def entry(self, entry_id: int, request: Request) -> HistoryEntry:
        """An image that this user sees. Raises `UnknownNameError`."""
        entry = self.history.entry(entry_id)
        if not identity_of(request).may_see(entry.user):
            raise UnknownNameError(NOT_THERE.format(entry_id))
        return entry

    def own_entry(self, entry_id: int, request: Request) -> HistoryEntry:
        """One that this user may change. Raises `UnknownNameError`, `NotAllowedError`."""
        entry = self.entry(entry_id, request)
        if not identity_of(request).may_change(entry.user):
            raise NotAllowedError(f"{entry.path.name} is another user's image; only they and admins may change it.")
        return entry

    def file_of(self, entry: HistoryEntry) -> Path:
        """Where the image is. Raises `UnknownNameError` where it is not found."""
        is_there = entry.path.is_file() and entry.path.suffix.lower() in MEDIA_TYPES
        if is_there == entry.is_missing:
            self.history.missing(entry.id, not is_there)
        if not is_there:
            raise UnknownNameError(GONE.format(entry.path.name, entry.path.parent))
        return entry.path

    def own_board(self, board_id: int, request: Request) -> Board:
        """A board that this user may change. Raises `UnknownNameError`, `NotAllowedError`."""
        board = self.history.boards.get(board_id)
        identity = identity_of(request)
        if not identity.may_see(board.user):
            raise UnknownNameError(NO_BOARD_THERE.format(board_id))
        if not identity.may_change(board.user):
            raise NotAllowedError(f"The board '{board.name}' is another user's; only they and admins may change it.")
        return board


def item(entry: HistoryEntry) -> HistoryItem:
    """An entry as the API shows it."""
    return HistoryItem.of(
        entry,
        path=str(entry.path),
        name=entry.path.name,
        starred=entry.is_starred,
        missing=entry.is_missing,
        trashed=entry.trashed_from is not None,
    )
