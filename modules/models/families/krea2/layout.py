"""Krea 2 in its original layout and in diffusers': where its parts are in a file, and what their tensors are called."""

from functools import partial

from modules.models.detection.families import PREFIX, TRANSFORMER
from modules.models.detection.parts import SIGN, VISION_LEVEL
from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.row_map import ParameterMap
from modules.models.text_encoders.llm import vision_llm_names

PROJECTOR = "txtfusion.projector.weight"
ENCODER_PREFIX = "text_encoders.qwen3vl_4b.transformer"
ENCODER = "text_encoder"
OUTER = (
    ("first.", "img_in."),
    ("tmlp.0.", "time_embed.linear_1."),
    ("tmlp.2.", "time_embed.linear_2."),
    ("tproj.1.", "time_mod_proj."),
    ("txtmlp.0.scale", "txt_in.norm.weight"),
    ("txtmlp.1.", "txt_in.linear_1."),
    ("txtmlp.3.", "txt_in.linear_2."),
    ("txtfusion.", "text_fusion."),
    ("blocks.", "transformer_blocks."),
    ("last.linear.", "final_layer.linear."),
    ("last.norm.scale", "final_layer.norm.weight"),
    ("last.modulation.lin", "final_layer.scale_shift_table"),
)
"""Beginnings of original names and of diffusers'."""
INNER = (
    (".attn.wq.", ".attn.to_q."),
    (".attn.wk.", ".attn.to_k."),
    (".attn.wv.", ".attn.to_v."),
    (".attn.wo.", ".attn.to_out.0."),
    (".attn.gate.", ".attn.to_gate."),
    (".attn.qknorm.qnorm.scale", ".attn.norm_q.weight"),
    (".attn.qknorm.knorm.scale", ".attn.norm_k.weight"),
    (".mlp.", ".ff."),
    (".prenorm.scale", ".norm1.weight"),
    (".postnorm.scale", ".norm2.weight"),
    (".mod.lin", ".scale_shift_table"),
)
"""The same of parts of a block, of the image's or of the text's."""
BLOCKS = ("blocks.", "txtfusion.", "transformer_blocks.", "text_fusion.")
TABLE, TABLE_ROWS = ".scale_shift_table", 6
"""Of a block, what the time's six vectors are added to: one vector in the original layout."""


def transformer_keymap(header: Header) -> ParameterMap:
    """Return the key map of a checkpoint's transformer in the original layout."""
    names = [key for key in header if key.startswith(PREFIX) and not key.endswith((*SCALE_NAMES, *LEFT_OVER))]
    return _keymap({_ours(key.removeprefix(PREFIX)): key for key in names})


def _folder_names(header: Header) -> Names:
    return _keymap({name: f"{PREFIX}{_original(name)}" for name in header}), {name: name for name in header}


def _keymap(originals: dict[str, str]) -> ParameterMap:
    """Return the key map from diffusers' names to the original ones."""
    is_table = ("transformer_blocks.", TABLE)
    tables = {name: TABLE_ROWS for name in originals if name.startswith(is_table[0]) and name.endswith(is_table[1])}
    return ParameterMap(originals, tables)


def _ours(name: str) -> str:
    if name.startswith(BLOCKS):
        for theirs, ours in INNER:
            name = name.replace(theirs, ours)
    return next((ours + name.removeprefix(theirs) for theirs, ours in OUTER if name.startswith(theirs)), name)


def _original(name: str) -> str:
    if name.startswith(BLOCKS):
        for theirs, ours in INNER:
            name = name.replace(ours, theirs)
    return next((theirs + name.removeprefix(ours) for theirs, ours in OUTER if name.startswith(ours)), name)


FOLDER = FolderLayout(
    title="Krea 2",
    names={TRANSFORMER: _folder_names, ENCODER: partial(vision_llm_names, prefix=ENCODER_PREFIX)},
    text_signs={ENCODER: f"{VISION_LEVEL}{SIGN}"},
)
