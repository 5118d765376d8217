"""Files of models in full size on paper: their headers, and holes where the weights would be."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.models.dit_files import full_header
from tests.models.original_keys import FULL, file_shapes

PARTS = {
    "z-image": (("te-qwen3-4b",), "vae-flux1"),
    "flux2-klein-4b": (("te-qwen3-4b",), "vae-flux2"),
    "flux1-dev": (("te-t5xxl", "te-clip-l"), "vae-flux1"),
}
"""Text encoders and VAE of transformers, which have files of their own."""
NAMES = {2: "BF16", 4: "F32"}
SIZES = {"BF16": 2, "F16": 2, "F32": 4}


def write_header(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """A file with these tensors (dtype and shape by name) that takes no room on disk."""
    header, at = {}, 0
    for key, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def write_empty(path: Path, name: str) -> None:
    """The file of a transformer, text encoder or VAE, as `full_header` knows it."""
    write_header(path, {key: (NAMES[entry.dtype.itemsize], entry.shape) for key, entry in full_header(name).items()})


def write_full(root: Path, name: str) -> None:
    """All files of a model of `PARTS` or of `FULL`, in the folders that users keep them in."""
    checkpoint = root / "Stable-diffusion" / f"{name}.safetensors"
    if name in FULL:
        write_header(checkpoint, {key: ("F16", shape) for key, shape in file_shapes(FULL[name]).items()})
        return
    encoders, vae = PARTS[name]
    write_empty(checkpoint, name)
    for encoder in encoders:
        write_empty(root / "text_encoder" / f"{encoder}.safetensors", encoder)
    write_empty(root / "VAE" / f"{vae}.safetensors", vae)
