"""Reading `.ckpt`, `.pt` and `.bin` files without running anything that stands in them.

torch's weights-only unpickler builds tensors and plain containers and refuses every other object. What training code
habitually left beside the weights (a Lightning callback, numpy numbers) would make it refuse most old checkpoints, so
those names are answered with `Inert`, which takes everything and does nothing. Files in torch's zip form are mapped
into memory: a tensor's bytes are read when it is asked for.
"""

import math
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.closing import Closing
from modules.models.tensor_file import DTYPES, REMEDY, TensorEntry

LEVELS = ("state_dict", "model", "module")  # under which training scripts put the weights
MAX_LEVELS = 3
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
"""Objects that real checkpoints hold beside their weights. None of them is ever built: `Inert` takes their place."""


class Inert:
    """Stands where a file has one of `HARMLESS_NAMES`: accepts any arguments and state, keeps none."""

    def __new__(cls, *args: object) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        """Nothing is kept."""

    def __setstate__(self, state: object) -> None:
        """Nothing is kept."""


class PickleFile(Closing):
    """A file of torch's pickle form with the interface of `TensorFile`. Raises `CheckpointError` for a file that is
    damaged, holds no tensors, or holds objects that could run a program.

    `begin` of the entries is 0: bytes have no fixed place in such a file, see `has_offsets`.
    """

    has_offsets = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._tensors: dict[str, Tensor] = _tensors(path, _weights(_load(path)))
        self.entries = {
            name: TensorEntry(tensor.dtype, tuple(tensor.shape), 0, tensor.numel() * tensor.element_size())
            for name, tensor in self._tensors.items()
        }

    def close(self) -> None:
        """Let go of the mapped file; tensors that were read stay valid."""
        self._tensors = {}

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, on the CPU, contiguous and in memory of its own, never in `into`."""
        del into
        return self._tensors[name].clone(memory_format=torch.contiguous_format)


def _load(path: Path) -> object:
    allowed = [(Inert, name) for name in HARMLESS_NAMES]
    try:
        is_zip = zipfile.is_zipfile(path)  # torch cannot map files of its form before 1.6
        with torch.serialization.safe_globals(allowed):  # type: ignore[arg-type]
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except OSError as error:
        raise CheckpointError(
            f"{path.name}: cannot be opened ({error.strerror or error}). Check that it is there and readable."
        ) from error
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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path.name}: is not a readable checkpoint: {reason}. {REMEDY}") from error


def _weights(content: object) -> Mapping[object, object]:
    """The table of weights, out of the levels that training scripts put around it."""
    for _ in range(MAX_LEVELS):
        if not isinstance(content, Mapping):
            break
        inner = next((content[level] for level in LEVELS if isinstance(content.get(level), Mapping)), None)
        if inner is None:
            return content
        content = inner
    return content if isinstance(content, Mapping) else {}


def _tensors(path: Path, weights: Mapping[object, object]) -> dict[str, Tensor]:
    found = {str(name): value.detach() for name, value in weights.items() if isinstance(value, Tensor)}
    if not found:
        raise CheckpointError(f"{path.name}: holds no tensors. {REMEDY}")
    size = path.stat().st_size
    for name, tensor in found.items():
        if tensor.dtype not in DTYPES.values():
            raise CheckpointError(
                f"{path.name}: {name!r} has the unknown dtype {tensor.dtype}. Known: {', '.join(DTYPES)}."
            )
        # Strides of 0 let a small file claim gigabytes, and a meta tensor has no bytes at all; no model has either.
        if tensor.layout != torch.strided or tensor.is_meta or math.prod(tensor.shape) * tensor.itemsize > size:
            raise CheckpointError(f"{path.name}: {name!r} is larger than what the file holds for it. {REMEDY}")
    return found
