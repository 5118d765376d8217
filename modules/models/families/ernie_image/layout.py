"""ERNIE-Image's files: all of them have diffusers' names, in a whole checkpoint behind the beginnings of its parts."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import LEVEL, MISTRAL_SIGN
from modules.models.names.folder_layout import FIRST, FolderLayout, Header, Names
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.llm import mistral_names

ENCODER_PREFIX = "text_encoders.ministral3_3b.transformer"
PARTS = (*("x_embedder", "text_proj", "time_embedding", "adaLN_modulation", "layers", "final_norm", "final_linear"),)


def transformer_keymap() -> KeyMap:
    """Return the key map of the transformer's tensors in a checkpoint."""
    return KeyMap(ModulePair(f"{PREFIX}{part}", part) for part in PARTS)


def _folder_names(header: Header) -> Names:
    return transformer_keymap(), {name: name for name in header}


FOLDER = FolderLayout(
    title="ERNIE-Image",
    names={TRANSFORMER: _folder_names, FIRST: partial(mistral_names, prefix=ENCODER_PREFIX)},
    text_signs={FIRST: f"{LEVEL}{MISTRAL_SIGN}"},
)
