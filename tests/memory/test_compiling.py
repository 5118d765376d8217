"""Compiled blocks: the same output, hooks and other weights beside them, and what happens where compiling fails."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.compiling import (
    CACHE_VARIABLE,
    THREADS_VARIABLE,
    CompiledBlocks,
    compiler_problem,
    keep_compiled_in,
    stored_problem,
)
from modules.memory.formats.format import FORMATS
from modules.memory.hook_chain import HookOrder, hooks_of, register_hook
from modules.memory.int8_matmul import multiply_in_int8
from modules.memory.layer import manage, put, stored_state

CPU = torch.device("cpu")


class Block(nn.Module):
    """A layer with something pointwise around it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.layer(self.norm(x)))


class Model(nn.Module):
    """Blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks = nn.Linear(32, 32), nn.Sequential(Block(), Block())
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(self.first(x))
        return made


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1))


def counting() -> tuple[CompiledBlocks, list[int]]:
    """Blocks that are traced and not compiled, and the number of graphs so far as a list with an entry for each."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(len(inputs))
        forward: Callable[..., Any] = graph.forward
        return forward

    return CompiledBlocks(backend=backend), graphs


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        made: Tensor = model(x)
        return made


def test_blocks_of_a_class_are_compiled_once_for_a_shape_and_kept_over_jobs(model: Model, x: Tensor) -> None:
    compiled, graphs = counting()
    true, true_wide = run(model, x), run(model, x.repeat(1, 2, 1))
    for _ in range(2):
        with compiled.around(model, ["Block"]) as count:
            assert count == 2
            torch.testing.assert_close(run(model, x), true)
            torch.testing.assert_close(run(model, x), true)
    assert len(graphs) == 1
    with compiled.around(model, ["Block"]):
        torch.testing.assert_close(run(model, x.repeat(1, 2, 1)), true_wide)
    assert len(graphs) == 2
    assert not any(hooks_of(block) for block in model.blocks)
    with compiled.around(model, ["Another"]) as count:
        assert count == 0


def test_other_weights_and_hooks_take_effect(model: Model, x: Tensor) -> None:
    compiled, _ = counting()
    block: Any = model.blocks[0]
    with compiled.around(model, ["Block"]):
        before = run(model, x)
        block.layer.weight.data = block.layer.weight + 0.1  # as a LoRA is merged
        changed = run(model, x)
        handle = register_hook(block, lambda module, inner, x: inner(x) * 2, HookOrder.ADAPTER)
        hooked = run(model, x)
        handle.remove()
    assert not torch.allclose(before, changed) and not torch.allclose(hooked, changed)
    torch.testing.assert_close(changed, run(model, x))


def test_stored_weights_are_decoded_as_ever(model: Model, x: Tensor) -> None:
    for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
        storage = FORMATS.get("fp8_e4m3fn_row")
        encoded = storage.encode(layer.weight)
        put(layer, "weight", encoded.data, encoded.scale)
        manage(layer, {"weight": storage}, torch.float32)
    assert stored_problem(model) is None
    true = run(model, x)
    compiled, graphs = counting()
    with compiled.around(model, ["Block"]):
        torch.testing.assert_close(run(model, x), true)
    assert graphs and compiled.problem is None


def test_layers_that_multiply_in_8_bits_or_are_streamed_are_left_alone(model: Model) -> None:
    assert stored_problem(model) is None
    storage, layer = FORMATS.get("int8_row"), model.first
    encoded = storage.encode(layer.weight)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": storage}, torch.float32)
    assert multiply_in_int8(layer)
    assert stored_problem(model) == "its layers multiply in 8 bits"
    state: Any = stored_state(layer)
    state.product, state.fetch = None, lambda layer, name: None
    assert stored_problem(model) == "its weights are streamed"


def test_where_compiling_fails_blocks_compute_as_they_are_and_one_notice_says_so(model: Model, x: Tensor) -> None:
    def backend(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        raise OSError("g++: internal compiler error")

    compiled = CompiledBlocks(backend=backend)
    told: list[str] = []
    true = run(model, x)
    for _ in range(2):
        with compiled.around(model, ["Block"], told.append):
            assert torch.equal(run(model, x), true)
    assert len(told) == 1 and "no effect" in told[0] and "internal compiler error" in told[0]
    assert compiled.problem is not None


def test_errors_of_the_block_itself_are_raised(model: Model, x: Tensor) -> None:
    compiled, _ = counting()
    with compiled.around(model, ["Block"]), pytest.raises(RuntimeError, match=r"shape|size"):
        run(model.blocks, x[..., :16])


def test_nothing_is_compiled_in_training(model: Model, x: Tensor) -> None:
    compiled, graphs = counting()
    with compiled.around(model, ["Block"]):
        model(x)
    assert graphs == []


def test_a_compiler_is_needed() -> None:
    nothing: Callable[[str], str | None] = lambda name: None  # noqa: E731
    assert "C++ compiler" in str(compiler_problem(CPU, nothing, {}))
    assert compiler_problem(CPU, lambda name: "/bin/g++" if name == "g++" else None, {}) is None
    assert compiler_problem(CPU, lambda name: "/opt/mine" if name == "mine" else None, {"CXX": "mine"}) is None
    assert "mps" in str(compiler_problem(torch.device("mps"), nothing, {}))


def test_what_was_compiled_is_kept_where_the_environment_does_not_say_otherwise(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    keep_compiled_in(tmp_path, environment)
    keep_compiled_in(tmp_path / "other", environment)
    assert environment == {CACHE_VARIABLE: str(tmp_path), THREADS_VARIABLE: "1"}


@pytest.mark.thorough(
    held_by="tests/memory/streaming/test_streaming.py::test_compiled_it_computes_the_same_and_stays_usable"
)
@pytest.mark.skipif(compiler_problem(CPU) is not None, reason="needs a C++ compiler")
def test_a_block_compiled_by_the_real_compiler(
    model: Model, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, CACHE_VARIABLE, str(tmp_path))
    compiled, true, told = CompiledBlocks(), run(model, x), list[str]()
    with compiled.around(model, ["Block"], told.append):
        torch.testing.assert_close(run(model, x), true)
    assert told == [] and any(tmp_path.rglob("*.cpp"))
