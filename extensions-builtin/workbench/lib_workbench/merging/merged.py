"""The arithmetic of a merge, as a source of tensors: each is read from its files, put together, and let go.

In float32 whatever the files are in, a few rows at a time: while a tensor is computed, its partners are in memory as
they lie in their files, next to the result.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor

from lib_workbench.merging.request import MergeMethod
from lib_workbench.merging.sources import wide_entry
from modules.errors import CheckpointError
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource
from modules.models.names.clip_text import PARTS, PREFIX
from modules.models.names.ldm_unet import PREFIX as UNET_PREFIX

CHANNELS = {9: "an inpainting model", 8: "an instruct-pix2pix model"}
"""Models with more input channels than the 4 of a usual one: the first 4 mean the same in all of them."""
NORMAL_CHANNELS = 4
LISTED_NAMES = 3
PIECE_NUMBERS = 1 << 20  # of which float32 copies exist at a time


@dataclass(frozen=True)
class Partners:
    """Partners of a tensor of A: its names in B and C (`c` None: the method needs no C)."""

    b: str
    c: str | None = None


class MergedSource(Closing):
    """A, B and C as one `TensorSource` with A's names. Closes them. Raises `CheckpointError` for models that do not fit
    together, naming a tensor and its shapes.

    What is in A only stays as it is, as do schedules and position ids. Where A takes more input channels than the
    others (inpainting), its first 4 are merged and the rest is A's.
    """

    has_offsets = False

    def __init__(
        self, method: MergeMethod, multiplier: float, a: TensorSource, b: TensorSource, c: TensorSource | None = None
    ) -> None:
        self._method, self._multiplier = method, multiplier
        self._a, self._b, self._c = a, b, c
        self.path: Path = a.path
        self.metadata: Mapping[str, str] = a.metadata
        others = (b,) if c is None else (b, c)
        self._partners = dict(_partners(a, others))
        _refuse_shapes(a, others, self._partners)
        _refuse_strangers(a, others, self._partners)
        self.entries: Mapping[str, TensorEntry] = {
            name: wide_entry(entry) if name in self._partners else entry for name, entry in a.entries.items()
        }

    @property
    def kept(self) -> list[str]:
        """Names of the weights that stay as they are in A, because another model has no such tensor."""
        return [name for name, entry in self.entries.items() if _merges(name, entry) and name not in self._partners]

    @property
    def extra_channels(self) -> int | None:
        """The number of input channels of A (8 or 9) where the others have 4."""
        for name, partners in self._partners.items():
            shape, other = self.entries[name].shape, self._b.entries[partners.b].shape
            if shape != other:
                return shape[1]
        return None

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The merged tensor as float32, or A's as it is; on the CPU, a merged one never in `into`."""
        partners = self._partners.get(name)
        if partners is None:
            return self._a.read(name, into)
        a, b = self._a.read(name), self._b.read(partners.b)
        c = None if partners.c is None or self._c is None else self._c.read(partners.c)
        merged = torch.empty(a.shape)
        rows = max(PIECE_NUMBERS * len(a) // max(a.numel(), 1), 1) if a.ndim else 1
        c_pieces = repeat(None) if c is None else _pieces(c, rows)
        parts = zip(_pieces(merged, rows), _pieces(a, rows), _pieces(b, rows), c_pieces, strict=False)
        for part in parts:
            self._merge_piece(*part)
        return merged

    def _merge_piece(self, merged: Tensor, a: Tensor, b: Tensor, c: Tensor | None) -> None:
        """Fill some rows of the result."""
        merged.copy_(a)
        change = b.float() if c is None else b.float() - c.float()
        change = change * self._multiplier
        common = merged if merged.shape == change.shape else merged[:, :NORMAL_CHANNELS]
        if self._method is MergeMethod.WEIGHTED_SUM:
            common.mul_(1 - self._multiplier)
        common.add_(change)

    def close(self) -> None:
        """Close the files."""
        for file in (self._a, self._b, self._c):
            if file is not None:
                file.close()


def _pieces(tensor: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Views of so many rows each; a single number is one piece."""
    if tensor.ndim == 0:
        return (tensor,)
    pieces: tuple[Tensor, ...] = torch.split(tensor, rows)
    return pieces


def _merges(name: str, entry: TensorEntry) -> bool:
    """Weights do; noise schedules and markers (names without a dot), position ids and other integers do not."""
    return entry.dtype.is_floating_point and "." in name


def _canonical(name: str) -> str:
    """One name for what the oldest files call differently: their text model stands one level higher."""
    for part in PARTS:
        old = f"{PREFIX}.{part}."
        if name.startswith(old):
            return f"{PREFIX}.text_model.{part}.{name[len(old) :]}"
    return name


def _partners(a: TensorSource, others: tuple[TensorSource, ...]) -> Iterable[tuple[str, Partners]]:
    names = [
        {_canonical(name): name for name, entry in file.entries.items() if _merges(name, entry)} for file in others
    ]
    for name, entry in a.entries.items():
        found = [known.get(_canonical(name)) for known in names]
        if _merges(name, entry) and found[0] is not None and found[-1] is not None:
            yield name, Partners(found[0], found[1] if len(found) > 1 else None)


def _refuse_strangers(a: TensorSource, others: tuple[TensorSource, ...], partners: Mapping[str, Partners]) -> None:
    """Text encoders and VAEs may be missing in a file; a UNet that lacks tensors is another model."""
    own = {name for name in a.entries if name.startswith(f"{UNET_PREFIX}.")}
    for file in others:
        theirs = {name for name in file.entries if name.startswith(f"{UNET_PREFIX}.")}
        for there, here, missing in ((a, file, own - theirs), (file, a, theirs - own)):
            if missing and own and theirs:
                raise CheckpointError(
                    f"{a.path.name} and {file.path.name} are not of the same architecture: {_some(missing)} of "
                    f"{there.path.name} is not in {here.path.name}. Choose models of the same family."
                )
        if own and not theirs:
            raise CheckpointError(
                f"{file.path.name} has no UNet, but {a.path.name} has one ({_some(own)}). Choose full checkpoints."
            )
    if not partners:
        names = " and ".join(file.path.name for file in (a, *others))
        raise CheckpointError(f"{names} have no weights in common, so there is nothing to merge. Choose full models.")


def _refuse_shapes(a: TensorSource, others: tuple[TensorSource, ...], partners: Mapping[str, Partners]) -> None:
    for name, partner in partners.items():
        shape = a.entries[name].shape
        shapes = [file.entries[str(their)].shape for file, their in zip(others, (partner.b, partner.c), strict=False)]
        if all(other == shape for other in shapes):
            continue
        if len(set(shapes)) == 1 and _adds_channels(shape, shapes[0]):
            continue
        for file, other in zip(others, shapes, strict=True):
            if _adds_channels(other, shape):
                raise CheckpointError(
                    f"{file.path.name} is {CHANNELS[other[1]]} ({name} is {list(other)}), {a.path.name} is not "
                    f"({list(shape)}). When such a model is merged with a usual one, it must be model A."
                )
        sizes = ", ".join(f"{list(other)} in {file.path.name}" for file, other in zip(others, shapes, strict=True))
        raise CheckpointError(
            f"The models are not of the same architecture: {name} is {list(shape)} in {a.path.name}, {sizes}. "
            "Choose models of the same family."
        )


def _adds_channels(large: tuple[int, ...], small: tuple[int, ...]) -> bool:
    """Whether `large` is the first convolution of a model with 8 or 9 channels, and `small` that of a usual one."""
    if len(large) != 4 or len(small) != 4:
        return False
    same = (large[0], *large[2:]) == (small[0], *small[2:])
    return same and large[1] in CHANNELS and small[1] == NORMAL_CHANNELS


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - LISTED_NAMES} more" if len(listed) > LISTED_NAMES else ""
    return ", ".join(listed[:LISTED_NAMES]) + more
