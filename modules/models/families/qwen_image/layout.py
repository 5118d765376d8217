"""Qwen-Image's files: all of them have diffusers' names, in a whole checkpoint behind the beginnings of its parts."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import QWEN2_SIGN, VISION_LEVEL
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.llm import vision_llm_names

ENCODER_PREFIX = "text_encoders.qwen25_7b.transformer"
ENCODER = "text_encoder"
EDIT_MARK = f"{PREFIX}__index_timestep_zero__"
"""A tensor of models that edit images and see those at time 0, and diffusers' setting for it."""
ZERO_TIME = "zero_cond_t"
PARTS = ("img_in", "txt_in", "txt_norm", "time_text_embed", "transformer_blocks", "norm_out", "proj_out")


def transformer_keymap() -> KeyMap:
    """Return the key map of the transformer's tensors in a checkpoint."""
    return KeyMap(ModulePair(f"{PREFIX}{part}", part) for part in PARTS)


def _folder_names(header: Header) -> Names:
    return transformer_keymap(), {name: name for name in header}


FOLDER = FolderLayout(
    title="Qwen-Image",
    names={TRANSFORMER: _folder_names, ENCODER: partial(vision_llm_names, prefix=ENCODER_PREFIX)},
    text_signs={ENCODER: f"{VISION_LEVEL}{QWEN2_SIGN}"},
    marks={ZERO_TIME: EDIT_MARK},
)
