"""SD3 in the original layout: where its parts are in a file, and which rows of the file's tensors the transformer's
parameters are, as diffusers' converter says."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from modules.models.detection.families import PREFIX
from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES
from modules.models.libraries import library_name
from modules.models.names.folder_layout import Header
from modules.models.names.row_map import RowMap, original_shapes, row_map, whole_shapes

EMBEDDING = f"{PREFIX}x_embedder.proj.weight"
CLIP_L_PREFIX = "text_encoders.clip_l.transformer"
CLIP_G_PREFIX = "text_encoders.clip_g.transformer"
T5_LEVEL = "text_encoders.t5xxl."
T5_PREFIX = f"{T5_LEVEL}transformer"
BLOCK = re.compile(r"^transformer_blocks\.(\d+)\.")
SECOND_ATTENTION = re.compile(r"^transformer_blocks\.(\d+)\.attn2\.to_out\.0\.weight$")


def convert(*args: Any, **kwargs: Any) -> Any:
    """Diffusers' converter."""
    path = "diffusers.loaders.single_file_utils.convert_sd3_transformer_checkpoint_to_diffusers"
    return library_name(path)(*args, **kwargs)


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer, whether its fused tensors are still whole or appear part by
    part. Raises `CheckpointError` for one that is far from whole."""
    shapes = {name: entry.shape for name, entry in header.items() if _is_parameter(name)}
    whole = whole_shapes(shapes)
    return row_map(convert, {name.removeprefix(PREFIX): shape for name, shape in whole.items()}, PREFIX)


def rows_of_folder(header: Header) -> RowMap:
    """Return the row map of a transformer whose tensors have diffusers' names."""
    shapes = original_shapes(convert, _seeds(header), {name: entry.shape for name, entry in header.items()})
    return row_map(convert, shapes, PREFIX)


def layers_of(names: Mapping[str, object]) -> int:
    """How many blocks a transformer of these diffusers' names has."""
    return max((int(match[1]) for name in names if (match := BLOCK.match(name))), default=-1) + 1


def dual_layers_of(names: Mapping[str, object]) -> frozenset[int]:
    """The blocks with a second attention."""
    return frozenset(int(match[1]) for name in names if (match := SECOND_ATTENTION.match(name)))


def _seeds(header: Header) -> Iterator[str]:
    """Original names by which the converter knows depth, second attentions, and normed queries and keys."""
    for layer in range(layers_of(header)):
        yield f"joint_blocks.{layer}.x_block.attn.qkv.weight"
    for layer in dual_layers_of(header):
        yield f"joint_blocks.{layer}.x_block.attn2.qkv.weight"
    if "transformer_blocks.0.attn.norm_q.weight" in header:
        yield "joint_blocks.0.x_block.attn.ln_q.weight"


def _is_parameter(name: str) -> bool:
    return name.startswith(PREFIX) and not name.endswith((*SCALE_NAMES, *LEFT_OVER))
