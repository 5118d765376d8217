"""SD3's transformer in the original layout (`model.diffusion_model.*`) and diffusers' SD3Transformer2DModel.

The original keeps an attention's projections of query, key and value in one tensor `qkv`, and in two places shift
before scale where ours has scale before shift; `OpenClipLayout` presents such a file with one tensor for each
parameter of ours, and this map has the names it uses.
"""

from collections.abc import Iterator, Set

from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair

PREFIX = "model.diffusion_model"
SIGN = f"{PREFIX}.x_embedder.proj.weight"
"""The tensor by which a file is known."""
CLIP_L_PREFIX = "text_encoders.clip_l.transformer"
CLIP_G_PREFIX = "text_encoders.clip_g.transformer"
T5_LEVEL = "text_encoders.t5xxl."
T5_PREFIX = f"{T5_LEVEL}transformer"
ENDS = {
    "x_embedder.proj": "pos_embed.proj",
    "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
    "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
    "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
    "context_embedder": "context_embedder",
    "final_layer.adaLN_scale_shift": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
IMAGE_PARTS = {
    "attn.q_proj": "attn.to_q",
    "attn.k_proj": "attn.to_k",
    "attn.v_proj": "attn.to_v",
    "attn.proj": "attn.to_out.0",
    "attn.ln_q": "attn.norm_q",
    "attn.ln_k": "attn.norm_k",
    "adaLN_modulation.1": "norm1.linear",
    "mlp.fc1": "ff.net.0.proj",
    "mlp.fc2": "ff.net.2",
}
SECOND_ATTENTION = {
    "attn2.q_proj": "attn2.to_q",
    "attn2.k_proj": "attn2.to_k",
    "attn2.v_proj": "attn2.to_v",
    "attn2.proj": "attn2.to_out.0",
    "attn2.ln_q": "attn2.norm_q",
    "attn2.ln_k": "attn2.norm_k",
}
TEXT_PARTS = {
    "attn.q_proj": "attn.add_q_proj",
    "attn.k_proj": "attn.add_k_proj",
    "attn.v_proj": "attn.add_v_proj",
    "attn.proj": "attn.to_add_out",
    "attn.ln_q": "attn.norm_added_q",
    "attn.ln_k": "attn.norm_added_k",
    "adaLN_modulation.1": "norm1_context.linear",
    "mlp.fc1": "ff_context.net.0.proj",
    "mlp.fc2": "ff_context.net.2",
}
LAST_TEXT_PARTS = {
    **{name: ours for name, ours in TEXT_PARTS.items() if name.startswith("attn.") and name != "attn.proj"},
    "adaLN_scale_shift": "norm1_context.linear",
}
"""The last block makes nothing of the text but keys and values."""


def mmdit_keymap(layers: int, dual_layers: Set[int]) -> KeyMap:
    """The map; blocks in `dual_layers` have a second attention, of the image alone (SD3.5)."""
    return KeyMap(ModulePair(original, ours) for original, ours in _pairs(layers, dual_layers))


def _pairs(layers: int, dual_layers: Set[int]) -> Iterator[tuple[str, str]]:
    yield PREFIX, "pos_embed"  # the table of positions, a bare parameter
    for original, ours in ENDS.items():
        yield f"{PREFIX}.{original}", ours
    for layer in range(layers):
        image = {**IMAGE_PARTS, **(SECOND_ATTENTION if layer in dual_layers else {})}
        text = LAST_TEXT_PARTS if layer == layers - 1 else TEXT_PARTS
        for block, parts in (("x_block", image), ("context_block", text)):
            for original, ours in parts.items():
                yield f"{PREFIX}.joint_blocks.{layer}.{block}.{original}", f"transformer_blocks.{layer}.{ours}"
