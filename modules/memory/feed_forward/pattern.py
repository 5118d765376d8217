"""How a module of a known class computes its feed-forward: "linear, activation or gated activation, dropout, linear".

`READINGS` says for each class of diffusers and transformers which of its layers plays which part, by the class's full
name; `TRANSFORMERS_READINGS` for those that several models of transformers have under one name, with their own in
front of it. A class that is not in the tables is left alone. A new class is a new entry; the tests compare each entry
with the output of the module itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.layer import stored_state

Activation = Callable[[Tensor], Tensor]


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
    activation: Activation
    dropouts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    bypassed: tuple[str, ...] = ()
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
        if torch.is_grad_enabled() or activated.ndim != 2:
            hidden = self.activation(activated)
        else:
            hidden = activated if self._overwrite(activated) else self.activation(activated)
        del activated
        factor = factor() if callable(factor) else factor
        if factor is not None:
            hidden = hidden * factor if hidden.requires_grad or factor.requires_grad else hidden.mul_(factor)
        for path in self.dropouts:
            hidden = module.get_submodule(path)(hidden)
        return hidden

    def _overwrite(self, hidden: Tensor) -> bool:
        """Put the activation of [tokens, units] in their place, so that no second tensor of that size is there: by one
        kernel, or piece by piece. False: it comes in another dtype (autocast), and nothing is done."""
        if self.in_place is not None:
            self.in_place(hidden)
            return True
        rows = max(1, piece_bytes(hidden.device) // max(1, hidden.shape[-1] * hidden.element_size()))
        for piece in torch.split(hidden, rows):
            result = self.activation(piece)
            if result.dtype != hidden.dtype:
                return False
            piece.copy_(result)
            del result  # before the next one is made
        return True

    def finish(self, module: nn.Module, output: Tensor) -> Tensor:
        """Apply what comes after the second projection."""
        for path in self.after:
            output = module.get_submodule(path)(output)
        return output


def piece_bytes(device: torch.device) -> int:
    """How much is activated at a time: on the CPU what fits its caches, on a GPU what keeps it busy."""
    return 128 << 10 if device.type == "cpu" else 64 << 20


def find_feed_forward(module: nn.Module) -> FeedForward | None:
    """How `module` computes, if its class is in the table; None if not, or if its layers are not plain Linear ones."""
    read = _reading_of(type(module))
    found = None if read is None else read(module)
    if found is None:
        return None
    rows = [found.activated] if found.factor is None else [found.activated, found.factor]
    paths = [*(each.path for each in rows), found.down]
    return found if all(is_plain_linear(module.get_submodule(path)) for path in paths) else None


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether it computes as nn.Linear does: the class itself, or one that is stored in another format."""
    state = stored_state(layer)
    own = state.own_class if state is not None else type(layer)
    return isinstance(layer, nn.Linear) and own.forward is nn.Linear.forward


# -- activations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """An activation as it is used: `buffers` and `in_place` as in `FeedForward`."""

    function: Activation
    in_place: Activation | None = None
    buffers: int = 2


def quick_gelu(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel 2016 (arXiv:1606.08415), section 2."""
    return x * torch.sigmoid(1.702 * x)


def _gelu_over(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x)
    return result


def _tanh_gelu_over(x: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.gelu_(x, approximate="tanh")
    return result


_GELU = Kernel(F.gelu, _gelu_over)
_TANH_GELU = Kernel(partial(F.gelu, approximate="tanh"), _tanh_gelu_over)
_SILU = Kernel(F.silu, partial(F.silu, inplace=True))
_MISH = Kernel(F.mish, partial(F.mish, inplace=True))
_RELU = Kernel(F.relu, torch.relu_)
_TANH = Kernel(torch.tanh, torch.tanh_)
_QUICK_GELU = Kernel(quick_gelu, buffers=3)
_BY_CLASS = {
    "torch.nn.modules.activation.GELU": _GELU,
    "torch.nn.modules.activation.SiLU": _SILU,
    "torch.nn.modules.activation.Mish": _MISH,
    "torch.nn.modules.activation.ReLU": _RELU,
    "torch.nn.modules.activation.Tanh": _TANH,
    "transformers.activations.GELUActivation": _GELU,
    "transformers.activations.GELUTanh": _TANH_GELU,
    "transformers.activations.QuickGELUActivation": _QUICK_GELU,
    "transformers.activations.SiLUActivation": _SILU,
}


def _kernel_of(activation: Any) -> Kernel:
    """The activation of a module: one of the table, else the module's own call, in several steps."""
    known = _BY_CLASS.get(_name_of(type(activation)))
    if known is _GELU and getattr(activation, "approximate", "none") == "tanh":
        return _TANH_GELU
    return known or Kernel(activation, buffers=3)


# -- the table ---------------------------------------------------------------------------------------------------------


def _reading(
    kernel: Kernel,
    activated: Rows,
    factor: Rows | None,
    down: str,
    hidden: int,
    dropouts: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    around: tuple[str, ...] = (),
) -> FeedForward:
    """`around`: modules between the feed-forward and its Linear layers, whose forward is not called either."""
    bypassed = (*around, activated.path, *(() if factor is None else (factor.path,)), down)
    return FeedForward(
        activated,
        factor,
        down,
        hidden,
        kernel.function,
        dropouts,
        after,
        tuple(dict.fromkeys(bypassed)),
        kernel.buffers,
        kernel.in_place,
    )


def _diffusers(module: Any) -> FeedForward | None:
    """`diffusers.models.attention.FeedForward`: net = [projection with activation, dropout, linear, maybe dropout]."""
    first, hidden, proj = module.net[0], module.net[2].in_features, "net.0.proj"
    name = type(first).__name__
    value, gate = Rows(proj), Rows(proj, hidden)
    if name == "GEGLU":
        kernel, activated, factor = _GELU, gate, value
    elif name == "SwiGLU":
        kernel, activated, factor = _kernel_of(first.activation), gate, value
    elif name == "GELU":
        kernel, activated, factor = _TANH_GELU if first.approximate == "tanh" else _GELU, value, None
    elif name == "ApproximateGELU":
        kernel, activated, factor = _QUICK_GELU, value, None
    elif name == "LinearActivation":
        kernel, activated, factor = _kernel_of(first.activation), value, None
    else:
        return None
    after = ("net.3",) if len(module.net) > 3 else ()
    own = ("net.0.activation",) if hasattr(first, "activation") else ()
    return _reading(kernel, activated, factor, "net.2", hidden, ("net.1",), after, ("net", "net.0", *own))


def _clip(module: Any) -> FeedForward:
    """`CLIPMLP`: fc1, activation, fc2."""
    kernel = _kernel_of(module.activation_fn)
    return _reading(kernel, Rows("fc1"), None, "fc2", module.fc2.in_features, around=("activation_fn",))


def _dense(module: Any) -> FeedForward:
    """`...DenseActDense`: wi, activation, dropout, wo."""
    return _reading(
        _kernel_of(module.act), Rows("wi"), None, "wo", module.wo.in_features, ("dropout",), around=("act",)
    )


def _gated_dense(module: Any) -> FeedForward:
    """`...DenseGatedActDense`: activation of wi_0 times wi_1, dropout, wo."""
    kernel, hidden = _kernel_of(module.act), module.wo.in_features
    return _reading(kernel, Rows("wi_0"), Rows("wi_1"), "wo", hidden, ("dropout",), around=("act",))


def _llama(module: Any) -> FeedForward:
    """`LlamaMLP`: activation of gate_proj times up_proj, down_proj."""
    kernel, hidden = _kernel_of(module.act_fn), module.down_proj.in_features
    return _reading(kernel, Rows("gate_proj"), Rows("up_proj"), "down_proj", hidden, around=("act_fn",))


def _sequential(module: Any) -> FeedForward | None:
    """`nn.Sequential` of a Linear, an activation of the table, maybe a dropout, and a Linear, as in open_clip."""
    names, parts = zip(*module._modules.items(), strict=True) if len(module) else ((), ())
    if len(parts) not in (3, 4) or not isinstance(parts[0], nn.Linear) or not isinstance(parts[-1], nn.Linear):
        return None
    dropouts = names[2:-1]
    if _name_of(type(parts[1])) not in _BY_CLASS or not all(isinstance(part, nn.Dropout) for part in parts[2:-1]):
        return None
    if parts[0].out_features != parts[-1].in_features or parts[0] is parts[-1]:
        return None
    kernel, hidden = _kernel_of(parts[1]), parts[-1].in_features
    return _reading(kernel, Rows(names[0]), None, names[-1], hidden, dropouts, around=(names[1],))


READINGS: dict[str, Callable[[nn.Module], FeedForward | None]] = {
    "torch.nn.modules.container.Sequential": _sequential,
    "diffusers.models.attention.FeedForward": _diffusers,
    "transformers.models.clip.modeling_clip.CLIPMLP": _clip,
    "transformers.models.llama.modeling_llama.LlamaMLP": _llama,
}
"""By the class's full name, so that neither library is imported for a model of the other."""
TRANSFORMERS_READINGS: dict[str, Callable[[nn.Module], FeedForward | None]] = {
    "DenseActDense": _dense,
    "DenseGatedActDense": _gated_dense,
}
"""By the end of the class's name, behind that of the model."""


def _reading_of(of: type) -> Callable[[nn.Module], FeedForward | None] | None:
    name = _name_of(of)
    if name in READINGS or not name.startswith("transformers.models."):
        return READINGS.get(name)
    return next((read for ending, read in TRANSFORMERS_READINGS.items() if name.endswith(ending)), None)


def _name_of(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"
