"""Base of the adapter algorithms: strength, alpha, the magnitude of DoRA, small algebra.

Sources: LoRA (Hu et al. 2021, arXiv:2106.09685), LyCORIS (Yeh et al. 2023, arXiv:2309.14859), DoRA (Liu et al. 2024,
arXiv:2402.09353), OFT (Qiu et al. 2023, arXiv:2306.07280), BOFT (Liu et al. 2023, arXiv:2311.06243), IA3 (Liu et al.
2022, arXiv:2205.05638), GLoRA (Chavan et al. 2023, arXiv:2306.07967).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.changes import SideBranch
from modules.memory.formats.format import dtype_name

Factors = Mapping[str, Tensor]
"""The tensors of one layer in a file, by the end of their name ("lora_up.weight", "alpha" ...)."""

SPARSE = ("bias_indices", "bias_values", "bias_size")
MAGNITUDES = ("lora_magnitude_vector", "lora_magnitude_vector.weight")
COMMON_ENDS = frozenset({"alpha", "scale", "dora_scale", "diff_b", *MAGNITUDES, *SPARSE})
"""Names that may be next to the tensors of any algorithm."""

MAX_INPUT_CHANNELS = 33
"""Of a first convolution: 16 of the latent, 16 of the masked image's, the mask."""


@dataclass(frozen=True)
class Adapter(ABC):
    """One adapter's change to one layer; satisfies `LayerChange`.

    `rank` and `alpha` give the scale alpha / rank; without either it is 1. `fixed_scale` stands in some files instead.
    `dynamic_rank` uses the first so many ranks of a LoRA only. `added_weight` (of LyCORIS' old LoCon, there sparse) is
    part of the delta, `added_bias` [out] is the bias's own.
    """

    strength: float = 1.0
    dynamic_rank: int | None = None
    alpha: float | None = None
    fixed_scale: float | None = None
    dora_scale: Tensor | None = None
    added_weight: Tensor | None = None
    added_bias: Tensor | None = None

    @property
    def rank(self) -> int | None:
        """The inner dimension that alpha is divided by."""
        return None

    @property
    def scale(self) -> float:
        """Factor that the algorithm's own delta is multiplied by, before the strength."""
        if self.fixed_scale is not None:
            return self.fixed_scale
        if self.alpha is not None and self.rank:
            return self.alpha / self.rank
        return 1.0

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """See `LayerChange`."""
        return None

    @abstractmethod
    def plain_delta(self, weight: Tensor) -> Tensor:
        """The delta at scale 1 and strength 1, without DoRA, in float32 or the file's dtype as other programs do it."""

    def branch(self) -> SideBranch | None:
        """Only factorable algorithms have one."""
        return None

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        """See `LayerChange`."""
        delta = _fit(self.plain_delta(weight).to(weight.device), weight).float()
        if self.added_weight is not None:
            delta = delta + self.added_weight.to(weight.device).float().reshape(delta.shape)
        delta = delta * self.scale
        if self.dora_scale is not None:
            delta = _decomposed(weight, delta, self.dora_scale.to(weight.device).float())
        return delta * self.strength

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        """See `LayerChange`."""
        delta = self.added_bias
        return None if delta is None else delta.float() * self.strength

    def at(self, strength: float, dynamic_rank: int | None) -> "Adapter":
        """Return the same change at another strength."""
        return replace(self, strength=strength, dynamic_rank=dynamic_rank)


def common(factors: Factors) -> dict[str, object]:
    """The fields that any algorithm may carry. Raises `InvalidValueError`."""
    return {
        "alpha": number(factors, "alpha"),
        "fixed_scale": number(factors, "scale"),
        "dora_scale": _magnitude(factors),
        "added_weight": _sparse(factors),
        "added_bias": factors.get("diff_b"),
    }


def number(factors: Factors, name: str) -> float | None:
    """A tensor of one number; None if it is not there. Raises `InvalidValueError` for several numbers."""
    tensor = factors.get(name)
    if tensor is not None and tensor.numel() != 1:
        raise InvalidValueError(f"{name} holds {tensor.numel()} numbers instead of one")
    return None if tensor is None else float(tensor)


def require(factors: Factors, names: Iterable[str], dimensions: int = 2) -> None:
    """Raises `InvalidValueError` for those of these tensors that have fewer dimensions or are not of fractions."""
    for name in names:
        tensor = factors.get(name)
        if tensor is None:
            continue
        if tensor.ndim < dimensions:
            raise InvalidValueError(f"{name} has {tensor.ndim} dimensions instead of {dimensions} or more")
        if not tensor.is_floating_point():
            raise InvalidValueError(f"{name} holds {dtype_name(tensor.dtype)} numbers instead of fractions")


def _magnitude(factors: Factors) -> Tensor | None:
    """DoRA's magnitudes. PEFT's are always of the rows: [out], or [1, out, 1, 1] of a convolution."""
    require(factors, ("dora_scale", *MAGNITUDES), 1)
    rows = next((factors[name] for name in MAGNITUDES if name in factors), None)
    return factors.get("dora_scale") if rows is None else rows.reshape(-1, 1)


def _sparse(factors: Factors) -> Tensor | None:
    """[*size], from the places [n, dimensions] in columns and the values there [n]."""
    if not set(SPARSE) <= factors.keys():
        return None
    indices, values, size = (factors[name] for name in SPARSE)
    try:
        return torch.sparse_coo_tensor(indices, values, tuple(size.tolist()), check_invariants=True).to_dense()
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(f"{', '.join(SPARSE)} do not fit together") from error


def product(up: Tensor, down: Tensor, rank: int | None = None) -> Tensor:
    """up [out, r, ...] times down [r, in, ...] as matrices, over the first `rank` of r, in their own dtype."""
    up, down = up.flatten(1), down.flatten(1)
    return up[:, :rank] @ down[:rank]


def tucker(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """core [i, j, *kernel] with left [i, out] and right [j, in]: a kernel [out, in, *kernel] (CP / Tucker form)."""
    return torch.einsum("ij...,io,jn->on...", core, left, right)


def _fit(delta: Tensor, weight: Tensor) -> Tensor:
    """A delta [out, ...] in the weight's shape: as it is, or of a 1x1 convolution as a matrix and the reverse.

    For UNets with more input channels (inpainting) the added ones get zero. Raises `InvalidValueError`.
    """
    same_kernel = delta.ndim != weight.ndim or delta.ndim < 3 or delta.shape[2:] == weight.shape[2:]
    if delta.ndim and delta.shape[0] == weight.shape[0] and same_kernel:
        if delta.numel() == weight.numel():
            return delta.reshape(weight.shape)
        if weight.ndim == 4 and weight.shape[1] <= MAX_INPUT_CHANNELS and delta.numel() < weight.numel():
            delta = delta.reshape(weight.shape[0], -1, *weight.shape[2:])
            return torch.nn.functional.pad(delta, (0, 0, 0, 0, 0, weight.shape[1] - delta.shape[1]))
    raise InvalidValueError(f"{list(delta.shape)} does not fit {list(weight.shape)}")


def _decomposed(weight: Tensor, delta: Tensor, magnitude: Tensor) -> Tensor:
    """DoRA: weight + delta keeps its direction and gets the trained magnitude, one per column or one per row."""
    merged = weight + delta
    rows = magnitude.shape[0] == weight.shape[0] and magnitude.shape[0] != 1
    if rows:
        norm = merged.flatten(1).norm(dim=1)
        shape = (-1, *(1,) * (merged.ndim - 1))
    else:
        norm = merged.transpose(0, 1).flatten(1).norm(dim=1)
        shape = (1, -1, *(1,) * (merged.ndim - 2))
    if magnitude.numel() != norm.numel():
        raise InvalidValueError(f"{magnitude.numel()} magnitudes for a weight of {list(weight.shape)}")
    decomposed: Tensor = merged * (magnitude.reshape(shape) / norm.reshape(shape)) - weight
    return decomposed
