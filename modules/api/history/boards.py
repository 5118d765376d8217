"""The boards of the history over HTTP: folders of images that users make, and which image lies on which."""

from fastapi import APIRouter, Request
from pydantic import Field

from modules.api.access.auth import identity_of
from modules.api.history.history_access import NO_IMAGE, HistoryAccess, item
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import BoardItem, HistoryItem
from modules.api.schema.schemas import Tolerant
from modules.services import Services

MAX_CHOSEN = 1000
NO_SUCH_BOARD = "There is no board 7; it may have been deleted."
TAKEN = "There is a board 'Portraits' already; choose another name."


class BoardNameBody(Tolerant):
    """The name of a new board."""

    name: str = Field(max_length=1000, examples=["Portraits"])


class BoardBody(Tolerant):
    """One board."""

    id: int = Field(examples=[7])


class RenameBoardBody(BoardBody):
    """A board's new name."""

    name: str = Field(max_length=1000, examples=["Portraits"])


class PutBody(Tolerant):
    """Images by their numbers, and the board that they go to; null: none."""

    ids: list[int] = Field(max_length=MAX_CHOSEN, examples=[[1767225600000000]])
    board: int | None = Field(default=None, examples=[7])


def board_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/history/boards and what changes boards."""
    routes = APIRouter(prefix="/featherweight/v1/history/boards", tags=["history"])
    history = services.history.history
    access = HistoryAccess(history)

    @routes.get("")
    def boards(request: Request, user: str | None = None) -> list[BoardItem]:
        """The boards by name, with how many images lie on each. `user`: whose, `*` for everybody's that one may see;
        without it one's own. GET /featherweight/v1/history?board=7 gives the images of one, 0 those on no board."""
        return [BoardItem.of(board) for board in history.boards.all(access.whose(request, user))]

    @routes.post("", **documented(errors={422: TAKEN}))
    def create(body: BoardNameBody, request: Request) -> BoardItem:
        """Make an empty board."""
        return BoardItem.of(history.boards.create(body.name, identity_of(request).name))

    @routes.post("/rename", **documented(errors={404: NO_SUCH_BOARD, 422: TAKEN}))
    def rename(body: RenameBoardBody, request: Request) -> BoardItem:
        """Give a board another name."""
        return BoardItem.of(history.boards.rename(access.own_board(body.id, request).id, body.name))

    @routes.post("/remove", **documented(errors={404: NO_SUCH_BOARD}))
    def remove(body: BoardBody, request: Request) -> list[BoardItem]:
        """Delete a board; its images stay in the history. Answers with the boards that are left."""
        history.boards.remove(access.own_board(body.id, request).id)
        return boards(request)

    @routes.post("/put", **documented(errors={404: NO_IMAGE}))
    def put(body: PutBody, request: Request) -> list[HistoryItem]:
        """Move images to a board, or off their boards; no file is moved."""
        board = None if body.board is None else access.own_board(body.board, request).id
        chosen = [access.own_entry(entry_id, request).id for entry_id in body.ids]
        return [item(entry) for entry in history.put(chosen, board)]

    return routes
