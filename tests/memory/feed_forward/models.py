"""Feed-forwards of the classes in the table, tiny, and modules that only look like them."""

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.attention import FeedForward
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, LlamaConfig, T5Config
from transformers.models.clip.modeling_clip import CLIPMLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense

DIFFUSERS = ("gelu", "gelu-approximate", "geglu", "geglu-approximate", "swiglu", "linear-silu")


class GateFirst(nn.Module):
    """The gate in the first half, activation and second dropout by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 144, bias=False)
        self.narrow = nn.Linear(72, 32)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.wide(x).chunk(2, dim=-1)
        return torch.as_tensor(self.drop(self.narrow(self.drop(value * F.silu(gate)))))


def t5(kind: Any, act: str) -> nn.Module:
    module: nn.Module = kind(T5Config(d_model=32, d_ff=72, dropout_rate=0.1, dense_act_fn=act))
    return module


def clip(act: str) -> nn.Module:
    module: nn.Module = CLIPMLP(CLIPTextConfig(hidden_size=32, intermediate_size=72, hidden_act=act))
    return module


def open_clip() -> nn.Module:
    model = nn.Sequential()
    for name, part in (("c_fc", nn.Linear(32, 72)), ("gelu", nn.GELU()), ("c_proj", nn.Linear(72, 32))):
        model.add_module(name, part)
    return model


def diffusers(act: str, final: bool = False, bias: bool = True, hidden: int = 72) -> nn.Module:
    module: nn.Module = FeedForward(
        32, dim_out=24, inner_dim=hidden, dropout=0.1, activation_fn=act, final_dropout=final, bias=bias
    )
    return module


FEED_FORWARDS: dict[str, Callable[[], nn.Module]] = {
    **{f"diffusers {act}": lambda act=act: diffusers(act) for act in DIFFUSERS},  # type: ignore[misc]
    "diffusers geglu final": lambda: diffusers("geglu", final=True),
    "diffusers gelu without bias": lambda: diffusers("gelu", bias=False),
    "clip quick_gelu": lambda: clip("quick_gelu"),
    "clip gelu": lambda: clip("gelu"),
    "open_clip": open_clip,
    "t5 relu": lambda: t5(T5DenseActDense, "relu"),
    "t5 gated": lambda: t5(T5DenseGatedActDense, "gelu_new"),
    "llama": lambda: LlamaMLP(LlamaConfig(hidden_size=32, intermediate_size=72)),
    "square": lambda: nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)),
}


class Residual(nn.Module):
    """Adds its input: no feed-forward itself, but it holds one."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = open_clip()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(x + self.inside(x))


class FunctionalDropout(nn.Module):
    """Its dropout is no module, so it cannot be taken along."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 72), nn.Linear(72, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fc2(F.dropout(F.relu(self.fc1(x)), 0.5, self.training)))


class Backwards(nn.Module):
    """Raises when it is run on layers of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 72), nn.Linear(72, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fc2(F.relu(self.fc1(x).view(-1, 72))))


NONE: dict[str, Callable[[], nn.Module]] = {
    "unknown class": GateFirst,
    "softmax in the middle": lambda: nn.Sequential(nn.Linear(32, 72), nn.Softmax(-1), nn.Linear(72, 32)),
    "norm in the middle": lambda: nn.Sequential(nn.Linear(32, 72), nn.LayerNorm(72), nn.Linear(72, 32)),
    "learnt activation": lambda: nn.Sequential(nn.Linear(32, 72), nn.PReLU(72), nn.Linear(72, 32)),
    "functional dropout": FunctionalDropout,
    "fixed sizes": Backwards,
    "a layer": lambda: nn.Linear(32, 32),
    "unfitting": lambda: nn.Sequential(nn.Linear(32, 72), nn.GELU(), nn.Linear(71, 32)),
    "input dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(32, 72, bias=False), nn.ReLU(), nn.Linear(72, 8)),
    "no forward": lambda: nn.ModuleList([nn.Linear(32, 72), nn.GELU(), nn.Linear(72, 32)]),
}
