"""Reading `.ckpt`, `.pt` and `.bin` files without running anything that stands in them.

torch's weights-only unpickler builds tensors and plain containers and refuses every other object. What training code
habitually left next to the weights (a Lightning callback, numpy numbers) would make it refuse most old checkpoints, so
those names are answered with `Placeholder`, which takes everything and does nothing. Of files in torch's zip form the
pickle alone is read at first; a tensor's bytes are read from their place when it is asked for, as those of a
safetensors file are. Older files are read whole.
"""

import math
import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError, first_line
from modules.models.files.header import REMEDY
from modules.models.files.tensor_file import DTYPES, Closing, TensorEntry

LEVELS = ("state_dict", "model", "module", "depth_model")  # under which training scripts put the weights
MAX_LEVELS = 3
LENGTHS_AT = 26  # of the name and of the extra field, in the header before a zipped file
HARMLESS_NAMES = (
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.utilities.enums.DistributedType",
    "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "_codecs.encode",
)
"""Objects that real checkpoints hold next to their weights. None of them is ever built: `Placeholder` takes their
place."""


class Placeholder:
    """Stands where a file has one of `HARMLESS_NAMES`: accepts any arguments and state, keeps none."""

    def __new__(cls, *args: object) -> "Placeholder":
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        """Nothing is kept."""

    def __setstate__(self, state: object) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Place:
    """Where a tensor's numbers lie: in a file from the byte `begin` on, `span` numbers that are seen with `stride`."""

    begin: int
    span: int
    stride: tuple[int, ...]
    in_a_row: bool


class PickleFile(Closing):
    """A file of torch's pickle form with the interface of `TensorFile`. Raises `CheckpointError` for a file that is
    damaged, holds no tensors, or holds objects that could run a program.

    `begin` of the entries counts only where `has_offsets` says so: in zip form, with all tensors lying in a row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._file = _opened(path)
        try:
            is_zip = zipfile.is_zipfile(self._file)
            self._tensors = _tensors(path, _weights(_load(path, is_zip)), may_be_meta=is_zip)
            self._places = _places(self._file, path, self._tensors) if is_zip else {}
        except BaseException:
            self._file.close()
            raise
        self.has_offsets = is_zip and all(place.in_a_row for place in self._places.values())
        self.entries = {name: self._entry(name, tensor) for name, tensor in self._tensors.items()}

    def _entry(self, name: str, tensor: Tensor) -> TensorEntry:
        begin = self._places[name].begin if self.has_offsets else 0
        return TensorEntry(tensor.dtype, tuple(tensor.shape), begin, begin + tensor.numel() * tensor.element_size())

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._tensors = {}
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as the file has it, on the CPU, contiguous, in memory of its own or in `into` (its shape and
        dtype)."""
        tensor, place = self._tensors[name], self._places.get(name)
        if place is None:
            return tensor.clone(memory_format=torch.contiguous_format)
        if place.in_a_row and into is not None:
            return self._fill(name, into, place)
        span = self._fill(name, torch.empty(place.span, dtype=tensor.dtype), place)
        seen = span.as_strided(tensor.shape, place.stride)
        return seen if place.in_a_row else seen.clone(memory_format=torch.contiguous_format)

    def _fill(self, name: str, target: Tensor, place: Place) -> Tensor:
        if target.numel():
            self._file.seek(place.begin)
            view = memoryview(target.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            if self._file.readinto(view) != len(view):
                raise CheckpointError(f"{self.path.name}: the file ends inside of the tensor {name!r}. {REMEDY}")
        return target


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"{path.name}: cannot be opened ({error.strerror or error}). Check that it is there and readable."
        ) from error


def _load(path: Path, is_zip: bool) -> object:
    """Load what the file holds; for a zip file without the values, only with their places."""
    allowed = [(Placeholder, name) for name in HARMLESS_NAMES]
    try:
        with torch.serialization.safe_globals(allowed):  # type: ignore[arg-type]
            return torch.load(path, map_location="meta" if is_zip else "cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(
            r"(?:GLOBAL|global|class|Trying to call reduce for unrecognized function) ([\w.]+)", str(error)
        )
        if refused is None:
            raise CheckpointError(f"{path.name}: is not a readable checkpoint of torch's form. {REMEDY}") from error
        raise CheckpointError(
            f"{path.name}: was refused, because it holds more than weights ({refused[1]}). Such a file can run "
            "programs when it is opened. Get the .safetensors version of the model."
        ) from error
    except Exception as error:  # a damaged file makes torch's reader fail in any way at all
        raise CheckpointError(f"{path.name}: is not a readable checkpoint: {first_line(error)}. {REMEDY}") from error


def _weights(content: object) -> Mapping[object, object]:
    """The table of weights, out of the levels that training scripts registered it."""
    for _ in range(MAX_LEVELS):
        if not isinstance(content, Mapping):
            break
        inner = next((content[level] for level in LEVELS if isinstance(content.get(level), Mapping)), None)
        if inner is None:
            return content
        content = inner
    return content if isinstance(content, Mapping) else {}


def _tensors(path: Path, weights: Mapping[object, object], may_be_meta: bool) -> dict[str, Tensor]:
    found = {str(name): value.detach() for name, value in weights.items() if isinstance(value, Tensor)}
    if not found:
        raise CheckpointError(f"{path.name}: holds no tensors. {REMEDY}")
    size = path.stat().st_size
    for name, tensor in found.items():
        if tensor.dtype not in DTYPES.values():
            raise CheckpointError(
                f"{path.name}: {name!r} has the unknown dtype {tensor.dtype}. Known: {', '.join(DTYPES)}."
            )
        # Strides of 0 let a small file claim gigabytes; no model has them.
        claims_more = math.prod(tensor.shape) * tensor.itemsize > size
        if tensor.layout != torch.strided or (tensor.is_meta and not may_be_meta) or claims_more:
            raise CheckpointError(f"{path.name}: {name!r} is larger than what the file holds for it. {REMEDY}")
    return found


def _places(file: BufferedReader, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Place]:
    """Where the tensors of a file in zip form lie, as torch says and the zip's own directory confirms."""
    records = _records(file, path)
    places = {}
    for name, tensor in tensors.items():
        if not tensor.numel():
            places[name] = Place(0, 0, tensor.stride(), in_a_row=True)
            continue
        storage = tensor.untyped_storage()
        begin = getattr(storage, "_checkpoint_offset", None)
        held = records.get(begin) if isinstance(begin, int) else None
        span = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        offset = tensor.storage_offset() * tensor.itemsize
        if begin is None or held is None or offset + span * tensor.itemsize > held:
            raise CheckpointError(f"{path.name}: {name!r} is larger than what the file holds for it. {REMEDY}")
        places[name] = Place(begin + offset, span, tensor.stride(), tensor.is_contiguous())
    return places


def _records(file: BufferedReader, path: Path) -> dict[int, int]:
    """Return the length of each uncompressed file in a zip, by the byte where its content begins (PKWARE's APPNOTE,
    4.3.7)."""
    found = {}
    try:
        with zipfile.ZipFile(file) as directory:
            for item in directory.infolist():
                if item.compress_type != zipfile.ZIP_STORED:
                    continue
                file.seek(item.header_offset + LENGTHS_AT)
                name, extra = struct.unpack("<HH", file.read(4))
                found[item.header_offset + LENGTHS_AT + 4 + name + extra] = item.file_size
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path.name}: is not a readable checkpoint: {error}. {REMEDY}") from error
    return found
