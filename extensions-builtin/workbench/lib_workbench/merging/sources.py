"""Sources of a merge: files whose 8-bit tensors are widened, and a file whose VAE comes from another.

Each is a `TensorSource`; nothing is held, every tensor is read when it is asked for.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES, check_declarations
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource
from modules.models.names.ldm_vae import PREFIX as VAE_PREFIX


class _Over(Closing):
    """The common part of a source that stands over another one and closes it."""

    has_offsets = False

    def __init__(self, file: TensorSource) -> None:
        self._file = file

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._file.metadata

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WideSource(_Over):
    """A file as if it had no 8-bit weights: those are read as float32, multiplied by their scales, which are hidden."""

    def __init__(self, file: TensorSource) -> None:
        super().__init__(file)
        check_declarations(file)
        self._scales = {name: _scale_of(name, file.entries) for name in file.entries}
        self.entries: Mapping[str, TensorEntry] = {
            name: self._widened(name, entry)
            for name, entry in file.entries.items()
            if not name.endswith((*SCALE_NAMES, *LEFT_OVER))
        }

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor on the CPU, see `TensorSource`."""
        stays = self.entries[name].dtype == self._file.entries[name].dtype
        tensor = self._file.read(name, into if stays else None)
        if stays:
            return tensor
        wide = tensor.float()
        scale = self._scales[name]
        if scale is not None:
            wide.mul_(self._file.read(scale).float().reshape(-1, *(1,) * (wide.ndim - 1)))
        return wide

    def _widened(self, name: str, entry: TensorEntry) -> TensorEntry:
        is_8_bit = entry.dtype.itemsize == 1 and (entry.dtype.is_floating_point or self._scales[name] is not None)
        return wide_entry(entry) if is_8_bit else entry


class BakedSource(_Over):
    """A checkpoint whose VAE comes from another file (see `open_vae`; this closes it too)."""

    def __init__(self, file: TensorSource, vae: TensorSource) -> None:
        super().__init__(file)
        self._vae = vae
        own = {name: entry for name, entry in file.entries.items() if not name.startswith(f"{VAE_PREFIX}.")}
        self.entries: Mapping[str, TensorEntry] = {**own, **vae.entries}

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor on the CPU, see `TensorSource`."""
        return (self._vae if name.startswith(f"{VAE_PREFIX}.") else self._file).read(name, into)

    def close(self) -> None:
        self._vae.close()
        super().close()


def wide_entry(entry: TensorEntry) -> TensorEntry:
    """The entry of the same tensor in float32."""
    return TensorEntry(torch.float32, entry.shape, 0, torch.Size(entry.shape).numel() * 4)


def _scale_of(name: str, entries: Mapping[str, TensorEntry]) -> str | None:
    if not name.endswith(".weight"):
        return None
    stem = name.removesuffix(".weight")
    return next((f"{stem}.{scale}" for scale in SCALE_NAMES if f"{stem}.{scale}" in entries), None)
