"""Files of models in full size on paper, or with few of their blocks in full width: their headers, and holes where the
weights would be."""

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from tests.models.dit_files import full_header
from tests.models.original_keys import FULL, file_shapes

PARTS = {
    "z-image": (("te-qwen3-4b",), "vae-flux1"),
    "flux2-klein-4b": (("te-qwen3-4b",), "vae-flux2"),
    "flux1-dev": (("te-t5xxl", "te-clip-l"), "vae-flux1"),
    "chroma1": (("te-t5xxl",), "vae-flux1"),
    "anima": (("te-qwen3-0.6b",), "vae-qwen-image"),
    "qwen-image": (("te-qwen2.5-vl-7b",), "vae-qwen-image"),
}
"""Text encoders and VAE of transformers, which have files of their own."""
SD35 = {
    "sd35-large": "",
    "te-clip-l": "text_encoders.clip_l.transformer.",
    "te-clip-g": "text_encoders.clip_g.transformer.",
    "te-t5xxl": "text_encoders.t5xxl.transformer.",
    "vae-flux1": "first_stage_model.",
}
"""What is in one file of SD3.5, and how its names begin. Its VAE has the layers of FLUX.1's."""
BLOCK = re.compile(r"(.*\b(?:layers|(?:double_|single_|joint_|transformer_)?blocks?)\.)(\d+)(\..*)")
WHOLE = ("refiner", "distilled_guidance", "decoder.", "llm_adapter", "visual.", "encoder.down", "encoder.mid")
"""In the names of what has blocks and is small."""
MOST_LAYERS = {"te-qwen3-4b": 27}
"""Layers that FLUX.2 klein reads the last of."""
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


def tensors_of(name: str, blocks: int | None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a file that `full_header` knows; of equal blocks the first so many and the last."""
    found = {key: (NAMES[entry.dtype.itemsize], entry.shape) for key, entry in full_header(name).items()}
    if blocks is None:
        return found
    matches = {key: BLOCK.fullmatch(key) for key in found if not any(word in key for word in WHOLE)}
    last: dict[str, int] = {}
    for match in (each for each in matches.values() if each is not None):
        last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    few = {}
    for key, value in found.items():
        own = matches.get(key)
        if own is None or int(own[2]) < blocks - 1:
            few[key] = value
        elif int(own[2]) == last[own[1]]:  # which may lack what nothing reads behind it
            few[f"{own[1]}{min(blocks - 1, last[own[1]])}{own[3]}"] = value
    return few


def write_empty(path: Path, name: str) -> None:
    """The file of a transformer, text encoder or VAE, as `full_header` knows it."""
    write_header(path, tensors_of(name, None))


def write_full(root: Path, name: str, blocks: int | None = None) -> None:
    """All files of a model of `PARTS`, of `FULL` or of SD3.5, in the folders that users keep them in; with `blocks`, of
    transformers so many of their equal blocks, and of their text encoders."""
    checkpoint = root / "Stable-diffusion" / f"{name}.safetensors"
    if name in FULL:
        write_header(checkpoint, {key: ("F16", shape) for key, shape in file_shapes(FULL[name]).items()})
        return
    if name in SD35:
        parts = {own + key: value for part, own in SD35.items() for key, value in tensors_of(part, blocks).items()}
        write_header(checkpoint, parts)
        return
    encoders, vae = PARTS[name]
    write_header(checkpoint, tensors_of(name, blocks))
    for encoder in encoders:
        layers = MOST_LAYERS.get(encoder, blocks) if blocks is not None and "klein" in name else blocks
        write_header(root / "text_encoder" / f"{encoder}.safetensors", tensors_of(encoder, layers))
    write_header(root / "VAE" / f"{vae}.safetensors", tensors_of(vae, None))
