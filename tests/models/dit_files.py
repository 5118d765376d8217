"""Tiny random models of transformer families, and the tensor names of the full ones (`tests/reference/dit`).

A recipe lists name, shape, scale and offset of each tensor; its values are `offset + scale * u`, with u uniform in
[-sqrt 3, sqrt 3) from splitmix64 over the index, beginning at the first 8 bytes of sha256 of "SEED:NAME".
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.models.detection.families import whole_names
from modules.models.files.tensor_file import TensorEntry
from modules.models.names.view import View, renamed

DIT = Path(__file__).parents[1] / "reference" / "dit"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def recipe_tensors(name: str, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a recipe, by their names behind `prefix`."""
    return {prefix + key: tensor.clone() for key, tensor in _recipe(name).items()}


@lru_cache(maxsize=16)  # up to 9 MB each
def _recipe(name: str) -> dict[str, Tensor]:
    recipe = json.loads((DIT / "recipes" / f"{name}.json").read_text(encoding="utf-8"))
    tensors = {}
    for key, shape, scale, offset, *dtype in recipe["tensors"]:
        values = offset + scale * _uniform(recipe["seed"], key, int(np.prod(shape, dtype=np.int64)))
        wide = torch.from_numpy(values.astype(np.float32)).reshape(shape)
        tensors[key] = wide.to(DTYPES[dtype[0] if dtype else recipe["dtype"]])
    return tensors


def _uniform(seed: int, name: str, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    start = np.uint64(int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little"))
    with np.errstate(over="ignore"):
        z = start + np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    fraction = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.asarray((fraction * 2 - 1) * 1.7320508075688772)


def write_recipe(path: Path, name: str, prefix: str = "") -> Path:
    """A safetensors file of a recipe's tensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(recipe_tensors(name, prefix), path)
    return path


def write_split(root: Path, case: str) -> Path:
    """The files of a recorded case in the folders that users keep them in; returns the denoiser's."""
    files = json.loads((DIT / f"{case}.json").read_text(encoding="utf-8"))["files"]
    for name in files["modules"]:
        folder = "VAE" if name.endswith("_ae_tiny") else "text_encoder"
        write_recipe(root / folder / f"{name}.safetensors", name)
    return write_recipe(root / "Stable-diffusion" / f"{files['denoiser']}.safetensors", files["denoiser"])


def write_whole(root: Path, case: str) -> Path:
    """The same as one file."""
    files = json.loads((DIT / f"{case}.json").read_text(encoding="utf-8"))["files"]
    tensors = recipe_tensors(files["denoiser"], "model.diffusion_model.")
    for name in files["modules"]:
        tensors |= recipe_tensors(name, files["prefixes"][name])
    path = root / "Stable-diffusion" / f"{case}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def recorded(case: str) -> dict[str, Tensor]:
    """The tensors that were recorded with the original code."""
    with np.load(DIT / f"{case}.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays}


def full_header(name: str, prefix: str = "") -> Mapping[str, TensorEntry]:
    """Names, types and shapes of a full model's file."""
    header = {}
    for line in gzip.decompress((DIT / "keys" / f"{name}.txt.gz").read_bytes()).decode().splitlines():
        dtype, shape, key = line.split("\t")
        sides = tuple(int(side) for side in shape.split("x")) if shape not in ("", "-") else ()
        header[prefix + key] = TensorEntry(DTYPES.get(dtype, torch.float32), sides, 0, 0)
    return header


class HeaderOnly:
    """A `TensorSource` of names and shapes alone."""

    def __init__(self, entries: Mapping[str, TensorEntry], path: Path = Path("full.safetensors")) -> None:
        self.path, self.entries = path, entries
        self.metadata: Mapping[str, str] = {}
        self.has_offsets = False

    def close(self) -> None:
        """Nothing is open."""

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """Zeros of the shape, on the meta device."""
        return torch.empty(self.entries[name].shape, device="meta")

    def __enter__(self) -> "HeaderOnly":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def with_whole_names(file: HeaderOnly) -> View:
    """A denoiser's file with the names that a whole checkpoint has."""
    return renamed(file, whole_names(file.entries) or {})
