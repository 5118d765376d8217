"""The parts of models that files hold besides a denoiser: text encoders and autoencoders, known by names and shapes.
Imports no torch.

Programs put different levels before transformers' names; llama.cpp has short names of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from modules.models.detection.families import Shapes
from modules.models.detection.kinds import HasShape, Kind, other_of

Entry = TypeVar("Entry")
LEVEL = "model."
VISION_LEVEL, VISION = "model.language_model.", "visual."
"""Before the names of a language model that sees, and before those of what it sees with."""
TABLE = "embed_tokens.weight"
SIGN = "layers.0.self_attn.q_norm.weight"
"""A tensor that no architecture of these names before Qwen3 has."""
QWEN2_SIGN = "layers.0.self_attn.q_proj.bias"
"""A tensor that Qwen2 has, and Qwen3 has not."""
MISTRAL_SIGN = "layers.0.self_attn.q_proj.weight"
"""A tensor of all such models; those of Mistral have neither of the two above, and `TEKKEN_TOKENS` tokens."""
TEKKEN_TOKENS, LARGEST_MISTRAL = 131_072, 4096
MISTRAL_GATE, MISTRAL_SMALL_RATIO = "layers.0.mlp.gate_proj.weight", 4
"""The layers of Mistral Small 3 are more than so many times as wide inside as outside; those of Ministral 3 are not."""
MISTRAL_NAME = re.compile(r"^(?:model\.)?(?:language_model\.)?(?:model\.)?(?=(?:embed_tokens|layers|norm)\.)")
"""What is before the names of a language model of Mistral, which may stand next to what it sees with."""
T5_TABLE = "shared.weight"
"""The tensor by which a T5 is known."""
T5_OTHER_SIGN = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
"""A tensor of UMT5, whose blocks have positions of their own each."""
IMAGE_ENCODER_SIGN = "vision_model.head.probe"
"""A tensor of SigLIP, of which images alone are read; its text model is no CLIP."""
TEXT_LEVEL = "text_model."
T5_SIGN = "enc.blk.0.attn_q.weight"
T5_SHORT = {
    "token_embd": "shared",
    "enc.output_norm": "encoder.final_layer_norm",
    "attn_q": "layer.0.SelfAttention.q",
    "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
    "attn_norm": "layer.0.layer_norm",
    "ffn_gate": "layer.1.DenseReluDense.wi_0",
    "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_down": "layer.1.DenseReluDense.wo",
    "ffn_norm": "layer.1.layer_norm",
}
"""llama.cpp's names of an encoder with relative positions, and transformers'."""
T5_LAYER = re.compile(r"^enc\.blk\.(\d+)\.(\w+)\.(weight|bias)$")
LLM_SIGNS = ("blk.0.attn_q_norm.weight", "blk.0.attn_q.bias")
"""In llama.cpp's names, of Qwen3 and of Qwen2."""
VISION_ARCHITECTURES = ("qwen3vl", "qwen2vl")
"""What GGUF files call language models that see; they hold the language part alone."""
VISION_TYPES = (("vision_llm", SIGN), ("vision_qwen2", QWEN2_SIGN))
"""Language models that see, and the tensor by which each is known."""
LLM_SHORT = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's names of a language model, and transformers'."""
LLM_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")
WHOLE = re.compile(r"^text_encoders\.[^.]+\.transformer\.")
"""Before the names of a text encoder in a whole checkpoint."""
CLIP_WIDTH = re.compile(r"(?:^|\.)(?:final_layer_norm|ln_final)\.weight$")
CLIP_TABLE = re.compile(r"(?:^|\.)token_embedding\.weight$")


ENCODER_TYPES = {
    "clip": "CLIP",
    "t5": "T5",
    "llm": "a language model (Qwen3)",
    "vision_llm": "the language part of a model that sees (Qwen3-VL)",
    "vision_qwen2": "the language part of a model that sees (Qwen2.5-VL)",
    "mistral": "a language model (Ministral 3)",
    "mistral_small": "a language model (Mistral Small 3)",
}
"""What text encoders are, for people."""


@dataclass(frozen=True)
class Part:
    """A part of a model in a file: a denoiser (`type` is the name of its family), a text encoder (a key of
    `ENCODER_TYPES`) or a VAE (the name of its class). `width`: of its tokens, or the channels of its latents."""

    type: str
    width: int


def llm_width(header: Shapes, prefix: str = "", sign: str = SIGN) -> int | None:
    """Return the width of the language model in a file, of the architecture that has the tensor `sign`; None for
    others."""
    for level in (f"{prefix}{LEVEL}", prefix):
        entry = header.get(f"{level}{TABLE}")
        if f"{level}{sign}" in header and entry is not None and len(entry.shape) == 2:
            return entry.shape[-1]
    return None


def mistral_width(header: Shapes, is_small: bool = False) -> int | None:
    """Return the width of the Ministral 3 in a file, or with `is_small` of the Mistral Small 3, under `text_names`;
    None for others."""
    table = header.get(f"{LEVEL}{TABLE}")
    has_signs = [f"{LEVEL}{sign}" in header for sign in (MISTRAL_SIGN, SIGN, QWEN2_SIGN)]
    shape = table.shape if table is not None and has_signs == [True, False, False] else ()
    if shape[:1] != (TEKKEN_TOKENS,) or is_small != is_mistral_small(header, LEVEL):
        return None
    return shape[-1] if is_small or shape[-1] <= LARGEST_MISTRAL else None


def is_mistral_small(header: Shapes, level: str) -> bool:
    """Whether the language model of Mistral at `level` is Mistral Small 3."""
    gate = header.get(f"{level}{MISTRAL_GATE}")
    return gate is not None and len(gate.shape) == 2 and gate.shape[0] > MISTRAL_SMALL_RATIO * gate.shape[1]


def t5_width(header: Shapes) -> int | None:
    """Return the width of the T5 in a file; None for other files."""
    entry = None if T5_OTHER_SIGN in header else header.get(T5_TABLE)
    return entry.shape[-1] if entry is not None and len(entry.shape) == 2 else None


def text_names(header: Shapes, architecture: str = "") -> Mapping[str, str]:
    """Return transformers' names of a text encoder by those in its file: without what is before `text_model.` and
    `model.`, or before all names as in a whole checkpoint, and llama.cpp's spelt out. `architecture` is what a GGUF
    file calls it. Names that stay may be left out."""
    if header and all(WHOLE.match(key) for key in header):
        bare = {key: WHOLE.sub("", key) for key in header}
        inner = text_names({bare[key]: entry for key, entry in header.items()}, architecture)
        return {key: inner.get(name, name) for key, name in bare.items()}
    if T5_SIGN in header:
        return {key: _spelt_out(key, T5_LAYER, "encoder.block", T5_SHORT) for key in header}
    if any(sign in header for sign in LLM_SIGNS):
        names = {key: _spelt_out(key, LLM_LAYER, "model.layers", LLM_SHORT) for key in header}
        if architecture in VISION_ARCHITECTURES:
            names = {key: _behind_vision_level(name) for key, name in names.items()}
        return names
    if _sees(header):
        return {key: _behind_vision_level(key) for key in header}
    mistral = {key: MISTRAL_NAME.sub(LEVEL, key) for key in header}
    renamed = {mistral[key]: entry for key, entry in header.items()}
    if any(mistral_width(renamed, is_small) is not None for is_small in (False, True)):
        return mistral
    if llm_width(header) is not None and not any(key.startswith(LEVEL) for key in header):
        return {key: f"{LEVEL}{key}" for key in header}
    levels = {key.partition(TEXT_LEVEL)[0] for key in header if TEXT_LEVEL in key}
    level = next(iter(levels)) if len(levels) == 1 else ""
    return {key: key.removeprefix(level) for key in header} if level else {}


def held_encoder(header: Shapes) -> Part | None:
    """Return the text encoder that the file of this header holds, under `text_names`; None for other files."""
    seeing = [(name, llm_width(header, VISION_LEVEL, sign)) for name, sign in VISION_TYPES]
    mistral = [("mistral", mistral_width(header)), ("mistral_small", mistral_width(header, is_small=True))]
    for name, width in (*seeing, ("llm", llm_width(header)), *mistral, ("t5", t5_width(header))):
        if width is not None:
            return Part(name, width)
    if IMAGE_ENCODER_SIGN in header or not any(CLIP_TABLE.search(key) for key in header):
        return None
    width = next((entry.shape[0] for key, entry in header.items() if CLIP_WIDTH.search(key) and entry.shape), None)
    return None if width is None else Part("clip", width)


def _sees(header: Shapes) -> bool:
    """Whether a file holds a language model and what it sees with, or has the names of such a one."""
    levels = (VISION, f"{LEVEL}{VISION}", "language_model.", VISION_LEVEL)
    return any(key.startswith(levels) for key in header) and any(key.endswith((SIGN, QWEN2_SIGN)) for key in header)


def _behind_vision_level(name: str) -> str:
    short = name.removeprefix(LEVEL).removeprefix("language_model.")
    return short if short.startswith((VISION, "lm_head.")) else f"{VISION_LEVEL}{short}"


def _spelt_out(key: str, layer: re.Pattern[str], level: str, names: dict[str, str]) -> str:
    match = layer.match(key)
    if match is not None:
        return f"{level}.{match[1]}.{names.get(match[2], match[2])}.{match[3]}"
    stem, _, leaf = key.rpartition(".")
    return f"{names.get(stem, stem)}.{leaf}"


@dataclass(frozen=True)
class VaeSigns:
    """The tensors by which a VAE's own file is known in the original layout and in that of diffusers, with their
    numbers of axes; `type` is the name of its class in diffusers."""

    type: str
    original: Mapping[str, int]
    diffusers: Mapping[str, int]


VAE_LEVELS = ("first_stage_model.", "vae.")
"""Before the names of a VAE in a whole checkpoint."""
VAES = (
    VaeSigns(
        "AutoencoderKLQwenImage",
        {"decoder.middle.0.residual.0.gamma": 4, "decoder.conv1.weight": 5},
        {"decoder.conv_in.weight": 5, "decoder.mid_block.resnets.0.norm1.gamma": 4},
    ),
    VaeSigns(
        "AutoencoderKLQwenImage21",
        {"decoder.upsamples.0.upsamples.0.residual.0.gamma": 4, "decoder.conv1.weight": 4},
        {"decoder.conv_in.weight": 4, "decoder.mid_block.resnets.0.norm1.gamma": 4},
    ),
    VaeSigns(
        "AutoencoderKLFlux2",
        {"bn.running_mean": 1, "encoder.down.0.block.0.conv1.weight": 4},
        {"bn.running_mean": 1, "encoder.down_blocks.0.resnets.0.conv1.weight": 4},
    ),
    VaeSigns(
        "AutoencoderKL",
        {"decoder.mid.block_1.conv1.weight": 4},
        {"encoder.down_blocks.0.resnets.0.conv1.weight": 4},
    ),
)
"""From the most special to the most general, the order in which a file is compared with them."""
FIRST_OF_DECODER = ("decoder.conv_in.weight", "decoder.conv1.weight")
"""The layer that takes a VAE's own latents, in any layout."""


def vae_signs(header: Shapes) -> tuple[VaeSigns, bool] | None:
    """Return the type of VAE that a file without the names of a checkpoint holds, and whether it has the names of
    diffusers; None for other files."""
    if other_of(header, Kind.VAE):
        return None
    for vae in VAES:
        for signs, is_diffusers in ((vae.original, False), (vae.diffusers, True)):
            if all(name in header and len(header[name].shape) == axes for name, axes in signs.items()):
                return vae, is_diffusers
    return None


def without_level(header: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the tensors of a VAE by their names in a file of its own, also where they are those of a whole
    checkpoint."""
    level = next((level for level in VAE_LEVELS if any(name.startswith(level) for name in header)), "")
    return {name.removeprefix(level): entry for name, entry in header.items() if name.startswith(level)}


def own_channels(header: Shapes, prefix: str = VAE_LEVELS[0]) -> int | None:
    """Return the channels of the latents that the VAE behind `prefix` has, before they are packed; None without one."""
    entry = next((header[f"{prefix}{name}"] for name in FIRST_OF_DECODER if f"{prefix}{name}" in header), None)
    return entry.shape[1] if entry is not None and len(entry.shape) > 1 else None


def held_vae(header: Shapes) -> Part | None:
    """Return the VAE under the names of `without_level`, and its own channels; None without one."""
    found, channels = vae_signs(header), own_channels(header, "")
    return None if found is None or channels is None else Part(found[0].type, channels)


ENCODER_PLACES = re.compile(
    r"^(?:text_encoders\.[^.]+\.transformer|conditioner\.embedders\.\d+\.(?:transformer|model)"
    r"|cond_stage_model\.(?:transformer|model)|text_encoder(?:_\d)?)\."
)
"""Before the names of text encoders in a whole checkpoint of any layout."""


def parts_in(header: Shapes, architecture: str = "") -> tuple[Part, ...]:
    """Return the text encoders and the VAE in a file, whether it holds one of them or a whole checkpoint."""
    places: dict[str, dict[str, HasShape]] = {}
    for key, entry in header.items():
        place = ENCODER_PLACES.match(key)
        if place is not None:
            places.setdefault(place[0], {})[key[place.end() :]] = entry
    found = []
    for encoder in places.values() or [dict(header)]:
        names = text_names(encoder, architecture)
        held = held_encoder({names.get(key, key): entry for key, entry in encoder.items()})
        found += [] if held is None else [held]
    vae = held_vae(without_level(header))
    return tuple(found) if vae is None else (*found, vae)
