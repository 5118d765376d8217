"""A model that was saved as an object: a zip file of torch's form whose pickle names the classes of the training
program, read as plain data (`pickled.Machine`). `PickleFile` is for files that hold nothing but weights.
"""

import math
import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.files.header import REMEDY
from modules.models.files.pickled import Machine, StoredTensor
from modules.models.files.tensor_file import DTYPES, Closing

MAX_PICKLE_BYTES = 64 << 20


class InertFile(Closing):
    """A zip file of torch's form. `content` is what its pickle holds, made of plain values, `Global`, `Inert` and
    `StoredTensor`. Raises `CheckpointError` for a file that is damaged, or larger than a model's pickle can be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise self._damaged(error) from error
        try:
            pickles = [name for name in self._zip.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(pickles) != 1:
                raise CheckpointError(f"{path.name}: is a zip file, but none that torch saved. {REMEDY}")
            self._folder = pickles[0].removesuffix("data.pkl")
            if self._zip.getinfo(pickles[0]).file_size > MAX_PICKLE_BYTES:
                raise self._damaged(f"its pickle is larger than {MAX_PICKLE_BYTES >> 20} MiB")
            self.content = self._run(self._bytes(pickles[0]))
        except BaseException:
            self._zip.close()
            raise

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._zip.close()

    def read(self, tensor: StoredTensor) -> Tensor:
        """The tensor on the CPU, contiguous, in memory of its own. Raises `CheckpointError` where the file has less
        than it takes."""
        content = bytearray(self._bytes(f"{self._folder}data/{tensor.storage.key}"))
        dtype = DTYPES[tensor.storage.dtype]
        if 0 in tensor.shape:
            return torch.empty(tensor.shape, dtype=dtype)
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
        if max(tensor.offset + span, math.prod(tensor.shape)) * dtype.itemsize > len(content):
            raise self._damaged("a tensor is larger than what the file holds for it")
        whole = len(content) // dtype.itemsize
        stored = torch.frombuffer(content, dtype=dtype, count=whole)
        view = stored.as_strided(tensor.shape, tensor.stride, tensor.offset)
        return view.clone(memory_format=torch.contiguous_format)

    def _run(self, pickled: bytes) -> object:
        try:
            return Machine().run(pickled)
        except (ValueError, IndexError, KeyError, OverflowError, pickle.UnpicklingError) as error:
            raise self._damaged(error) from error

    def _bytes(self, name: str) -> bytes:
        """A file of the zip. Compressed ones are refused: torch writes none, and a small one can become gigabytes."""
        try:
            entry = self._zip.getinfo(name)
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > self.path.stat().st_size:
                raise self._damaged(f"{name} is compressed")
            return self._zip.read(entry)
        except (zipfile.BadZipFile, KeyError, OSError, EOFError, RuntimeError, ValueError) as error:
            raise self._damaged(error) from error

    def _damaged(self, reason: object) -> CheckpointError:
        return CheckpointError(f"{self.path.name}: is not a readable checkpoint: {reason}. {REMEDY}")
