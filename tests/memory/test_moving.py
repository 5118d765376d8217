"""Moving modules with stored layers, branches and tables, and exactly back."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from modules.memory.attention import Attention, in_slices, whole
from modules.memory.changes import AllBranches, Branches
from modules.memory.layer import stored_state
from modules.memory.moving import move
from modules.memory.row_table import RowTable, look_up_in_file
from modules.memory.storage import StorageRules
from tests.memory.storing import apply_storage

CPU = torch.device("cpu")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 96)).half().requires_grad_(False)


def bits(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_half_precision_computes_wider_and_comes_back_bit_for_bit() -> None:
    module = model()
    before, parameters = bits(module), list(module.parameters())
    back = move(module, CPU, torch.float32)
    assert module(torch.ones(1, 96)).dtype == torch.float32
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    back()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(new is old for new, old in zip(module.parameters(), parameters, strict=True))


@pytest.mark.parametrize("storage", ["fp8_e4m3fn_row", "fp8_e5m2", "int8_row"])
def test_stored_layers_keep_their_bytes_and_change_what_they_compute_in(storage: str) -> None:
    module = model()
    apply_storage(module, StorageRules(storage), torch.float16)
    layer = module[0]
    state = stored_state(layer)
    assert state is not None
    state.branches = AllBranches([Branches(torch.ones(2, 96).half(), torch.ones(96, 2).half(), torch.ones(2))])
    before, stored = bits(module), layer._parameters["weight"]
    back = move(module, CPU, torch.float32)
    assert layer._parameters["weight"] is stored and stored is not None and stored.element_size() == 1
    assert layer.weight.dtype == torch.float32 and module(torch.ones(1, 96)).dtype == torch.float32
    back()
    assert state.compute_dtype == torch.float16 and layer.weight.dtype == torch.float16
    assert all(
        torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8))
        for name, tensor in module.state_dict().items()
    )


def test_a_table_in_a_file_gives_its_rows_out_in_the_other_dtype(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(torch.arange(32, dtype=torch.float16).numpy().tobytes())
    layer = nn.Embedding(8, 4)
    stat = path.stat()
    look_up_in_file(layer, RowTable(path, 0, (8, 4), torch.float16, stat.st_size, stat.st_mtime_ns), torch.float16, CPU)
    back = move(layer, CPU, torch.float32)
    assert layer(torch.tensor([1])).dtype == torch.float32
    back()
    assert layer(torch.tensor([1])).dtype == torch.float16


@pytest.mark.parametrize("shape", [(2, 3, 300), (1, 1, 7), (2, 8, 1)])
@pytest.mark.parametrize("count", [1, 4, 64, 1000])
def test_attention_in_slices_is_that_of_the_whole(shape: tuple[int, int, int], count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(*shape, 16, generator=generator)
    key, value = (torch.randn(*shape[:2], 33, 16, generator=generator) for _ in range(2))
    largest = 0

    def counting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, query.shape[1] * query.shape[2])
        return whole(query, key, value)

    attention: Attention = in_slices(counting, count)
    torch.testing.assert_close(attention(query, key, value), whole(query, key, value), rtol=1e-5, atol=1e-6)
    if count >= 64 and shape[2] == 300:
        assert largest <= 75  # one head at a time, its queries in four


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_to_a_card_and_back() -> None:
    module = model()
    apply_storage(module, StorageRules("fp8_e4m3fn_row"), torch.float16)
    before = bits(module)
    back = move(module, torch.device("cuda"))
    assert module(torch.ones(1, 96, device="cuda")).device.type == "cuda"
    back()
    assert all(
        torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8))
        for name, tensor in module.state_dict().items()
    )
