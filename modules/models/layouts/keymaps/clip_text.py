"""CLIP's text model in original files (`cond_stage_model.transformer.text_model.*`) and as transformers' CLIPTextModel.

transformers 5 keeps `embeddings`, `encoder` and `final_layer_norm` at the top; the original files, and very old ones
without `text_model`, put them one level deeper.
"""

from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair

PREFIX = "cond_stage_model.transformer"
PARTS = ("embeddings", "encoder", "final_layer_norm")


def clip_text_keymap(has_text_model_level: bool = True, prefix: str = PREFIX) -> KeyMap:
    """The map; `has_text_model_level` is False for the oldest files."""
    middle = ".text_model" if has_text_model_level else ""
    return KeyMap(ModulePair(f"{prefix}{middle}.{part}", part) for part in PARTS)
