"""Finding "linear, activation or gated activation, dropout, linear" in any module, without knowing its class.

A module that owns two or three Linear layers and nothing else with numbers may be one. Which layer plays which part,
which activation stands in between and where dropout happens is found out by trying: a double of the module with tiny
layers of random weights is run, and a reading of it holds only if the slices' sum gives the same numbers. So modules of
any library are recognised, whatever they call their parts, and what merely looks like a feed-forward (one with a
residual inside, or a softmax in the middle) is left alone. The module's own weights are never touched for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from modules.memory.layer import stored_state

Activation = Callable[[Tensor], Tensor]
FindActivation = Callable[[nn.Module], Activation]
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout)
PROBE_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError, AssertionError)
"""What a foreign module may raise when it is run on tiny layers: then it is not understood, and left alone."""

TINY_IN, TINY_HIDDEN, TINY_OUT, TINY_TOKENS = 5, 6, 7, 4


@dataclass(frozen=True)
class Rows:
    """`hidden` rows of a Linear at `path` below the feed-forward, from row `first` on."""

    path: str
    first: int = 0


@dataclass(frozen=True)
class FeedForward:
    """How a module computes: y = after(down(dropout(activation(activated(x)) * factor(x)))); no `factor`: not gated.

    All parts are paths below the module and are looked up at each call. `hidden` is the width in the middle.
    `bypassed` are the modules whose own forward is not called when it is computed in slices. `buffers` counts the
    hidden tensors that are alive at once in an activation: two for one kernel, three for several steps. `in_place` is
    the same activation over its argument, where there is a kernel for that.
    """

    activated: Rows
    factor: Rows | None
    down: str
    hidden: int
    activation: FindActivation
    dropouts: tuple[str, ...]
    after: tuple[str, ...]
    bypassed: tuple[str, ...]
    buffers: int = 2
    in_place: Activation | None = None

    @property
    def is_fused(self) -> bool:
        """Whether gate and value come out of one layer."""
        return self.factor is not None and self.factor.path == self.activated.path

    def activate(self, module: nn.Module, activated: Tensor, factor: Tensor | Callable[[], Tensor] | None) -> Tensor:
        """Slices of the projections [..., units] to the hidden activations, dropout included.

        A function as `factor` is called when the activation is done, so that its result is not there before. Works in
        place where autograd does not watch.
        """
        activation = self.activation(module)
        if torch.is_grad_enabled() or activated.ndim != 2:
            hidden = activation(activated)
        else:
            hidden = activated if self._overwrite(activation, activated) else activation(activated)
        del activated
        factor = factor() if callable(factor) else factor
        if factor is not None:
            hidden = hidden * factor if hidden.requires_grad or factor.requires_grad else hidden.mul_(factor)
        for path in self.dropouts:
            hidden = module.get_submodule(path)(hidden)
        return hidden

    def _overwrite(self, activation: Activation, hidden: Tensor) -> bool:
        """Put the activation of [tokens, units] in their place, so that no second tensor of that size is there: by one
        kernel, or piece by piece. False: it comes in another dtype (autocast), and nothing is done."""
        if self.in_place is not None:
            self.in_place(hidden)
            return True
        rows = max(1, piece_bytes(hidden.device) // max(1, hidden.shape[-1] * hidden.element_size()))
        for piece in torch.split(hidden, rows):
            result = activation(piece)
            if result.dtype != hidden.dtype:
                return False
            piece.copy_(result)
            del result  # before the next one is made
        return True

    def finish(self, module: nn.Module, output: Tensor) -> Tensor:
        """What comes after the second projection."""
        for path in self.after:
            output = module.get_submodule(path)(output)
        return output


def piece_bytes(device: torch.device) -> int:
    """How much is activated at a time: on the CPU what fits its caches, on a card what keeps it busy."""
    return 128 << 10 if device.type == "cpu" else 64 << 20


def find_feed_forward(module: nn.Module) -> FeedForward | None:
    """How `module` computes, if it is a feed-forward; None if not, or if it cannot be made out."""
    layers = _own_linears(module)
    if layers is None:
        return None
    paths = tuple(layers)
    bypassed = tuple(path for path, _ in module.named_modules() if path and _holds_any(path, paths))
    with _aside():
        for activated, factor, down, hidden in _roles(layers):
            double, drops = _double(module, layers, (activated, factor, down, hidden))
            for activation in _activations(module, paths):
                small = FeedForward(activated, factor, down, TINY_HIDDEN, activation, (), (), bypassed)
                found = _verified(_scaled_down(small, hidden), double, drops)
                if found is not None:
                    return replace(found, activated=activated, factor=factor, hidden=hidden)
    return None


@contextmanager
def _aside() -> Iterator[None]:
    """Under which doubles run: on the CPU, without gradients, in float32, leaving the random state alone."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"), torch.random.fork_rng(devices=[]):
        yield


# -- candidates --------------------------------------------------------------------------------------------------------


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether it computes as nn.Linear does: the class itself, or one that is stored in another format."""
    state = stored_state(layer)
    own = state.own_class if state is not None else type(layer)
    return isinstance(layer, nn.Linear) and own.forward is nn.Linear.forward


def _own_linears(module: nn.Module) -> dict[str, nn.Linear] | None:
    """The Linear layers below `module`, if they are two or three and nothing else there has numbers."""
    layers: dict[str, nn.Linear] = {}
    if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Linear)):
        return None
    for path, child in module.named_modules(remove_duplicate=False):
        if isinstance(child, nn.Linear):
            if len(layers) == 3 or not is_plain_linear(child):
                return None
            layers[path] = child
        elif any(True for _ in (*child._parameters.values(), *child._buffers.values())):
            return None
    return layers if len(layers) in (2, 3) and len({id(layer) for layer in layers.values()}) == len(layers) else None


def _holds_any(path: str, layers: tuple[str, ...]) -> bool:
    return any(layer == path or layer.startswith(f"{path}.") for layer in layers)


Role = tuple[Rows, Rows | None, str, int]


def _roles(layers: dict[str, nn.Linear]) -> Iterator[Role]:
    """Every way in which the layers' shapes fit together, likely ones first: (activated, factor, down, hidden)."""
    for order in permutations(layers):
        *ups, down = order
        hidden, widths = layers[down].in_features, [layers[path].out_features for path in ups]
        if len({layers[path].in_features for path in ups}) != 1:
            continue
        if len(ups) == 2 and widths == [hidden, hidden]:
            yield Rows(ups[0]), Rows(ups[1]), down, hidden
        elif len(ups) == 1 and widths == [2 * hidden]:
            yield Rows(ups[0], hidden), Rows(ups[0], 0), down, hidden
            yield Rows(ups[0], 0), Rows(ups[0], hidden), down, hidden
        elif len(ups) == 1 and widths == [hidden]:
            yield Rows(ups[0]), None, down, hidden


def _activations(module: nn.Module, layers: tuple[str, ...]) -> Iterator[FindActivation]:
    """What may stand in the middle: the module's own parts first, so that its very kernels are used, then others."""
    for path, child in module.named_modules():
        if path and not isinstance(child, (nn.Linear, nn.ModuleList, *DROPOUTS)) and not _holds_any(path, layers):
            yield partial(_submodule, path)
    for path, child in module.named_modules():
        if isinstance(child, nn.Linear):
            continue
        for name, value in child.__dict__.items():
            if callable(value) and not name.startswith("_") and name != "forward":
                yield partial(_attribute, path, name)
        for name in ("gelu", "activation", "act"):
            if callable(getattr(type(child), name, None)):
                yield partial(_attribute, path, name)
    for function in USUAL:
        yield partial(_constant, function)


def _submodule(path: str, module: nn.Module) -> Activation:
    return module.get_submodule(path)


def _attribute(path: str, name: str, module: nn.Module) -> Activation:
    found: Activation = getattr(module.get_submodule(path), name)
    return found


def _constant(function: Activation, module: nn.Module) -> Activation:
    return function


def _quick_gelu(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel 2016 (arXiv:1606.08415), section 2."""
    return x * torch.sigmoid(1.702 * x)


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _none(x: Tensor) -> Tensor:
    return x


def _gelu_over(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x)
    return result


def _tanh_gelu_over(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x, approximate="tanh")
    return result


OVER: tuple[Activation, ...] = (
    _gelu_over,
    _tanh_gelu_over,
    partial(F.silu, inplace=True),
    partial(F.mish, inplace=True),
    torch.relu_,
    torch.sigmoid_,
    torch.tanh_,
)
"""Activations that overwrite their argument."""

USUAL: tuple[Activation, ...] = (F.gelu, _tanh_gelu, F.silu, F.relu, _quick_gelu, F.mish, torch.sigmoid, torch.tanh)
USUAL = (*USUAL, _squared_relu, _none)


# -- trying ------------------------------------------------------------------------------------------------------------


class _Marker(nn.Module):
    """Stands in for dropout in a double: stretches and shifts by numbers of its own, notes how wide its input was."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.widths: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.widths.append(x.shape[-1])
        return x * self.factor + 0.1


class _Steps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the kernels that run while it is open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def _double(module: nn.Module, layers: dict[str, nn.Linear], role: Role) -> tuple[nn.Module, dict[str, _Marker]]:
    """A copy of the module whose Linear layers are tiny and random, and whose dropouts are markers."""
    activated, _, down, hidden = role
    generator = torch.Generator().manual_seed(0)
    drops: dict[str, _Marker] = {}
    narrow = layers[down].out_features == layers[activated.path].in_features
    tiny_out = TINY_IN if narrow else TINY_OUT

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    def tiny(path: str, layer: nn.Linear) -> nn.Linear:
        inputs, outputs = (TINY_HIDDEN, tiny_out) if path == down else (TINY_IN, TINY_HIDDEN)
        if path != down and layer.out_features == 2 * hidden:
            outputs = 2 * TINY_HIDDEN
        copy = nn.Linear(1, 1, bias=layer._parameters.get("bias") is not None, device="meta")
        copy.in_features, copy.out_features = inputs, outputs
        copy._parameters["weight"] = nn.Parameter(
            torch.randn(outputs, inputs, generator=generator, dtype=torch.float32), False
        )
        if copy._parameters["bias"] is not None:
            copy._parameters["bias"] = nn.Parameter(
                torch.randn(outputs, generator=generator, dtype=torch.float32), False
            )
        return copy

    def copied(path: str, original: nn.Module) -> nn.Module:
        if isinstance(original, nn.Linear):
            return tiny(path, original)
        if isinstance(original, DROPOUTS):
            drops[path] = _Marker(1.25 + 0.125 * len(drops))
            return drops[path]
        double: nn.Module = type(original).__new__(type(original))
        double.__dict__.update(original.__dict__)
        double.__dict__.pop("forward", None)
        double.__dict__.update({name: type(value)() for name, value in original.__dict__.items() if _is_hooks(name)})
        double.__dict__["training"] = True  # dropout by a function shows, as numbers that do not repeat
        double.__dict__["_modules"] = {
            name: None if child is None else copied(f"{path}.{name}" if path else name, child)
            for name, child in original._modules.items()
        }
        return double

    return copied("", module), drops


def _is_hooks(name: str) -> bool:
    return name.endswith("_hooks") or "_hooks_" in name


def _scaled_down(found: FeedForward, hidden: int) -> FeedForward:
    """The same reading for the double: rows begin at its own middle."""

    def scaled(rows: Rows | None) -> Rows | None:
        return rows and replace(rows, first=TINY_HIDDEN if rows.first == hidden else 0)

    activated = scaled(found.activated)
    assert activated is not None
    return replace(found, activated=activated, factor=scaled(found.factor))


def _verified(reading: FeedForward, double: nn.Module, drops: dict[str, _Marker]) -> FeedForward | None:
    """The reading with its dropouts, if the double computes what its slices add up to."""
    for marker in drops.values():
        marker.widths.clear()
    x = torch.randn(2, TINY_TOKENS, TINY_IN, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    try:
        expected = double(x.clone())
        reading = replace(
            reading,
            dropouts=tuple(path for path, marker in drops.items() if TINY_HIDDEN in marker.widths),
            after=tuple(path for path, marker in drops.items() if marker.widths and marker.widths[-1] != TINY_HIDDEN),
        )
        added = _in_slices(reading, double, x)
    except PROBE_ERRORS:
        return None
    some, steps = torch.linspace(-8, 8, 4 * TINY_HIDDEN, dtype=torch.float32).view(4, -1), _Steps()
    with steps:
        activated = reading.activation(double)(some)
    in_place = next((over for over in OVER if torch.equal(over(some.clone()), activated)), None)
    reading = replace(reading, buffers=2 if steps.count <= 1 else 3, in_place=in_place)
    same = isinstance(expected, Tensor) and expected.shape == added.shape
    return reading if same and torch.allclose(expected, added, rtol=1e-4, atol=1e-4) else None


def _in_slices(reading: FeedForward, double: nn.Module, x: Tensor) -> Tensor:
    """Two tokens and two or four hidden units at a time."""
    down: Any = double.get_submodule(reading.down)
    results = []
    for tokens in x.flatten(0, 1).chunk(TINY_TOKENS):
        total = tokens.new_zeros(tokens.shape[0], down.out_features)
        for start, stop in ((0, 2), (2, TINY_HIDDEN)):
            parts = [
                None if rows is None else _project(double.get_submodule(rows.path), tokens, rows.first, start, stop)
                for rows in (reading.activated, reading.factor)
            ]
            assert parts[0] is not None
            hidden = reading.activate(double, parts[0], parts[1])
            total = total + F.linear(hidden, down.weight[:, start:stop])
        if down.bias is not None:
            total = total + down.bias
        results.append(reading.finish(double, total))
    return torch.cat(results).view(*x.shape[:-1], -1)


def _project(layer: Any, x: Tensor, first: int, start: int, stop: int) -> Tensor:
    bias = None if layer.bias is None else layer.bias[first + start : first + stop]
    return F.linear(x, layer.weight[first + start : first + stop], bias)
