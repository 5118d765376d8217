"""FLUX.3 in the layout of Black Forest Labs and in that of diffusers: where its parts are in a file, and what its
layers are in diffusers' transformer."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import SIGN, VISION_LEVEL
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.names.folder_layout import FIRST, FolderLayout, Header
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.llm import vision_llm_names

ENCODER_PREFIX = "text_encoders.qwen3vl_4b.transformer"
STREAMS = ("image", "image_cond", "txt")
IMAGE, SINGLE = "content_mode_blocks.image.{}", "single_blocks.{}"
BLOCKS = {
    IMAGE: "mode_blocks.image.{}",
    "content_mode_blocks.image_cond.{}": "mode_blocks.image_cond.{}",
    "txt_mode_blocks.{}": "txt_mode_blocks.{}",
    SINGLE: "single_transformer_blocks.{}",
}
INNER = {
    **{"q_proj": "attn.to_q", "k_proj": "attn.to_k", "v_proj": "attn.to_v", "attn_out": "attn.to_out.0"},
    **{"mlp_in": "ff.linear_in", "mlp_out": "ff.linear_out"},
}
NORMS = {"norm.query_norm": "attn.norm_q", "norm.key_norm": "attn.norm_k"}
OUTER = {
    **{f"emb_in.{name}": f"x_embedders.{name}" for name in STREAMS[:2]},
    **{
        f"{kind}_stream_modulations.{name}.lin": f"{kind}_stream_modulations.{name}.linear"
        for kind in ("early", "single")
        for name in STREAMS
    },
    **{"txt_in": "context_embedder", "final_layer.image.linear": "proj_out"},
    **{
        f"{theirs}.{layer}_layer": f"{ours}.linear_{number}"
        for theirs, ours in (("time_in", "timestep_embedder"), ("ref_time_in", "target_timestep_embedder"))
        for number, layer in ((1, "in"), (2, "out"))
    },
}
TABLE = LayerTable(
    (
        *(
            Layer(f"{block}.{name}", (f"{ours}.{inner}",))
            for block, ours in BLOCKS.items()
            for name, inner in INNER.items()
        ),
        *(
            Layer(f"{block}.{name}", (f"{ours}.{inner}",), weight="scale")
            for block, ours in BLOCKS.items()
            for name, inner in NORMS.items()
        ),
        *(Layer(name, (ours,)) for name, ours in OUTER.items()),
        Layer("final_layer.image.adaLN_modulation.1", ("norm_out.linear",), swapped=True),
    )
)
OF_TRAINING = f"{PREFIX}repa_projectors."
"""Before the names of what only training used."""


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    return TABLE.row_map(header, PREFIX, 0)


FOLDER = FolderLayout(
    title="FLUX.3 klein",
    names={
        TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX),
        FIRST: partial(vision_llm_names, prefix=ENCODER_PREFIX),
    },
    text_signs={FIRST: f"{VISION_LEVEL}{SIGN}"},
)
