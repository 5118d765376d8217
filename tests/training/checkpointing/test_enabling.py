"""Gradient checkpointing: same outputs and gradients, fewer bytes, and the model as before afterwards."""

import copy
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lib_training.checkpointing import Block, ByBudget, Every, Listed, Strategy, enable_gradient_checkpointing
from lib_training.checkpointing.keeping import Disk, MainMemory, OffloadError
from lib_training.checkpointing.solving import peak_bytes
from modules.errors import InvalidValueError
from modules.memory.changes import AllBranches, Branches
from modules.memory.feed_forward import SplitOptions, split_feed_forward
from modules.memory.layer import stored_state
from modules.memory.storage import StorageRules
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.groups import Level
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.streaming import StreamHandle, stream
from tests.memory.storing import apply_storage
from tests.training.checkpointing.models import WIDTH, Stack, gradients, inputs, same

STRATEGIES: dict[str, Strategy | str] = {
    "all": "all",
    "every 2nd": Every(2),
    "inverted": Every(3, inverted=True),
    "listed": Listed([0, -1]),
    "budget": ByBudget(120_000),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_same_outputs_gradients_and_dropout(name: str, dropout: float) -> None:
    model, x = Stack(dropout=dropout), inputs()
    expected = gradients(model, x, torch.ones(5))
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with enable_gradient_checkpointing(model, STRATEGIES[name]):
        for _ in range(3):
            same(gradients(model, x, torch.ones(5)), expected)
        assert model.state_dict().keys() == state.keys()
        assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())
    same(gradients(model, x, torch.ones(5)), expected)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert all(not name.startswith("_check") for name in model.__dict__)


@pytest.mark.parametrize("name", ["all", "every 2nd", "inverted", "listed"])
def test_only_the_chosen_blocks_run_twice_and_only_with_gradients(name: str) -> None:
    model, x = Stack(), inputs()
    handle = enable_gradient_checkpointing(model, STRATEGIES[name])
    gradients(model, x)
    assert model.runs == [2 if i in handle.chosen else 1 for i in range(6)]
    with torch.no_grad():
        model(x)
    assert sum(model.runs) == 6 + len(handle.chosen) + 6


def kept_bytes(model: nn.Module, *args: Any) -> int:
    """What autograd holds when the forward pass is over, beside parameters."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        output = model(*args)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    del output
    return sum(size for pointer, size in found.items() if pointer not in own)


def test_the_more_is_computed_again_the_less_is_kept() -> None:
    model, x, sizes = Stack(), inputs(), []
    sizes.append(kept_bytes(model, x))
    for strategy in (Every(4), Every(2), Every(2, inverted=True), Every()):
        with enable_gradient_checkpointing(model, strategy):
            sizes.append(kept_bytes(model, x))
    assert sizes[0] > sizes[1] > sizes[2] > sizes[4] and sizes[0] > sizes[3] > sizes[4]
    assert sizes[4] < 0.2 * sizes[0]


def test_a_budget_is_kept_and_not_wasted() -> None:
    model, x = Stack(dropout=0.0), inputs(100)
    whole = kept_bytes(model, x)
    again = []
    for share in (1.2, 0.8, 0.6, 0.4):
        budget = int(whole * share)
        with enable_gradient_checkpointing(model, ByBudget(budget)) as handle:
            model(x)  # measures
            assert len(handle.costs) == 6
            assert kept_bytes(model, x) - 2 * 100 * WIDTH * 4 <= budget  # the head's input is no block's
            assert peak_bytes(list(handle.costs.values()), handle.chosen) <= budget
            again.append(len(handle.chosen))
    assert again[0] == 0 and again == sorted(again) and again[-1] < 6


def test_a_budget_measures_once_for_each_shape_and_changes_no_random_numbers() -> None:
    model = Stack()
    plain = copy.deepcopy(model)
    handle = enable_gradient_checkpointing(model, ByBudget(10**6))
    runs = []
    for tokens in (10, 10, 4, 4, 10):
        before = sum(model.runs)
        x = inputs(tokens)
        same(gradients(model, x), gradients(plain, x))
        runs.append(sum(model.runs) - before)
    assert runs == [24, 6, 24, 6, 6]
    assert handle.chosen == frozenset()


def test_measuring_keeps_no_activations() -> None:
    """The graph of a measuring run holds what it saves, and what is saved may hold the graph."""
    model = Stack()
    seen: list[weakref.ref[Any]] = []

    def note(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        seen.append(weakref.ref(output.untyped_storage()))

    first: Any = model.layers[0]
    first.wide.register_forward_hook(note)
    enable_gradient_checkpointing(model, ByBudget(10**6))
    model(inputs(10)).sum().backward()
    assert len(seen) == 4 and all(storage() is None for storage in seen)


def test_measuring_leaves_running_means_alone() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.as_tensor(self.linear(self.norm(x)))

    model = nn.Sequential(Normed(), Normed())
    enable_gradient_checkpointing(model, ByBudget(1 << 20))
    model(torch.randn(4, 8))
    first: Any = model[0]
    assert int(first.norm.num_batches_tracked) == 1


def test_a_budget_that_nothing_fits_says_what_would() -> None:
    model = Stack()
    enable_gradient_checkpointing(model, ByBudget(1000))
    with pytest.raises(InvalidValueError, match=r"6 blocks do not fit 0\.00 MB.*that takes 0\.0\d MB"):
        model(inputs())


def test_a_block_that_did_not_run_while_measuring_is_computed_again() -> None:
    class Conditional(Stack):
        skips = True

        def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
            for index, layer in enumerate(self.layers):
                if index != 2 or not self.skips:
                    x = layer(x, 0.5)
            return torch.as_tensor(self.head(x))

    model = Conditional()
    enable_gradient_checkpointing(model, ByBudget(10**6))
    x = inputs()
    gradients(model, x)
    before = model.runs[2]
    model.skips = False
    gradients(model, x)
    assert (before, model.runs[2]) == (0, 2)


@pytest.mark.parametrize("how", ["torch", "as it is"])
def test_a_users_function_gets_blocks_arguments_and_keywords(how: str) -> None:
    model, x, context = Stack(), inputs(), torch.ones(5)
    expected = gradients(model, x, context)
    seen: list[tuple[int, int, str, tuple[str, ...]]] = []

    def function(block: Block, *args: Any, **kwargs: Any) -> Any:
        seen.append((block.index, len(args), block.name, tuple(kwargs)))
        if how == "torch" and block.index % 2 == 0:
            return checkpoint(block.__call__, *args, use_reentrant=False, **kwargs)
        return block(*args, **kwargs)

    model_runs = sum(model.runs)
    with enable_gradient_checkpointing(model, function):
        same(gradients(model, x, context), expected)
        assert seen == [(i, 2, f"layers.{i}", ("context",)) for i in range(6)]
        assert sum(model.runs) - model_runs == (9 if how == "torch" else 6)
        with torch.no_grad():
            model(x)
    assert len(seen) == 6


def test_enabled_again_it_reconfigures() -> None:
    model, x = Stack(), inputs()
    first = enable_gradient_checkpointing(model, "all")
    second = enable_gradient_checkpointing(model, "every 2")
    gradients(model, x)
    assert model.runs == [2, 1, 2, 1, 2, 1]
    first.remove()
    gradients(model, x)
    assert model.runs == [4, 2, 4, 2, 4, 2]
    second.remove()
    second.remove()
    gradients(model, x)
    assert model.runs == [5, 3, 5, 3, 5, 3]


def test_a_backward_pass_after_removal() -> None:
    model, x = Stack(dropout=0.0), inputs()
    expected = gradients(model, x)
    with enable_gradient_checkpointing(model, "all"):
        output = model(x)
    wanted = [x, *model.parameters()]
    same((output, list(torch.autograd.grad(output.square().sum(), wanted))), expected)


@pytest.mark.parametrize("name", ["all", "budget"])
def test_an_exception_leaves_nothing_behind(name: str) -> None:
    model, x = Stack(dropout=0.0), inputs()
    expected = gradients(model, x)
    with enable_gradient_checkpointing(model, STRATEGIES[name]) as handle:
        hook = model.layers[3].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x)
        hook.remove()
        same(gradients(model, x), expected)
        assert handle.blocks
    with pytest.raises(ZeroDivisionError), enable_gradient_checkpointing(model, "all"):
        raise ZeroDivisionError
    same(gradients(model, x), expected)


def test_copies_and_threads_have_plans_of_their_own() -> None:
    model, x = Stack(dropout=0.0), inputs()
    handle = enable_gradient_checkpointing(model, ByBudget(120_000))
    gradients(model, x)
    copied = copy.deepcopy(model)
    handle.remove()
    runs = sum(copied.runs)
    same(gradients(copied, x), gradients(model, x))
    assert sum(copied.runs) - runs > 6


# -- inputs that wait elsewhere ----------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lib_training.checkpointing.keeping.SMALLEST_BYTES", 1)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["all", "every 2nd", "budget"])
def test_inputs_on_disk(name: str, tmp_path: Path) -> None:
    model, x, context = Stack(), inputs(), torch.randn(50, generator=torch.Generator().manual_seed(2))
    expected = gradients(model, x, context)
    handle = enable_gradient_checkpointing(model, STRATEGIES[name], offload=tmp_path)
    for _ in range(2):
        same(gradients(model, x, context), expected)
    assert not list(tmp_path.glob("*/*"))
    output = model(x, context)
    files = list(tmp_path.glob("*/*"))
    sizes = sorted(file.stat().st_size for file in files)
    assert len(sizes) == len(handle.chosen) + 1  # the context goes there once
    assert sizes[0] == 200 and sizes[-1] == 2 * 10 * WIDTH * 4
    del output
    assert not list(tmp_path.glob("*/*"))
    handle.close()
    handle.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("large")
def test_on_disk_the_inputs_are_not_in_memory(tmp_path: Path) -> None:
    model = Stack(dropout=0.0)
    gone: list[Any] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        gone.append(weakref.ref(args[0].untyped_storage()))

    for layer in list(model.layers)[1:]:
        layer.register_forward_pre_hook(note)
    with enable_gradient_checkpointing(model, "all", offload=tmp_path):
        output = model(inputs())
        assert len(gone) == 5 and not any(storage() for storage in gone)
    del output


@pytest.mark.usefixtures("large")
def test_an_input_that_is_changed_afterwards_is_what_it_was(tmp_path: Path) -> None:
    model, x = Stack(dropout=0.0), inputs()
    expected = gradients(model, x)
    context = torch.zeros(5)
    wanted = [x, *model.parameters()]
    with enable_gradient_checkpointing(model, "all", offload=tmp_path):
        output = model(x, context)
        context.fill_(9)
        same((output, list(torch.autograd.grad(output.square().sum(), wanted))), expected)


@pytest.mark.usefixtures("large")
def test_ram_leaves_in_main_memory_what_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Stack(), inputs()
    expected = gradients(model, x)
    put, copied = MainMemory.put, list[bool]()

    def watched(place: MainMemory, tensor: torch.Tensor) -> torch.Tensor:
        away = put(place, tensor)
        copied.append(away.data_ptr() != tensor.data_ptr())
        return away

    monkeypatch.setattr(MainMemory, "put", watched)
    with enable_gradient_checkpointing(model, "all", offload="ram"):
        same(gradients(model, x), expected)
    assert copied and not any(copied)


@pytest.mark.usefixtures("large")
def test_files_that_vanish_or_change_are_named(tmp_path: Path) -> None:
    model, x = Stack(), inputs()
    enable_gradient_checkpointing(model, "all", offload=tmp_path)
    damages: list[tuple[Callable[[Path], Any], str]] = [
        (lambda file: file.unlink(), "cannot be read.*Leave that folder alone"),
        (lambda file: file.write_bytes(b"x"), "has 1 bytes instead of 2560"),
    ]
    for damage, words in damages:
        output = model(x)
        for file in tmp_path.glob("*/*"):
            damage(file)
        with pytest.raises(OffloadError, match=words):
            torch.autograd.backward(output.sum())


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OffloadError, match=r"Activations cannot be kept in .*file"):
        enable_gradient_checkpointing(Stack(), offload=tmp_path / "file")
    with pytest.raises(InvalidValueError, match="offload is 'disk'"):
        enable_gradient_checkpointing(Stack(), offload="disk")
    disk = Disk(tmp_path / "new")
    disk.folder.rmdir()
    with pytest.raises(OffloadError, match="could not be written"):
        disk.put(torch.ones(3))


# -- together with other techniques ------------------------------------------------------------------------------------

Apply = Callable[[nn.Module, Path], Any]
OTHERS: dict[str, Apply] = {
    "fp8": lambda model, _: apply_storage(model, StorageRules("fp8_e4m3fn_row"), torch.float32),
    "split": lambda model, _: split_feed_forward(model, SplitOptions(num_splits=2, token_chunk=3)),
    "all": lambda model, _: enable_gradient_checkpointing(model, "all"),
    "budget": lambda model, _: enable_gradient_checkpointing(model, ByBudget(120_000)),
    "disk": lambda model, path: enable_gradient_checkpointing(model, "all", offload=path),
    "streamed blocks": lambda model, path: streamed(model, path, Level.BLOCK),
    "streamed layers": lambda model, path: streamed(model, path, Level.LAYER),
}


def streamed(model: nn.Module, path: Path, level: Level) -> StreamHandle:
    """From files; norms are too small for it and can be trained."""
    return stream(
        model, torch.device("cpu"), level, place=OffloadStorage(BlobStore(path / "weights"), small_bytes=2048)
    )


class Fed(nn.Module):
    """A block whose feed-forward is a module of its own, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 160), nn.GELU(), nn.Linear(160, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(x + self.feed(self.norm(x)))


def fed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Fed() for _ in range(4)))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("first", OTHERS)
@pytest.mark.parametrize("second", OTHERS)
def test_pairs_in_either_order_and_either_removal(first: str, second: str, tmp_path: Path) -> None:
    """Gradients of the input and of what is still trained (norms), as with the storage alone."""
    if first.startswith("streamed") and second.startswith("streamed"):
        pytest.skip("a module is streamed once")
    plain, model = fed(), fed()
    stored = "fp8" in (first, second)
    for each in (plain, model):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_("norm" in name)
    if stored:
        apply_storage(plain, StorageRules("fp8_e4m3fn_row"), torch.float32)
    x = inputs()
    expected = gradients(plain, x)
    handles = [OTHERS[first](model, tmp_path), OTHERS[second](model, tmp_path)]
    for _ in range(2):
        same(gradients(model, x), expected)
    for handle in handles:
        if hasattr(handle, "remove"):  # weights stay stored
            handle.remove()
            same(gradients(model, x), expected)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_frozen_weights_in_8_bits_leave_no_copies() -> None:
    model, x = fed(), inputs(4)
    apply_storage(model, StorageRules("fp8_e4m3fn"), torch.float32)
    weights = sum(parameter.numel() for name, parameter in model.named_parameters() if "feed" in name)
    with enable_gradient_checkpointing(model, "all"):
        assert kept_bytes(model, x) < weights
    assert kept_bytes(model, x) < weights * 2  # in float32 they would be four times as many


def test_a_trained_branch_beside_a_frozen_layer() -> None:
    results = []
    for strategy in (None, "all", "every 2"):
        model: Any = fed()
        apply_storage(model.requires_grad_(False), StorageRules("fp8_e4m3fn_row"), torch.float32)
        torch.manual_seed(3)
        branch = Branches(torch.randn(2, WIDTH).requires_grad_(), torch.randn(160, 2).requires_grad_(), torch.ones(2))
        state = stored_state(model[1].feed[0])
        assert state is not None
        state.branches = AllBranches((branch,))
        if strategy is not None:
            enable_gradient_checkpointing(model, strategy)
            split_feed_forward(model, SplitOptions(num_splits=3))
        output = model(inputs().detach() / 4)
        results.append((output, list(torch.autograd.grad(output.square().sum(), (branch.down, branch.up)))))
    same(results[0], results[1])
    same(results[0], results[2])


@pytest.mark.parametrize("name", ["all", "every 2nd", "budget"])
def test_mixed_precision(name: str) -> None:
    model, x = Stack(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(model, x)
        with enable_gradient_checkpointing(model, STRATEGIES[name]):
            same(gradients(model, x), expected)
    assert expected[0].dtype is torch.bfloat16


def test_training_reaches_the_same_weights() -> None:
    weights = []
    for strategy in (None, "every 2", ByBudget(120_000)):
        model = Stack()
        if strategy is not None:
            enable_gradient_checkpointing(model, strategy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(model(inputs().detach()).square().mean())
            optimizer.step()
        weights.append([parameter.detach() for parameter in model.parameters()])
    for others in weights[1:]:
        for mine, theirs in zip(weights[0], others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_compiled_models() -> None:
    model, x = fed(), inputs()
    expected = gradients(model, x)
    enable_gradient_checkpointing(model, "every 2")
    split_feed_forward(model, SplitOptions(num_splits=2))
    compiled: Any = torch.compile(model, backend="aot_eager")
    same(gradients(compiled, x), expected)
