"""Split feed-forwards give the same numbers, gradients and dropout as whole ones, in less memory, and can be undone."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modules.errors import InvalidValueError
from modules.memory.changes import AllBranches, Branches, Budget, DecodedChanges
from modules.memory.dry_run import DryRun
from modules.memory.feed_forward import SplitOptions, split_feed_forward
from modules.memory.feed_forward.computing import Resolved
from modules.memory.feed_forward.options import CallSize, Pieces, hidden_slices, pieces_for
from modules.memory.formats.format import FORMATS
from modules.memory.layer import Part, Stored, manage, stored_state
from modules.memory.storage import StorageRules
from modules.memory.streaming.groups import Level
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.streaming import stream
from tests.cases import for_each
from tests.memory.feed_forward.allocations import peak_bytes
from tests.memory.feed_forward.models import FEED_FORWARDS, diffusers
from tests.memory.storing import apply_storage

CUTS = {
    "2 slices": SplitOptions(num_splits=2),
    "5 uneven slices": SplitOptions(num_splits=5),
    "more slices than units": SplitOptions(num_splits=1000),
    "tokens": SplitOptions(token_chunk=7),
    "both": SplitOptions(num_splits=3, token_chunk=4),
    "budget": SplitOptions(budget_bytes=2000),
    "one token": SplitOptions(num_splits=3, token_chunk=1),
}
CPU = torch.device("cpu")


def _state(layer: nn.Module) -> Stored:
    state = stored_state(layer)
    assert state is not None
    return state


def inputs(width: int = 32, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 9, width, generator=torch.Generator().manual_seed(3)).to(dtype)


class Products(TorchFunctionMode):
    """Counts matrix products."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__ in ("linear", "mm", "addmm", "addmm_")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_same_numbers_and_everything_comes_back(name: str) -> None:
    torch.manual_seed(0)
    module = FEED_FORWARDS[name]().eval()
    x, state = inputs(), dict(module.state_dict())
    with torch.no_grad():
        expected = module(x)
        for options in CUTS.values():
            with split_feed_forward(module, options) as handle:
                assert len(handle.found) == 1
                torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(module(x), expected, rtol=1e-5, atol=1e-6)
                assert all(tensor.data_ptr() == state[key].data_ptr() for key, tensor in module.state_dict().items())
            assert torch.equal(module(x), expected)
    assert "forward" not in module.__dict__


@pytest.mark.parametrize("shape", [(32,), (5, 32), (2, 3, 4, 32), (0, 32), (2, 0, 32)])
def test_any_shape_of_input(shape: tuple[int, ...]) -> None:
    module = diffusers("geglu").eval()
    x = torch.randn(shape)
    for requires_grad in (False, True):
        expected = module(x)
        with split_feed_forward(module, CUTS["both"]):
            torch.testing.assert_close(module(x.clone().requires_grad_(requires_grad)), expected)


def test_inputs_and_weights_that_are_not_contiguous() -> None:
    module: Any = diffusers("geglu").eval()
    module.net[2].weight = nn.Parameter(module.net[2].weight.t().contiguous().t())
    x = inputs().transpose(0, 1)
    expected = module(x)
    with torch.no_grad(), split_feed_forward(module, CUTS["both"]):
        torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_same_gradients(name: str) -> None:
    torch.manual_seed(0)
    module = FEED_FORWARDS[name]()
    without = copy.deepcopy(module)
    for each in (module, without):
        for part in each.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
    split_feed_forward(module, CUTS["both"])
    x, y = inputs().requires_grad_(), inputs().requires_grad_()
    module(x).square().mean().backward()
    without(y).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for mine, theirs in zip(module.parameters(), without.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_nothing_wide_is_kept_for_the_backward_pass() -> None:
    module = diffusers("geglu")
    x = torch.randn(1, 1000, 32, requires_grad=True)
    kept: list[Tensor] = []

    def run() -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            module(x)
        own = {parameter.untyped_storage().data_ptr() for parameter in (*module.parameters(), x)}
        storages = {tensor.untyped_storage().data_ptr(): tensor.numel() for tensor in kept}
        return sum(count for pointer, count in storages.items() if pointer not in own)

    assert run() > 1000 * 72
    with split_feed_forward(module, SplitOptions(num_splits=4, token_chunk=100)):
        assert run() < 1000 * 32


def test_dropout_has_the_same_rate_and_draws_the_same_again_in_the_backward_pass() -> None:
    module: Any = diffusers("gelu", bias=False)
    module.net[1].p = 0.25
    shares = []
    module.net[1].register_forward_hook(lambda _, args, out: shares.append(float((out == 0).float().mean())))
    x = torch.randn(4, 200, 32)
    split_feed_forward(module, SplitOptions(num_splits=4))
    torch.manual_seed(0)
    with torch.no_grad():
        module(x)
    assert len(shares) == 4 and all(abs(share - 0.25) < 0.01 for share in shares)
    weight = module.net[2].weight
    torch.manual_seed(1)
    output = module(x)
    output.sum().backward()
    hidden_sums = weight.grad[0]  # of each hidden unit, over tokens, after dropout
    torch.testing.assert_close((hidden_sums * weight.detach()).sum(), output.sum() / 1, rtol=1e-3, atol=1e-2)


def test_float32_sums_are_closer_to_the_truth() -> None:
    torch.manual_seed(0)
    module = diffusers("geglu").eval()
    x = torch.randn(64, 32)
    true = module.double()(x.double())
    module.bfloat16()
    errors = {}
    with torch.no_grad():
        for name, wide in (("float32", True), ("own", False)):
            with split_feed_forward(module, SplitOptions(num_splits=18, fp32_accumulation=wide)):
                output = module(x.bfloat16())
                assert output.dtype is torch.bfloat16
                errors[name] = float((output.double() - true).norm() / true.norm())
    assert errors["float32"] < 0.8 * errors["own"]


@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row"])
@pytest.mark.parametrize("first", ["storage", "split"])
def test_stored_layers_in_either_order_decode_only_the_slice_in_use(
    storage: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(diffusers("geglu", hidden=180).eval())
    model = copy.deepcopy(plain)
    inside: Any = model[0]
    options, rules = SplitOptions(num_splits=3), StorageRules(storage)
    apply_storage(plain, rules, torch.bfloat16)
    handle = split_feed_forward(model, options) if first == "split" else None
    apply_storage(model, rules, torch.bfloat16)
    handle = handle or split_feed_forward(model, options)
    decoded: list[int] = []
    format_type = type(_state(inside.net[2]).formats["weight"])
    original = format_type.decode
    monkeypatch.setattr(format_type, "decode", lambda s, d, c, out: decoded.append(d.numel()) or original(s, d, c, out))
    with torch.no_grad():
        output = model(inputs())
    assert output.dtype is torch.bfloat16
    assert decoded and max(decoded) <= 180 * 32 // 3 + 128
    torch.testing.assert_close(output, plain(inputs()), rtol=0.02, atol=0.02)
    handle.remove()
    assert torch.equal(model(inputs()), plain(inputs()))


def branches(rank: int, inputs: int, outputs: int) -> Branches:
    return Branches(torch.randn(rank, inputs) / 6, torch.randn(outputs, rank) / 2, torch.full((rank,), 0.7))


@pytest.mark.parametrize("cut", ["5 uneven slices", "tokens", "both"])
@pytest.mark.parametrize("gradients", [False, True])
def test_branches_beside_the_layers(cut: str, gradients: bool) -> None:
    torch.manual_seed(0)
    module: Any = diffusers("geglu").eval()
    bare: Any = diffusers("gelu", bias=False).eval()
    for each in (module, bare):
        apply_storage(each, StorageRules("fp32"), torch.float32)
        up, down = each.net[0].proj, each.net[2]
        _state(up).branches = AllBranches((branches(4, 32, up.out_features), branches(2, 32, up.out_features)))
        _state(down).branches = AllBranches((branches(3, 72, 24),))
    _state(bare.net[2]).branches = AllBranches((branches(3, 72, 24),), torch.randn(24))
    _state(bare.net[0].proj).branches = AllBranches((), torch.randn(72))
    options = SplitOptions(num_splits=CUTS[cut].num_splits, token_chunk=CUTS[cut].token_chunk, fp32_accumulation=True)
    for each in (module, bare):
        x = inputs().requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            expected = each(x)
            with split_feed_forward(each, options):
                torch.testing.assert_close(each(x), expected)


def test_trained_branches_get_their_gradients() -> None:
    torch.manual_seed(0)
    module: Any = diffusers("geglu", hidden=180)
    apply_storage(module.eval(), StorageRules("fp8_e4m3fn_row"), torch.float32)
    part = branches(4, 180, 24)
    part.down.requires_grad_(), part.up.requires_grad_()
    _state(module.net[2]).branches = AllBranches((part,))

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(module(inputs()).square().mean(), (part.down, part.up))

    expected = gradients()
    with split_feed_forward(module, CUTS["both"]):
        for mine, theirs in zip(gradients(), expected, strict=True):
            torch.testing.assert_close(mine, theirs)


class Doubling:
    """A change that is no pair of factors: the weight counts twice."""

    sum_dtype = None

    def branch(self) -> None:
        return None

    def weight_delta(self, weight: Tensor) -> Tensor:
        return weight

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        return bias


@pytest.mark.parametrize("gradients", [False, True])
def test_changes_to_whole_weights_count_once(gradients: bool) -> None:
    module: Any = diffusers("geglu").eval()
    apply_storage(module, StorageRules("fp8_e4m3fn"), torch.float32)
    for layer in (module.net[0].proj, module.net[2]):
        _state(layer).changes = (DecodedChanges((Doubling(),), Budget(0)),)
    x = inputs().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        expected = module(x)
        with split_feed_forward(module, CUTS["both"]):
            torch.testing.assert_close(module(x), expected)


@dataclass
class Elsewhere:
    """A `Fetch` of one weight."""

    kept: Tensor

    def __call__(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
        return self.kept, None

    def parts(self, parts: Sequence[Part]) -> list[Tensor]:
        return [part.of(self.kept) for part in parts]

    def dtype(self, layer: nn.Module, name: str) -> torch.dtype | None:
        return self.kept.dtype if name == "weight" else None

    def replace(self, layer: nn.Module, name: str, data: Tensor) -> bool:
        return False


def test_weights_that_are_fetched_from_elsewhere() -> None:
    module: Any = diffusers("geglu").eval()
    x = inputs()
    expected = module(x)
    for layer in (module.net[0].proj, module.net[2]):
        elsewhere = layer.weight.detach().clone()
        state = manage(layer, {"weight": FORMATS.get("fp32")}, torch.float32)
        layer._parameters["weight"] = nn.Parameter(torch.empty(0), requires_grad=False)
        state.fetch = Elsewhere(elsewhere)
    with torch.no_grad(), split_feed_forward(module, CUTS["both"]):
        torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("storage", [None, "fp8_e4m3fn_row"])
@pytest.mark.parametrize("first", ["stream", "split"])
def test_streamed_weights_are_brought_once_a_call(level: Level, storage: str | None, first: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(diffusers("geglu", hidden=180).eval() for _ in range(2)), nn.Linear(24, 24))
    second: Any = model[1]
    second.net[0].proj = nn.Linear(24, 360)
    model.requires_grad_(False)
    if storage is not None:
        apply_storage(model, StorageRules(storage), torch.float32)
    expected = model(inputs())
    handle = split_feed_forward(model, CUTS["both"]) if first == "split" else None
    with stream(model, CPU, level, place=OffloadStorage(small_bytes=0)) as streaming, torch.no_grad():
        handle = handle or split_feed_forward(model, CUTS["both"])
        for _ in range(3):
            before = streaming.counts.moved_bytes
            torch.testing.assert_close(model(inputs()), expected)
        assert streaming.counts.moved_bytes - before <= 1.1 * streaming.offloaded_bytes
        handle.remove()
        torch.testing.assert_close(model(inputs()), expected)
    torch.testing.assert_close(model(inputs()), expected)


@pytest.mark.parametrize("storage_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "cut", [{"num_splits": 8, "fp32_accumulation": True}, {"num_splits": 3, "token_chunk": 4}, {"token_chunk": 2}]
)
def test_a_few_pieces_take_the_memory_of_all(cut: dict[str, Any], storage_dtype: torch.dtype) -> None:
    module = diffusers("geglu", hidden=1000).eval()
    dry_run = DryRun()
    dry_run.place(module, CPU, storage_dtype)
    x = dry_run.tensor(2, 9, 32, dtype=storage_dtype)
    peaks, calls = [], []
    for few in (False, True):
        with split_feed_forward(module, SplitOptions(**cut, few_pieces=few)), Products() as products:
            peaks.append(dry_run.measure(lambda: module(x)))
        calls.append(products.count)
    assert peaks[0] == peaks[1]
    assert calls[1] < calls[0]


def test_under_autocast() -> None:
    module = diffusers("geglu").eval()
    with torch.autocast("cpu", torch.bfloat16):
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                expected = module(inputs())
                with split_feed_forward(module, CUTS["both"]):
                    output = module(inputs())
                assert output.dtype is expected.dtype is torch.bfloat16
                torch.testing.assert_close(output, expected, rtol=0.03, atol=0.01)


def test_a_second_projection_that_is_kept_in_float32() -> None:
    module: Any = FEED_FORWARDS["t5 gated"]().eval().bfloat16()
    module.wo.float()
    x = inputs(dtype=torch.bfloat16)
    with torch.no_grad():
        expected = module(x)
        with split_feed_forward(module, CUTS["both"]):
            output = module(x)
    assert output.dtype is expected.dtype is torch.float32
    torch.testing.assert_close(output, expected, rtol=0.01, atol=0.01)


def test_whoever_listens_to_a_part_still_hears() -> None:
    module: Any = diffusers("geglu").eval()
    x, heard = inputs(), list[int]()
    split_feed_forward(module, CUTS["both"])
    hook = module.net[0].proj.register_forward_hook(lambda _, args, out: heard.append(out.shape[-1]))
    expected = module(x)
    assert heard == [144]
    hook.remove()
    torch.testing.assert_close(module(x), expected)
    assert heard == [144]


def test_parts_that_are_replaced_are_seen() -> None:
    module: Any = diffusers("geglu").eval()
    split_feed_forward(module, CUTS["both"])
    module.net[2] = nn.Linear(72, 5)
    assert module(inputs()).shape == (2, 9, 5)
    module.net[2] = nn.Sequential(nn.Linear(72, 6))
    assert module(inputs()).shape == (2, 9, 6)


def test_other_calls_go_to_the_module_itself() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(32, 72), nn.Linear(72, 32)

        def forward(self, x: Tensor, factor: float = 1.0) -> Tensor:
            return torch.as_tensor(self.fc2(torch.relu(self.fc1(x))) * factor)

    module = Scaled()
    expected = module(inputs(), factor=3.0)
    split_feed_forward(module, CUTS["both"])
    assert torch.equal(module(inputs(), factor=3.0), expected)
    torch.testing.assert_close(module(x=inputs()) * 3, expected)


@pytest.mark.parametrize("removal", [(0, 1), (1, 0)])
def test_the_newest_options_hold_and_either_handle_may_go_first(removal: tuple[int, int]) -> None:
    module: Any = diffusers("gelu").eval()
    widths: list[int] = []
    module.net[1].register_forward_hook(lambda _, args, out: widths.append(out.shape[-1]))
    expected = module(inputs())

    def used() -> int:
        widths.clear()
        with torch.no_grad():
            torch.testing.assert_close(module(inputs()), expected)
        return len(widths)

    handles = [split_feed_forward(module, SplitOptions(num_splits=count)) for count in (2, 4)]
    assert used() == 4
    handles[removal[0]].remove()
    assert used() == (2, 4)[removal[1]]
    handles[removal[1]].remove()
    handles[removal[1]].remove()
    assert used() == 1
    assert "forward" not in module.__dict__


def test_an_exception_leaves_nothing_behind() -> None:
    module = diffusers("geglu").eval()
    expected = module(inputs())
    with pytest.raises(RuntimeError), split_feed_forward(module, CUTS["both"]):
        module(inputs(31))
    assert torch.equal(module(inputs()), expected)
    assert "forward" not in module.__dict__


def test_copies_are_split_on_their_own() -> None:
    module: Any = diffusers("geglu").eval()
    split_feed_forward(module, CUTS["both"])
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.net[2].bias.add_(1)
        torch.testing.assert_close(copied(inputs()), module(inputs()) + 1)


@pytest.mark.parametrize("act", ["gelu", "geglu", "geglu-approximate", "swiglu"])
def test_the_peak_is_what_is_predicted_and_far_below_the_whole(act: str) -> None:
    tokens, width, hidden = 512, 64, 512
    from diffusers.models.attention import FeedForward

    module: Any = FeedForward(width, inner_dim=hidden, activation_fn=act).eval()
    x = torch.randn(tokens, width)
    out_bytes = tokens * width * 4
    whole = peak_bytes(lambda: module(x)) - out_bytes
    for options in (
        SplitOptions(num_splits=4),
        SplitOptions(num_splits=8, token_chunk=128),
        SplitOptions(token_chunk=64),
        SplitOptions(budget_bytes=400_000),
    ):
        with split_feed_forward(module, options) as handle, torch.no_grad():
            parts = Resolved.of(handle.found[""], module)
            assert parts is not None
            size_of_call = parts.size(x)
            predicted = size_of_call.peak_bytes(pieces_for(options, size_of_call, CPU))
            measured = peak_bytes(lambda: module(x)) - out_bytes
            assert measured <= predicted * 1.02 + 4096
            assert measured >= predicted * 0.6
            assert measured < 0.45 * whole
            if options.budget_bytes is not None:
                assert predicted <= 400_000


# -- options -----------------------------------------------------------------------------------------------------------


def size(tokens: int = 4096, hidden: int = 1280, weight_bytes: int = 0) -> CallSize:
    return CallSize(tokens=tokens, hidden=hidden, bytes_per_activation=8, whole_bytes=12, weight_bytes=weight_bytes)


def test_slices_cover_everything_once() -> None:
    for hidden, splits in ((72, 5), (1280, 3), (1280, 8), (7, 7), (64, 1), (10240, 64), (1, 1)):
        slices = hidden_slices(hidden, splits)
        assert [start for start, _ in slices] == [0, *(stop for _, stop in slices[:-1])]
        assert slices[-1][1] == hidden and len(slices) == splits
    assert hidden_slices(1280, 3) == [(0, 448), (448, 832), (832, 1280)]


@for_each("budget", [1, 10_000, 300_000, 4_000_000, 10_000_000, 10**9])
@for_each("weight_bytes", [0, 3_000_000])
@for_each("tokens", [0, 1, 77, 4096, 100_000])
def test_a_budget_is_kept_with_as_few_pieces_as_it_allows(budget: int, weight_bytes: int, tokens: int) -> None:
    call = size(tokens, weight_bytes=weight_bytes)
    pieces = pieces_for(SplitOptions(budget_bytes=budget), call, CPU)
    finest = call.peak_bytes(Pieces(64, min(512, max(1, tokens))))
    assert call.peak_bytes(pieces) <= max(budget, finest)
    if call.peak_bytes(Pieces(1, max(1, tokens))) <= budget:
        assert pieces == Pieces(1, max(1, tokens))


def test_tokens_are_cut_before_the_hidden_dimension() -> None:
    assert pieces_for(SplitOptions(budget_bytes=20_000_000), size(), CPU).splits == 1
    assert pieces_for(SplitOptions(budget_bytes=2_000_000), size(), CPU).splits > 1


def test_a_budget_may_be_a_function_of_the_device() -> None:
    asked: list[torch.device] = []
    options = SplitOptions(budget_bytes=lambda device: asked.append(device) or 1 << 40)
    assert pieces_for(options, size(), CPU) == Pieces(1, 4096)
    assert asked == [CPU]


def test_small_calls_are_left_whole() -> None:
    options = SplitOptions(num_splits=4, least_bytes=4096 * 1280 * 12)
    assert pieces_for(options, size(), CPU).splits == 4
    assert pieces_for(options, size(tokens=4095), CPU) == Pieces(1, 4095)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_splits": 0}, "num_splits is 0"),
        ({"token_chunk": 0}, "token_chunk is 0"),
        ({"budget_bytes": 0}, "budget_bytes is 0"),
        ({"budget_bytes": 5, "num_splits": 2}, "either a budget, or the numbers"),
    ],
)
def test_impossible_options_are_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        SplitOptions(**values)  # type: ignore[arg-type]
