"""Z-Image in its original layout: where its parts are in a file, and which rows of the file's tensors the parameters of
diffusers' transformer are. Files may have query, key and value in one tensor or apart."""

import re
from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.row_map import ParameterMap, RowMap, Source
from modules.models.text_encoders.llm import llm_names

ENCODER_PREFIX = "text_encoders.qwen3_4b.transformer"
FUSED = ".attention.qkv.weight"
APART = (".attention.to_q.weight", ".attention.to_k.weight", ".attention.to_v.weight")
RENAMED = (
    (re.compile(r"^final_layer\."), "all_final_layer.2-1."),
    (re.compile(r"^x_embedder\."), "all_x_embedder.2-1."),
    (re.compile(r"\.attention\.out\."), ".attention.to_out.0."),
    (re.compile(r"\.attention\.k_norm\."), ".attention.norm_k."),
    (re.compile(r"\.attention\.q_norm\."), ".attention.norm_q."),
)
"""Original names and diffusers'."""
BACK = (
    (re.compile(r"^all_final_layer\.2-1\."), "final_layer."),
    (re.compile(r"^all_x_embedder\.2-1\."), "x_embedder."),
    (re.compile(r"\.attention\.to_out\.0\."), ".attention.out."),
    (re.compile(r"\.attention\.norm_k\."), ".attention.k_norm."),
    (re.compile(r"\.attention\.norm_q\."), ".attention.q_norm."),
)
ENCODER = "text_encoder"


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    sources: dict[str, Source] = {}
    for name, entry in header.items():
        if not name.startswith(PREFIX) or name.endswith((*SCALE_NAMES, *LEFT_OVER)):
            continue
        source = Source.of(name)
        short = source.key.removeprefix(PREFIX)
        if not short.endswith(FUSED):
            sources[_renamed(short)] = source
            continue
        height = entry.shape[0] if source.rows is not None else entry.shape[0] // 3
        parts = range(3) if source.rows is None else (source.rows[0][0] // height,)
        for part in parts:
            rows = ((part * height, (part + 1) * height),)
            sources[short.replace(FUSED, APART[part])] = Source(source.key, rows)
    return RowMap(sources)


def _renamed(short: str, names: tuple[tuple[re.Pattern[str], str], ...] = RENAMED) -> str:
    for pattern, name in names:
        short = pattern.sub(name, short)
    return short


def _folder_names(header: Header) -> Names:
    """From diffusers' names to the original ones."""
    originals: dict[str, str] = {}
    for name, entry in header.items():
        part = next((number for number, ending in enumerate(APART) if name.endswith(ending)), None)
        if part is None:
            originals[name] = f"{PREFIX}{_renamed(name, BACK)}"
            continue
        height = entry.shape[0]
        key = f"{PREFIX}{name.removesuffix(APART[part])}{FUSED}"
        originals[name] = Source(key, ((part * height, (part + 1) * height),)).name
    return ParameterMap(originals), {name: name for name in header}


FOLDER = FolderLayout(
    title="Z-Image",
    names={TRANSFORMER: _folder_names, ENCODER: partial(llm_names, prefix=ENCODER_PREFIX)},
    text_signs={ENCODER: "model.layers.0.self_attn.q_norm.weight"},
)
