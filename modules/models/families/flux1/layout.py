"""FLUX.1 in the layout of Black Forest Labs: where its parts are in a file, and what its layers are in diffusers'
transformer. The converter of diffusers takes the width 3072 for granted, so the map is a table."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import T5_TABLE
from modules.models.families.diffusers_config import check_text
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.names.folder_layout import FIRST, SECOND, FolderLayout, Header, Names
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.clip import separate_clip_keymap
from modules.models.text_encoders.t5 import t5_file_keymap

VECTOR, GUIDANCE = "vector_in.in_layer.weight", "guidance_in.in_layer.weight"
"""Inputs: the pooled text, and of some models the distilled guidance."""
CLIP_PREFIX, T5_PREFIX = "text_encoders.clip_l.transformer", "text_encoders.t5xxl.transformer"
DOUBLE, SINGLE = "double_blocks.{}", "single_blocks.{}"
OUR_DOUBLE, OUR_SINGLE = "transformer_blocks.{}", "single_transformer_blocks.{}"


def attention_layers(original: str, ours: str, added: bool) -> tuple[Layer, ...]:
    """One of the two streams of a double block."""
    names = ("add_q_proj", "add_k_proj", "add_v_proj") if added else ("to_q", "to_k", "to_v")
    norms = ("norm_added_q", "norm_added_k") if added else ("norm_q", "norm_k")
    return (
        Layer(f"{original}_attn.qkv", tuple(f"{ours}.attn.{name}" for name in names)),
        Layer(f"{original}_attn.norm.query_norm", (f"{ours}.attn.{norms[0]}",), weight="scale"),
        Layer(f"{original}_attn.norm.key_norm", (f"{ours}.attn.{norms[1]}",), weight="scale"),
        Layer(f"{original}_attn.proj", (f"{ours}.attn.{'to_add_out' if added else 'to_out.0'}",)),
        Layer(f"{original}_mlp.0", (f"{ours}.{'ff_context' if added else 'ff'}.net.0.proj",)),
        Layer(f"{original}_mlp.2", (f"{ours}.{'ff_context' if added else 'ff'}.net.2",)),
    )


BLOCKS = (
    *attention_layers(f"{DOUBLE}.img", OUR_DOUBLE, added=False),
    *attention_layers(f"{DOUBLE}.txt", OUR_DOUBLE, added=True),
    Layer(
        f"{SINGLE}.linear1",
        (*(f"{OUR_SINGLE}.attn.to_{name}" for name in "qkv"), f"{OUR_SINGLE}.proj_mlp"),
        unequal=True,
    ),
    Layer(f"{SINGLE}.linear2", (f"{OUR_SINGLE}.proj_out",)),
    Layer(f"{SINGLE}.norm.query_norm", (f"{OUR_SINGLE}.attn.norm_q",), weight="scale"),
    Layer(f"{SINGLE}.norm.key_norm", (f"{OUR_SINGLE}.attn.norm_k",), weight="scale"),
)
"""What the blocks are made of without their modulation, which relatives of the family have in another place."""
OUTER = (
    Layer("img_in", ("x_embedder",)),
    Layer("txt_in", ("context_embedder",)),
    Layer("final_layer.linear", ("proj_out",)),
)
TABLE = LayerTable(
    (
        *BLOCKS,
        *OUTER,
        Layer(f"{DOUBLE}.img_mod.lin", (f"{OUR_DOUBLE}.norm1.linear",)),
        Layer(f"{DOUBLE}.txt_mod.lin", (f"{OUR_DOUBLE}.norm1_context.linear",)),
        Layer(f"{SINGLE}.modulation.lin", (f"{OUR_SINGLE}.norm.linear",)),
        Layer("time_in.in_layer", ("time_text_embed.timestep_embedder.linear_1",)),
        Layer("time_in.out_layer", ("time_text_embed.timestep_embedder.linear_2",)),
        Layer("vector_in.in_layer", ("time_text_embed.text_embedder.linear_1",)),
        Layer("vector_in.out_layer", ("time_text_embed.text_embedder.linear_2",)),
        Layer("guidance_in.in_layer", ("time_text_embed.guidance_embedder.linear_1",)),
        Layer("guidance_in.out_layer", ("time_text_embed.guidance_embedder.linear_2",)),
        Layer("final_layer.adaLN_modulation.1", ("norm_out.linear",), swapped=True),
    )
)


def width_of(header: Header) -> int:
    """How wide the transformer is; 0 where the tensor that tells is missing."""
    entry = header.get(f"{PREFIX}img_in.weight")
    return entry.shape[0] if entry is not None and entry.shape else 0


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    return TABLE.row_map(header, PREFIX, width_of(header))


def clip_names(header: Header) -> Names:
    """Return the names of CLIP-L, whose level `text_model` transformers has had and has not."""
    keymap = separate_clip_keymap(CLIP_PREFIX)
    return keymap, {name: name.removeprefix("text_model.") for name in header}


def t5_names(header: Header) -> Names:
    """Return the names of T5."""
    return t5_file_keymap(T5_PREFIX), {name: name for name in header}


def folder(title: str) -> FolderLayout:
    """Return the layout of one of the two families in folders of diffusers."""
    return FolderLayout(
        title=title,
        names={TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX), FIRST: clip_names, SECOND: t5_names},
        checks={FIRST: partial(check_text, activation="quick_gelu")},
        text_signs={SECOND: T5_TABLE},
    )
