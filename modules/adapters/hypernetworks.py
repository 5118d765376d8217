"""Hypernetworks: small networks that change what attention layers see as context, before its keys and values.

File layout: for each width of a context a pair of state dicts, one for keys and one for values, of linear layers and
layer norms in a row, and the name of the activation between them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.adapter_file import read_pickle
from modules.memory.hook_chain import HookHandle, HookOrder, register_hook

SUFFIXES = (".pt",)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "leakyrelu": F.leaky_relu,
    "elu": F.elu,
    "swish": F.hardswish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True)
class Layer:
    """A linear layer (`weight` [out, in]) or a layer norm (`weight` [width]); `activated`: the activation follows."""

    weight: Tensor
    bias: Tensor
    activated: bool


@dataclass(frozen=True)
class Hypernetwork:
    """Hypernetwork by context width: the layers for keys and those for values."""

    layers: dict[int, tuple[tuple[Layer, ...], tuple[Layer, ...]]]
    activation: str

    def change(self, context: Tensor, for_values: bool, strength: float) -> Tensor:
        """The context [B, tokens, width] with the adapter's change; as it is where the width is unknown."""
        pair = self.layers.get(context.shape[-1])
        if pair is None:
            return context
        activate = ACTIVATIONS[self.activation]
        x = context
        for layer in pair[1 if for_values else 0]:
            weight, bias = layer.weight.to(x), layer.bias.to(x)
            x = F.linear(x, weight, bias) if weight.ndim == 2 else F.layer_norm(x, weight.shape, weight, bias)
            if layer.activated:
                x = activate(x)
        return context + x * strength


def read_hypernetwork(path: Path) -> Hypernetwork:
    """Read a file. Raises `AdapterError` that says what is wrong with it."""
    data = read_pickle(path)
    if not isinstance(data, dict):
        raise AdapterError(f"{path.name}: no hypernetwork in it.")
    activation = str(data.get("activation_func") or "linear").lower()
    if activation not in ACTIVATIONS:
        raise AdapterError(f"{path.name}: its activation {activation!r} is unknown. Known: {', '.join(ACTIVATIONS)}.")
    layers = {
        width: (_layers(path, pair[0]), _layers(path, pair[1]))
        for width, pair in data.items()
        if isinstance(width, int) and isinstance(pair, Sequence) and len(pair) >= 2
    }
    if not layers:
        raise AdapterError(f"{path.name}: no hypernetwork in it.")
    return Hypernetwork(layers, activation)


def _layers(path: Path, state: dict[str, Any]) -> tuple[Layer, ...]:
    """The layers in order. A number left out right after a linear layer is the activation's, later ones dropout's."""
    numbers = sorted({int(key.split(".")[1]) for key in state if key.startswith("linear.")})
    if not numbers:  # the oldest layout: two linear layers by name
        state = {key.replace("linear1.", "linear.0.").replace("linear2.", "linear.1."): v for key, v in state.items()}
        numbers = sorted({int(key.split(".")[1]) for key in state if key.startswith("linear.")})
    result = []
    for number in numbers:
        weight, bias = state[f"linear.{number}.weight"], state[f"linear.{number}.bias"]
        if not bool(torch.isfinite(weight).all()) or not bool(torch.isfinite(bias).all()):
            raise AdapterError(f"{path.name}: linear.{number} holds NaN or infinite values.")
        activated = weight.ndim == 2 and number + 1 not in numbers and number != numbers[-1]
        result.append(Layer(weight, bias, activated))
    return tuple(result)


class HypernetworkHooks:
    """Applies hypernetworks to all attention layers of a UNet, found by their `to_k` and `to_v`."""

    def __init__(self, unet: nn.Module) -> None:
        self._targets = [
            (layer, name.endswith("to_v"))
            for name, layer in unet.named_modules()
            if name.endswith((".to_k", ".to_v")) and isinstance(layer, nn.Linear)
        ]
        self._hooks: list[HookHandle] = []
        self._current: tuple[tuple[str, float], ...] = ()

    def apply(self, wanted: Sequence[tuple[str, Hypernetwork, float]]) -> None:
        """Make exactly these effective, in order: (hash, hypernetwork, strength)."""
        key = tuple((content, strength) for content, _, strength in wanted)
        if key == self._current:
            return
        self.remove()
        if wanted:
            for layer, for_values in self._targets:
                hook = _ChangeContext(tuple(wanted), for_values)
                self._hooks.append(register_hook(layer, hook, HookOrder.ADAPTER))
        self._current = key

    def remove(self) -> None:
        """Take them off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._current = ()


@dataclass(frozen=True)
class _ChangeContext:
    """Changes what a `to_k` or `to_v` layer gets, by each hypernetwork in turn."""

    wanted: tuple[tuple[str, Hypernetwork, float], ...]
    for_values: bool

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        context, *rest = args
        for _content, hypernetwork, strength in self.wanted:
            context = hypernetwork.change(context, self.for_values, strength)
        return inner(context, *rest, **kwargs)
