"""CLIP's text model in original files (`cond_stage_model.transformer.text_model.*`) and as transformers' CLIPTextModel.

transformers 5 keeps `embeddings`, `encoder` and `final_layer_norm` at the top; the original files, and very old ones
without `text_model`, put them one level deeper.

OpenCLIP's text model, and transformers' CLIPTextModelWithProjection: the original keeps an attention's three
projections in one tensor and the text projection transposed; `unfused` presents such a file with one tensor for
each parameter of ours, and the second map has the names it uses.
"""

from collections.abc import Iterator

from modules.models.names.keymap import KeyMap, ModulePair

PREFIX = "cond_stage_model.transformer"
PARTS = ("embeddings", "encoder", "final_layer_norm")


def clip_text_keymap(has_text_model_level: bool = True, prefix: str = PREFIX) -> KeyMap:
    """The map; `has_text_model_level` is False for the oldest files."""
    middle = ".text_model" if has_text_model_level else ""
    return KeyMap(ModulePair(f"{prefix}{middle}.{part}", part) for part in PARTS)


LAYER_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def open_clip_keymap(prefix: str, layers: int, with_projection: bool) -> KeyMap:
    """The map; `prefix` is where the text model stands in the file (`cond_stage_model.model`). Without the projection
    our side is a CLIPTextModel."""
    level = "text_model." if with_projection else ""
    return KeyMap(ModulePair(f"{prefix}.{original}", ours) for original, ours in _pairs(level, layers, with_projection))


def _pairs(level: str, layers: int, with_projection: bool) -> Iterator[tuple[str, str]]:
    yield "token_embedding", f"{level}embeddings.token_embedding"
    yield "positional_embedding", f"{level}embeddings.position_embedding"
    yield "ln_final", f"{level}final_layer_norm"
    if with_projection:
        yield "text_projection", "text_projection"
    for layer in range(layers):
        for original, ours in LAYER_PARTS.items():
            yield f"transformer.resblocks.{layer}.{original}", f"{level}encoder.layers.{layer}.{ours}"
