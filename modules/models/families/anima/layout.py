"""Anima in its original layout (names of Cosmos-Predict2, and of the adapter in front of it) and in diffusers'."""

import re
from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.llm import llm_names

ADAPTER = f"{PREFIX}llm_adapter."
ADAPTER_TABLE = f"{ADAPTER}embed.weight"
ENCODER_PREFIX = "text_encoders.qwen3_06b.transformer"
ENCODER, CONDITIONER = "text_encoder", "text_conditioner"
BLOCK = re.compile(rf"^(?:{re.escape(PREFIX)}blocks|transformer_blocks)\.(\d+)\.")
OUTER = {
    "x_embedder.proj.1": "patch_embed.proj",
    "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
    "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
    "t_embedding_norm": "time_embed.norm",
    "final_layer.adaln_modulation.1": "norm_out.linear_1",
    "final_layer.adaln_modulation.2": "norm_out.linear_2",
    "final_layer.linear": "proj_out",
}
ATTENTION = {"q_norm": "norm_q", "k_norm": "norm_k", "q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v"}
INNER = {
    **{
        f"adaln_modulation_{name}.{layer}": f"{norm}.linear_{layer}"
        for name, norm in (("self_attn", "norm1"), ("cross_attn", "norm2"), ("mlp", "norm3"))
        for layer in (1, 2)
    },
    **{
        f"{name}.{theirs}": f"{ours}.{inner}"
        for name, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for theirs, inner in (*ATTENTION.items(), ("output_proj", "to_out.0"))
    },
    "mlp.layer1": "ff.net.0.proj",
    "mlp.layer2": "ff.net.2",
}
"""Of a block: original names and diffusers'."""


def blocks_of(header: Header) -> int:
    """How many blocks a transformer has, in either layout."""
    return max((int(match[1]) for key in header if (match := BLOCK.match(key))), default=-1) + 1


def transformer_keymap(blocks: int) -> KeyMap:
    """Return the key map of diffusers' transformer."""
    pairs = [ModulePair(f"{PREFIX}{theirs}", ours) for theirs, ours in OUTER.items()]
    for block in range(blocks):
        pairs += [
            ModulePair(f"{PREFIX}blocks.{block}.{theirs}", f"transformer_blocks.{block}.{ours}")
            for theirs, ours in INNER.items()
        ]
    return KeyMap(pairs)


def adapter_keymap() -> KeyMap:
    """Return the key map of diffusers' text conditioner, whose names are the original ones."""
    return KeyMap(ModulePair(f"{ADAPTER}{part}", part) for part in ("embed", "in_proj", "blocks", "out_proj", "norm"))


def _transformer_names(header: Header) -> Names:
    return transformer_keymap(blocks_of(header)), {name: name for name in header}


def _adapter_names(header: Header) -> Names:
    return adapter_keymap(), {name: name for name in header}


FOLDER = FolderLayout(
    title="Anima",
    names={
        TRANSFORMER: _transformer_names,
        ENCODER: partial(llm_names, prefix=ENCODER_PREFIX),
        CONDITIONER: _adapter_names,
    },
    text_signs={ENCODER: "model.layers.0.self_attn.q_norm.weight", CONDITIONER: "blocks.0.cross_attn.q_norm.weight"},
)
