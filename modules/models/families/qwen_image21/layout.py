"""Qwen-Image-2.1's files: all of them have diffusers' names, in a whole checkpoint behind the beginnings of its parts.
Some have the two halves of a feed-forward layer as one tensor."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import SIGN, VISION_LEVEL
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.names.folder_layout import FIRST, FolderLayout, Header
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.llm import vision_llm_names

ENCODER_PREFIX = "text_encoders.qwen3vl_8b.transformer"
BLOCK = "transformer_blocks.{}"
OUTER = (
    *("img_in", "txt_in.text_norm", "txt_in.in_layer", "txt_in.out_layer", "modulation.1", "norm_out.linear"),
    *("proj_out", "time_text_embed.timestep_embedder.linear_1", "time_text_embed.timestep_embedder.linear_2"),
)
INNER = (
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.norm_q", "attn.norm_k"),
    *("img_mlp.gate_layer", "img_mlp.proj", "img_mlp.out"),
)
FUSED = Layer(f"{BLOCK}.img_mlp.gate_up", (f"{BLOCK}.img_mlp.gate_layer", f"{BLOCK}.img_mlp.proj"))
TABLE = LayerTable((FUSED, *(Layer(name, (name,)) for name in (*OUTER, *(f"{BLOCK}.{part}" for part in INNER)))))
"""Layers that are fused in some files stand before those that they are made of, which folders have."""


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    return TABLE.row_map(header, PREFIX, 0)


FOLDER = FolderLayout(
    title="Qwen-Image-2.1",
    names={
        TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX),
        FIRST: partial(vision_llm_names, prefix=ENCODER_PREFIX),
    },
    text_signs={FIRST: f"{VISION_LEVEL}{SIGN}"},
)
