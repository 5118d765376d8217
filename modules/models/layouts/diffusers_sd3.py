"""SD3 in the diffusers layout: how its transformer is told apart, and what its tensors are called in the original one.

Names are those that `OpenClipLayout` presents: one tensor for each projection, scale before shift.
"""

import re
from collections.abc import Mapping

from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair
from modules.models.layouts.keymaps.mmdit import CLIP_L_PREFIX, T5_PREFIX, mmdit_keymap
from modules.models.layouts.keymaps.sd3_text import clip_g_keymap
from modules.models.reading.tensor_file import TensorEntry

Header = Mapping[str, TensorEntry]
TRANSFORMER, T5_PART = "transformer", "text_encoder_3"
SIGNS = ("pos_embed.proj.weight", "transformer_blocks.0.attn.add_q_proj.weight")
"""Tensors that SD3's transformer has, and no other known one has both of."""
BLOCK = re.compile(r"^transformer_blocks\.(\d+)\.")
SECOND_ATTENTION = re.compile(r"^transformer_blocks\.(\d+)\.attn2\.to_out\.0\.weight$")
PROJECTION = "text_projection"
UNUSED_PROJECTION = f"{CLIP_L_PREFIX}.{PROJECTION}"


def is_sd3(parts: Mapping[str, Header]) -> bool:
    """Whether a model, by its parts, is Stable Diffusion 3 or 3.5."""
    header = parts.get(TRANSFORMER, {})
    return all(sign in header for sign in SIGNS)


def sd3_map(part: str, header: Header) -> tuple[KeyMap, dict[str, str]]:
    """The key map of a part ("transformer", "text_encoder" ...), and what its map calls the tensors on our side."""
    same = {name: name for name in header}
    if part == TRANSFORMER:
        return mmdit_keymap(layers_of(header), dual_layers_of(header)), same
    if part == "text_encoder":
        pairs = (ModulePair(f"{CLIP_L_PREFIX}.text_model", "text_model"), ModulePair(UNUSED_PROJECTION, PROJECTION))
        return KeyMap(pairs), {name: _level_up(name) for name in header}
    if part == "text_encoder_2":
        return clip_g_keymap(), {name: _level_up(name) for name in header}
    return KeyMap((ModulePair(f"{T5_PREFIX}.shared", "shared"), ModulePair(f"{T5_PREFIX}.encoder", "encoder"))), same


def layers_of(header: Header) -> int:
    """How many blocks a transformer of these names has."""
    return max((int(match[1]) for name in header if (match := BLOCK.match(name))), default=-1) + 1


def dual_layers_of(header: Header) -> frozenset[int]:
    """The blocks with a second attention."""
    return frozenset(int(match[1]) for name in header if (match := SECOND_ATTENTION.match(name)))


def _level_up(name: str) -> str:
    """transformers has had the level `text_model` and has not."""
    return name if name.startswith(("text_model.", f"{PROJECTION}.")) else f"text_model.{name}"
