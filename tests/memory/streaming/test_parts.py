"""The parts that streaming is made of: files in place, order, buffers, groups in pieces."""

from pathlib import Path

import pytest
import torch
from torch import nn

from modules.errors import CheckpointError
from modules.memory.streaming.buffers import Buffers
from modules.memory.streaming.groups import PIECE_BYTES, Group, Slot
from modules.memory.streaming.order import Order
from modules.memory.streaming.source import FileRegion, RamSource, WatchedFile, read


def region(path: Path, begin: int = 8) -> FileRegion:
    return FileRegion(WatchedFile(path).open(), begin, torch.float32, torch.Size((2, 3)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"8 bytes." + torch.arange(6.0).numpy().tobytes() + b"rest")
    return path


def test_a_region_is_read_in_place(path: Path) -> None:
    assert torch.equal(read(region(path)), torch.arange(6.0).view(2, 3))


def test_a_file_that_was_removed_can_still_be_read(path: Path) -> None:
    there = region(path)
    path.unlink()
    assert torch.equal(read(there), torch.arange(6.0).view(2, 3))


def test_every_error_of_a_file_names_it_and_the_remedy(path: Path) -> None:
    there = region(path)
    path.write_bytes(bytes(36))
    with pytest.raises(CheckpointError, match=r"model\.safetensors has changed since.*load the checkpoint again"):
        read(there)
    with pytest.raises(CheckpointError, match="has become shorter"):
        read(region(path, 20))
    closed = region(path)
    closed.file.close()
    with pytest.raises(CheckpointError, match="was closed"):
        read(closed)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        WatchedFile(path.with_name("nothing")).open()


def test_order_knows_what_came_next_the_last_time() -> None:
    order = Order()
    for group in (1, 2, 3, 1):
        order.use(group)
    assert list(order.expected()) == [2, 3]
    for group in (3, 2, 1, 3, 2, 1, 3):
        order.use(group)
    assert list(order.expected())[:2] == [2, 1]
    order.forget()
    assert list(order.expected()) == []


def test_order_tells_apart_what_is_used_twice() -> None:
    order = Order()
    for group in (1, 9, 2, 9, 3, 1, 9, 2):
        order.use(group)
    assert next(order.expected()) == 9
    order.use(9)
    assert next(order.expected()) == 3


def test_order_takes_up_a_branch_that_is_left_out() -> None:
    order = Order()
    for group in (1, 2, 3, 1, 3, 1):
        order.use(group)
    assert next(order.expected()) in (2, 3)
    order.use(3)
    order.use(1)
    assert next(order.expected()) == 3


def test_a_buffer_is_used_again_but_not_while_somebody_looks_into_it() -> None:
    buffers = Buffers(1 << 20)
    first = buffers.take(100_000)
    address = first.data_ptr()
    buffers.give_back(first)
    del first
    again = buffers.take(99_000)
    assert again.data_ptr() == address
    view = again[64:128].view(torch.float32)
    buffers.give_back(again)
    other = buffers.take(99_000)
    assert other.data_ptr() != address
    view.fill_(1)
    buffers.clear()


def test_spare_buffers_are_limited() -> None:
    buffers = Buffers(150_000)
    taken = [buffers.take(100_000) for _ in range(3)]
    addresses = {buffer.data_ptr() for buffer in taken}
    while taken:
        buffers.give_back(taken.pop())
    again = [buffers.take(100_000) for _ in range(2)]
    assert sum(buffer.data_ptr() in addresses for buffer in again) >= 1
    assert Buffers(0).take(10).numel() >= 10


def test_weights_lie_aligned_in_pieces_of_limited_size() -> None:
    large = torch.empty(PIECE_BYTES // 2 - 8, dtype=torch.uint8)
    layer = nn.Linear(1, 1)
    sources = [RamSource(large), RamSource(large), RamSource(torch.empty(PIECE_BYTES + 1, dtype=torch.uint8))]
    group = Group(0, "x", [Slot("x", layer, "weight", source) for source in sources])
    assert [len(piece.slots) for piece in group.pieces] == [2, 1]
    assert group.pieces[0].offsets == [0, PIECE_BYTES // 2]
    assert group.size_bytes == PIECE_BYTES + PIECE_BYTES + 64
