"""The settings of SD3's own parts in a folder of diffusers, held against their tensors; and its scheduler's."""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path

from modules.models.architecture import NoiseScheduleArchitecture
from modules.models.layouts.diffusers_sd3 import dual_layers_of, layers_of
from modules.models.layouts.diffusers_settings import SCHEDULER, compare, settings_of, wrong
from modules.models.reading.tensor_file import TensorEntry

TRANSFORMER = "transformer/config.json"
CHANNELS_PER_HEAD = 64
GATED = "gated-gelu"


def check_transformer(folder: Path, part: str, header: Mapping[str, TensorEntry]) -> None:
    """Hold the settings of SD3's transformer against its tensors."""
    del part
    settings = settings_of(folder, TRANSFORMER)
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
        compare(folder, TRANSFORMER, settings, key, value)
    head = settings.get("attention_head_dim", CHANNELS_PER_HEAD)
    if head != width // heads:
        raise wrong(folder, TRANSFORMER, "attention_head_dim", head, f"{width // heads} is expected at this width")


def check_t5(folder: Path, part: str, header: Mapping[str, TensorEntry]) -> None:
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
    kind = settings.get("feed_forward_proj", GATED)
    if kind != GATED:
        raise wrong(folder, name, "feed_forward_proj", kind, f"a T5 of this kind has {GATED}")


def flow_schedule(folder: Path, known: NoiseScheduleArchitecture) -> NoiseScheduleArchitecture:
    """Of a flow model, whose scheduler says how far its times are shifted towards noise."""
    settings = settings_of(folder, SCHEDULER)
    if settings.get("use_dynamic_shifting"):
        raise wrong(folder, SCHEDULER, "use_dynamic_shifting", True, "a shift that follows the size is not known here")
    shift = settings.get("shift", settings.get("flow_shift", known.flow_shift))
    if not isinstance(shift, int | float) or isinstance(shift, bool) or not shift > 0:
        raise wrong(folder, SCHEDULER, "shift", shift, "it must be a number above 0")
    return replace(known, flow_shift=float(shift))


def _side(header: Mapping[str, TensorEntry], name: str, axis: int) -> int | None:
    """A side of a tensor; None where it has none such."""
    shape = header[name].shape if name in header else ()
    return shape[axis] if axis < len(shape) else None
