"""Embedding tables that stay in their file."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.errors import CheckpointError
from modules.memory.row_table import STATE, RowTable, look_up_in_file
from modules.memory.storage import stored_bytes


def table_of(path: Path, weight: torch.Tensor) -> RowTable:
    path.write_bytes(b"head" + weight.contiguous().view(torch.uint8).numpy().tobytes())
    stat = path.stat()
    return RowTable(path, 4, (weight.shape[0], weight.shape[1]), weight.dtype, stat.st_size, stat.st_mtime_ns)


def embedding(path: Path) -> tuple[nn.Embedding, torch.Tensor]:
    weight = torch.randn(50, 16).half()
    layer = nn.Embedding(50, 16)
    look_up_in_file(layer, table_of(path, weight), torch.float32, torch.device("cpu"))
    return layer, weight.float()


def test_look_ups_are_exact(tmp_path: Path) -> None:
    layer, weight = embedding(tmp_path / "table")
    numbers = torch.tensor([[3, 49, 0, 3], [1, 1, 2, 49]])
    assert torch.equal(layer(numbers), weight[numbers])


def test_it_weighs_nothing_but_can_be_read_whole(tmp_path: Path) -> None:
    layer, weight = embedding(tmp_path / "table")
    assert stored_bytes(layer) == 0
    assert sum(p.numel() for p in layer.parameters()) == weight.numel()
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.state_dict()["weight"], weight)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a program cannot see what the page cache holds")
def test_no_look_up_waits_for_the_disk_once_it_is_in_the_cache(tmp_path: Path) -> None:
    table = table_of(tmp_path / "table", torch.randn(20_000, 64).half())
    table.bring_to_cache()
    handle = os.open(table.path, os.O_RDONLY)
    try:
        assert all(os.preadv(handle, [bytearray(1)], at, os.RWF_NOWAIT) for at in range(0, table.size_bytes, 4096))
    finally:
        os.close(handle)


def test_a_file_that_has_gone_or_changed_is_an_error_that_names_it(tmp_path: Path) -> None:
    layer, _ = embedding(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(CheckpointError, match=r"model\.safetensors has changed"):
        layer(torch.tensor([1]))
    table = layer.__dict__[STATE][0]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read any more"):
        table.bring_to_cache()
    with pytest.raises(CheckpointError, match="load the checkpoint again"):
        layer(torch.tensor([1]))
