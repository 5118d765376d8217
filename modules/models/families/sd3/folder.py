"""SD3 in the diffusers layout: what its tensors are called in the original one, and its settings held
against its tensors."""

from functools import partial
from math import isqrt
from pathlib import Path

from modules.models.detection.families import TRANSFORMER
from modules.models.detection.parts import T5_TABLE
from modules.models.families.diffusers_config import CHANNELS_PER_HEAD, TRANSFORMER_CONFIG, check_text
from modules.models.families.sd3.layout import (
    CLIP_G_PREFIX,
    CLIP_L_PREFIX,
    T5_PREFIX,
    dual_layers_of,
    layers_of,
    rows_of_folder,
)
from modules.models.families.sd3.text import CLIP_G_PROJECTION, CLIP_L_PROJECTION
from modules.models.names.diffusers_settings import compare, settings_of, wrong
from modules.models.names.folder_layout import FIRST, SECOND, FolderLayout, Header, Names
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.clip import separate_clip_keymap
from modules.models.text_encoders.t5 import t5_file_keymap

THIRD = "text_encoder_3"
GATED = "gated-gelu"
PROJECTION = "text_projection"
UNUSED_PROJECTION = f"{CLIP_L_PREFIX}.{PROJECTION}"


def _transformer_names(header: Header) -> Names:
    return rows_of_folder(header).keymap(), {name: name for name in header}


def _clip_l_names(header: Header) -> Names:
    pairs = (ModulePair(f"{CLIP_L_PREFIX}.text_model", "text_model"), ModulePair(UNUSED_PROJECTION, PROJECTION))
    return KeyMap(pairs), {name: _level_up(name) for name in header}


def _clip_g_names(header: Header) -> Names:
    return separate_clip_keymap(CLIP_G_PREFIX, CLIP_G_PROJECTION, "text_model."), {
        name: _level_up(name) for name in header
    }


def _t5_names(header: Header) -> Names:
    return t5_file_keymap(T5_PREFIX), {name: name for name in header}


def _level_up(name: str) -> str:
    """transformers has had the level `text_model` and has not."""
    return name if name.startswith(("text_model.", f"{PROJECTION}.")) else f"text_model.{name}"


def check_transformer(folder: Path, part: str, header: Header) -> None:
    """Hold the settings of SD3's transformer against its tensors."""
    del part
    settings = settings_of(folder, TRANSFORMER_CONFIG)
    positions = _side(header, "pos_embed.pos_embed", 1)
    width = _side(header, "pos_embed.proj.weight", 0) or 0
    heads = max(width // CHANNELS_PER_HEAD, 1)
    normed = "transformer_blocks.0.attn.norm_q.weight" in header
    tensors: dict[str, object] = {
        "in_channels": _side(header, "pos_embed.proj.weight", 1),
        "patch_size": _side(header, "pos_embed.proj.weight", 2),
        "num_layers": layers_of(header),
        "num_attention_heads": heads,
        "caption_projection_dim": _side(header, "context_embedder.weight", 0),
        "joint_attention_dim": _side(header, "context_embedder.weight", 1),
        "pooled_projection_dim": _side(header, "time_text_embed.text_embedder.linear_1.weight", 1),
        "pos_embed_max_size": positions and isqrt(positions),
        "dual_attention_layers": sorted(dual_layers_of(header)),
        "qk_norm": "rms_norm" if normed else "none",
    }
    for key, value in tensors.items():
        compare(folder, TRANSFORMER_CONFIG, settings, key, value)
    head = settings.get("attention_head_dim", CHANNELS_PER_HEAD)
    if head != width // heads:
        raise wrong(
            folder, TRANSFORMER_CONFIG, "attention_head_dim", head, f"{width // heads} is expected at this width"
        )


def check_t5(folder: Path, part: str, header: Header) -> None:
    """Hold the settings of T5 against its tensors."""
    name = f"{part}/config.json"
    settings = settings_of(folder, name)
    first = "encoder.block.0.layer"
    tensors = {
        "vocab_size": _side(header, "shared.weight", 0),
        "d_model": _side(header, "shared.weight", 1),
        "d_ff": _side(header, f"{first}.1.DenseReluDense.wi_0.weight", 0),
        "num_layers": len({key.split(".")[2] for key in header if key.startswith("encoder.block.")}),
        "num_heads": _side(header, f"{first}.0.SelfAttention.relative_attention_bias.weight", 1),
    }
    for key, value in tensors.items():
        compare(folder, name, settings, key, value)
    feed_forward = settings.get("feed_forward_proj", GATED)
    if feed_forward != GATED:
        raise wrong(folder, name, "feed_forward_proj", feed_forward, f"a T5 of this kind has {GATED}")


def _side(header: Header, name: str, axis: int) -> int | None:
    """A side of a tensor; None where it has none such."""
    shape = header[name].shape if name in header else ()
    return shape[axis] if axis < len(shape) else None


FOLDER = FolderLayout(
    title="Stable Diffusion 3 and 3.5",
    names={TRANSFORMER: _transformer_names, FIRST: _clip_l_names, SECOND: _clip_g_names, THIRD: _t5_names},
    checks={
        TRANSFORMER: check_transformer,
        FIRST: partial(check_text, activation="quick_gelu"),
        SECOND: partial(check_text, activation="gelu"),
        THIRD: check_t5,
    },
    unused_if_identity={f"{UNUSED_PROJECTION}.weight": f"{CLIP_L_PROJECTION}.weight"},
    optional_parts=(THIRD,),
    text_signs={THIRD: T5_TABLE},
)
