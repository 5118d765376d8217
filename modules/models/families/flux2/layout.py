"""FLUX.2 in the layout of Black Forest Labs and in that of diffusers: where its parts are in a file, and what its
layers are in diffusers' transformer."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import LEVEL, MISTRAL_SIGN
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.names.folder_layout import FIRST, FolderLayout, Header
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.llm import llm_names, mistral_names

ENCODER_PREFIX = "text_encoders.qwen3_4b.transformer"
LARGER_ENCODER = "text_encoders.qwen3_8b.transformer"
"""What whole files call the same place where the encoder is the larger one."""
DEV_ENCODER_PREFIX = "text_encoders.mistral3_24b.transformer"
DOUBLE, SINGLE = "double_blocks.{}", "single_blocks.{}"
OUR_DOUBLE, OUR_SINGLE = "transformer_blocks.{}", "single_transformer_blocks.{}"


def _stream(name: str, added: bool) -> tuple[Layer, ...]:
    """One of the two streams of a double block."""
    original, ours = f"{DOUBLE}.{name}", OUR_DOUBLE
    layers = ("add_q_proj", "add_k_proj", "add_v_proj") if added else ("to_q", "to_k", "to_v")
    norms = ("norm_added_q", "norm_added_k") if added else ("norm_q", "norm_k")
    feed_forward = f"{ours}.{'ff_context' if added else 'ff'}"
    return (
        Layer(f"{original}_attn.qkv", tuple(f"{ours}.attn.{layer}" for layer in layers)),
        Layer(f"{original}_attn.norm.query_norm", (f"{ours}.attn.{norms[0]}",), weight="scale"),
        Layer(f"{original}_attn.norm.key_norm", (f"{ours}.attn.{norms[1]}",), weight="scale"),
        Layer(f"{original}_attn.proj", (f"{ours}.attn.{'to_add_out' if added else 'to_out.0'}",)),
        Layer(f"{original}_mlp.0", (f"{feed_forward}.linear_in",)),
        Layer(f"{original}_mlp.2", (f"{feed_forward}.linear_out",)),
    )


TABLE = LayerTable(
    (
        *_stream("img", added=False),
        *_stream("txt", added=True),
        Layer(f"{SINGLE}.linear1", (f"{OUR_SINGLE}.attn.to_qkv_mlp_proj",)),
        Layer(f"{SINGLE}.linear2", (f"{OUR_SINGLE}.attn.to_out",)),
        Layer(f"{SINGLE}.norm.query_norm", (f"{OUR_SINGLE}.attn.norm_q",), weight="scale"),
        Layer(f"{SINGLE}.norm.key_norm", (f"{OUR_SINGLE}.attn.norm_k",), weight="scale"),
        Layer("img_in", ("x_embedder",)),
        Layer("txt_in", ("context_embedder",)),
        Layer("time_in.in_layer", ("time_guidance_embed.timestep_embedder.linear_1",)),
        Layer("time_in.out_layer", ("time_guidance_embed.timestep_embedder.linear_2",)),
        Layer("guidance_in.in_layer", ("time_guidance_embed.guidance_embedder.linear_1",)),
        Layer("guidance_in.out_layer", ("time_guidance_embed.guidance_embedder.linear_2",)),
        Layer("double_stream_modulation_img.lin", ("double_stream_modulation_img.linear",)),
        Layer("double_stream_modulation_txt.lin", ("double_stream_modulation_txt.linear",)),
        Layer("single_stream_modulation.lin", ("single_stream_modulation.linear",)),
        Layer("final_layer.linear", ("proj_out",)),
        Layer("final_layer.adaLN_modulation.1", ("norm_out.linear",), swapped=True),
    )
)


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    return TABLE.row_map(header, PREFIX, width_of(header))


def width_of(header: Header) -> int:
    """How wide the transformer is; 0 where the tensor that tells is missing."""
    entry = header.get(f"{PREFIX}img_in.weight")
    return entry.shape[0] if entry is not None and entry.shape else 0


FOLDER = FolderLayout(
    title="FLUX.2 klein",
    names={TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX), FIRST: partial(llm_names, prefix=ENCODER_PREFIX)},
    text_signs={FIRST: "model.layers.0.self_attn.q_norm.weight"},
)
DEV_FOLDER = FolderLayout(
    title="FLUX.2 dev",
    names={
        TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX),
        FIRST: partial(mistral_names, prefix=DEV_ENCODER_PREFIX),
    },
    text_signs={FIRST: f"{LEVEL}{MISTRAL_SIGN}"},
)
