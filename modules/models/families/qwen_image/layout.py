"""Qwen-Image's files: all of them have diffusers' names, in a whole checkpoint behind the beginnings of its parts."""

from modules.models.families.flow_family import DENOISER
from modules.models.names.folder_layout import FolderLayout, Header, Names, Parts
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.llm import QWEN2_SIGN, VISION_LEVEL, vision_llm_names

SIGNS = ("txt_norm.weight", "transformer_blocks.0.img_mod.1.weight")
"""The tensors by which a file is known."""
ENCODER_PREFIX = "text_encoders.qwen25_7b.transformer"
TRANSFORMER, ENCODER = "transformer", "text_encoder"
PARTS = ("img_in", "txt_in", "txt_norm", "time_text_embed", "transformer_blocks", "norm_out", "proj_out")


def transformer_keymap() -> KeyMap:
    """Of the transformer's tensors in a checkpoint."""
    return KeyMap(ModulePair(f"{DENOISER}{part}", part) for part in PARTS)


def _folder_names(header: Header) -> Names:
    return transformer_keymap(), {name: name for name in header}


def _encoder_names(header: Header) -> Names:
    return vision_llm_names(header, ENCODER_PREFIX)


def _detects(parts: Parts) -> bool:
    return all(sign in parts.get(TRANSFORMER, {}) for sign in SIGNS)


FOLDER = FolderLayout(
    title="Qwen-Image",
    detects=_detects,
    names={TRANSFORMER: _folder_names, ENCODER: _encoder_names},
    checks={},
    denoiser=TRANSFORMER,
    signs=SIGNS,
    is_flow=True,
    text_signs={ENCODER: f"{VISION_LEVEL}{QWEN2_SIGN}"},
)
