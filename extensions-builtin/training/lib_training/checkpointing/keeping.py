"""Where the inputs of blocks wait that will be computed again: where they are, in main memory, or on disk."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from modules.errors import FeatherweightError
from modules.system.devices import pinned_memory

SMALLEST_BYTES = 1 << 16  # less is not worth a journey


class OffloadError(FeatherweightError):
    """Activations could not be written to disk, or not be read back."""

    status = 507


class Place(Protocol):
    """Takes tensors away and brings them back."""

    def put(self, tensor: Tensor) -> Any:
        """Something that stands for the tensor (contiguous, without gradient) while it is away."""

    def get(self, away: Any, device: torch.device) -> Tensor:
        """The tensor again, on `device`. May be called more than once."""

    def close(self) -> None:
        """Nothing will be asked for any more."""


class MainMemory:
    """Pinned memory, with a GPU; the copies run on the GPU's current stream, so nothing waits for them."""

    def put(self, tensor: Tensor) -> Tensor:
        """See `Place`. What is in main memory stays there."""
        if tensor.device.type == "cpu":
            return tensor
        away = pinned_memory(tensor.device, tensor.shape, tensor.dtype)
        return away.copy_(tensor, non_blocking=True)

    def get(self, away: Tensor, device: torch.device) -> Tensor:
        """See `Place`."""
        return away.to(device, non_blocking=True)

    def close(self) -> None:
        """See `Place`."""


@dataclass(frozen=True)
class _File:
    path: Path
    dtype: torch.dtype
    shape: torch.Size


class Disk:
    """Files in a folder of its own below `folder`; each goes when nobody can ask for it any more, all when it closes.

    Raises `OffloadError` for a folder that cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix="activations-", dir=folder))
        except OSError as error:
            raise OffloadError(
                f"Activations cannot be kept in {folder} ({error.strerror}). Choose a folder that can be written to."
            ) from error
        self._numbers = count()
        self._at_exit = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def __deepcopy__(self, memo: Any) -> Disk:
        return self  # files have numbers of their own: a copied model may use the same folder

    def put(self, tensor: Tensor) -> _File:
        """See `Place`. Raises `OffloadError` when the disk is full."""
        file = _File(self.folder / f"{next(self._numbers)}.bin", tensor.dtype, tensor.shape)
        try:
            tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tofile(file.path)
        except OSError as error:
            raise OffloadError(
                f"{file.path.name} with {tensor.nbytes / 2**20:.1f} MB of activations could not be written to "
                f"{self.folder} ({error.strerror}). Make room there, or keep activations in memory."
            ) from error
        weakref.finalize(file, file.path.unlink, missing_ok=True)
        return file

    def get(self, away: _File, device: torch.device) -> Tensor:
        """See `Place`. Raises `OffloadError` for a file that is missing or was changed."""
        expected = away.shape.numel() * away.dtype.itemsize
        try:
            data = np.fromfile(away.path, dtype=np.uint8)
        except OSError as error:
            raise OffloadError(
                f"{away.path} holds activations that are needed now and cannot be read ({error.strerror}). "
                "Leave that folder alone while a model is trained, and start the step again."
            ) from error
        if data.size != expected:
            raise OffloadError(f"{away.path} has {data.size} bytes instead of {expected}: something else wrote to it.")
        return torch.from_numpy(data).view(away.dtype).view(away.shape).to(device)

    def close(self) -> None:
        """See `Place`. Safe to call twice."""
        self._at_exit()


@dataclass(frozen=True)
class _Away:
    what: Any
    device: torch.device
    version: int


@dataclass
class ActivationOffloader:
    """Takes the inputs of one call after the other to a place. What several blocks get (a prompt) goes there once."""

    place: Place
    _known: Any = field(default_factory=WeakTensorKeyDictionary)

    def __deepcopy__(self, memo: Any) -> ActivationOffloader:
        return ActivationOffloader(self.place)

    @contextmanager
    def keeping(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        """While open, those of `inputs` that autograd saves are taken away; parameters and small ones are not."""
        by_memory = {(tensor.data_ptr(), tensor.shape, tensor.stride()): tensor for tensor in inputs}

        def pack(saved: Tensor) -> Tensor | _Away:
            tensor = by_memory.get((saved.data_ptr(), saved.shape, saved.stride()))
            if tensor is None or isinstance(tensor, torch.nn.Parameter) or tensor.nbytes < SMALLEST_BYTES:
                return saved
            found: weakref.ref[_Away] | None = self._known.get(tensor)
            known = None if found is None else found()
            if known is None or known.version != saved._version:
                known = _Away(self.place.put(saved.detach().contiguous()), saved.device, saved._version)
                self._known[tensor] = weakref.ref(known)
            return known

        def unpack(packed: Tensor | _Away) -> Tensor:
            return packed if isinstance(packed, Tensor) else self.place.get(packed.what, packed.device)

        try:
            with saved_tensors_hooks(pack, unpack):
                yield
        finally:
            by_memory.clear()  # what is saved holds on to `pack`, and must not hold on to the inputs by it
