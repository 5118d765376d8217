"""FLUX.2 in the layout of Black Forest Labs and in that of diffusers: where its parts are in a file, and what its
layers are in diffusers' transformer."""

from modules.models.families.flow_family import DENOISER
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.names.folder_layout import FIRST, FolderLayout, Header, Names, Parts
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.llm import llm_names

SIGN = "double_stream_modulation_img.lin.weight"
"""The tensor by which a file is known: modulation is shared by all blocks."""
GUIDANCE = "guidance_in.in_layer.weight"
"""Of the large model, which has another text encoder."""
ENCODER_PREFIX = "text_encoders.qwen3_4b.transformer"
LARGER_ENCODER = "text_encoders.qwen3_8b.transformer"
"""What whole files call the same place where the encoder is the larger one."""
TRANSFORMER = "transformer"
FOLDER_SIGNS = ("double_stream_modulation_img.linear.weight", "single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight")
FOLDER_GUIDANCE = "time_guidance_embed.guidance_embedder.linear_1.weight"
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
        Layer("double_stream_modulation_img.lin", ("double_stream_modulation_img.linear",)),
        Layer("double_stream_modulation_txt.lin", ("double_stream_modulation_txt.linear",)),
        Layer("single_stream_modulation.lin", ("single_stream_modulation.linear",)),
        Layer("final_layer.linear", ("proj_out",)),
        Layer("final_layer.adaLN_modulation.1", ("norm_out.linear",), swapped=True),
    )
)


def is_transformer(header: Header) -> bool:
    """Whether a checkpoint's denoiser is of this family."""
    return f"{DENOISER}{SIGN}" in header and f"{DENOISER}{GUIDANCE}" not in header


def transformer_rows(header: Header) -> RowMap | None:
    """The row map of a checkpoint's transformer; None for other files."""
    return TABLE.row_map(header, DENOISER, width_of(header)) if is_transformer(header) else None


def width_of(header: Header) -> int:
    """How wide the transformer is; 0 where the tensor that tells is missing."""
    entry = header.get(f"{DENOISER}img_in.weight")
    return entry.shape[0] if entry is not None and entry.shape else 0


def _transformer_names(header: Header) -> Names:
    return TABLE.folder_names(header, DENOISER)


def _encoder_names(header: Header) -> Names:
    return llm_names(header, ENCODER_PREFIX)


def _detects(parts: Parts) -> bool:
    header = parts.get(TRANSFORMER, {})
    return all(sign in header for sign in FOLDER_SIGNS) and FOLDER_GUIDANCE not in header


FOLDER = FolderLayout(
    title="FLUX.2 klein",
    detects=_detects,
    names={TRANSFORMER: _transformer_names, FIRST: _encoder_names},
    checks={},
    denoiser=TRANSFORMER,
    signs=FOLDER_SIGNS,
    is_flow=True,
    text_signs={FIRST: "model.layers.0.self_attn.q_norm.weight"},
)
