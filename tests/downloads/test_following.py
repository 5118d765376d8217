"""Work on the pieces of a stream in threads: all of it and in order, and nothing behind a piece that failed."""

import threading

import pytest

from modules.downloads import following
from modules.downloads.following import Pieces

PIECES = [bytes([number]) for number in range(100)]


@pytest.fixture(autouse=True)
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOT_BYTES", 3)


def test_each_work_gets_all_pieces_in_order_also_where_the_block_ends_by_an_error() -> None:
    first, second = list[bytes](), list[bytes]()
    with pytest.raises(KeyError, match="of the block"), Pieces(first.append, second.append) as pieces:
        for piece in PIECES:
            pieces.put(piece)
        raise KeyError("of the block")
    assert first == second == PIECES


def test_nothing_is_done_behind_a_piece_that_failed() -> None:
    written = list[bytes]()

    def write(piece: bytes) -> None:
        if piece == PIECES[50]:
            raise OSError("the disk is full")
        written.append(piece)

    with pytest.raises(OSError, match="disk is full"), Pieces(write) as pieces:
        for piece in PIECES:
            pieces.put(piece)
    assert written == PIECES[:50]


def test_pieces_wait_where_the_work_is_slower() -> None:
    go, done = threading.Event(), list[int]()

    def put_all() -> None:
        with Pieces(lambda piece: go.wait(10)) as pieces:
            for number, piece in enumerate(PIECES):
                pieces.put(piece)
                done.append(number)

    thread = threading.Thread(target=put_all)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and len(done) < len(PIECES), "some wait"
    go.set()
    thread.join(10)
    assert len(done) == len(PIECES)
