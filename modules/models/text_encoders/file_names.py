"""What files that hold a text encoder call its tensors, and which type and size of encoder a file holds.

Programs put different levels before transformers' names; llama.cpp has short names of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Header
from modules.models.names.view import open_whole, renamed
from modules.models.text_encoders.llm import LEVEL, QWEN2_SIGN, SIGN, VISION, VISION_LEVEL, llm_width
from modules.models.text_encoders.t5 import t5_width

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
}
"""What text encoders are, for people."""


@dataclass(frozen=True)
class HeldEncoder:
    """The text encoder in a file: a key of `ENCODER_TYPES`, and the width of its tokens."""

    type: str
    width: int


def bare_text_names(file: TensorSource) -> TensorSource:
    """A text encoder's file with transformers' names: without what is before `text_model.` and `model.`, or before all
    names as in a whole checkpoint, and llama.cpp's spelt out."""
    if file.entries and all(WHOLE.match(key) for key in file.entries):
        return bare_text_names(renamed(file, {key: WHOLE.sub("", key) for key in file.entries}))
    header = file.entries
    if T5_SIGN in header:
        return renamed(file, {key: _spelt_out(key, T5_LAYER, "encoder.block", T5_SHORT) for key in header})
    if any(sign in header for sign in LLM_SIGNS):
        names = {key: _spelt_out(key, LLM_LAYER, "model.layers", LLM_SHORT) for key in header}
        if file.metadata.get("general.architecture") in VISION_ARCHITECTURES:
            names = {key: _behind_vision_level(name) for key, name in names.items()}
        return renamed(file, names)
    if _sees(header):
        return renamed(file, {key: _behind_vision_level(key) for key in header})
    if llm_width(header) is not None and not any(key.startswith(LEVEL) for key in header):
        return renamed(file, {key: f"{LEVEL}{key}" for key in header})
    levels = {key.partition(TEXT_LEVEL)[0] for key in header if TEXT_LEVEL in key}
    level = next(iter(levels)) if len(levels) == 1 else ""
    return renamed(file, {key: key.removeprefix(level) for key in header}) if level else file


def held_encoder(header: Header) -> HeldEncoder | None:
    """What text encoder the file of this header holds, under `bare_text_names`; None for other files."""
    seeing = [(name, llm_width(header, VISION_LEVEL, sign)) for name, sign in VISION_TYPES]
    for name, width in (*seeing, ("llm", llm_width(header)), ("t5", t5_width(header))):
        if width is not None:
            return HeldEncoder(name, width)
    if not any(CLIP_TABLE.search(key) for key in header):
        return None
    width = next((entry.shape[0] for key, entry in header.items() if CLIP_WIDTH.search(key) and entry.shape), None)
    return None if width is None else HeldEncoder("clip", width)


def encoder_in(path: Path) -> HeldEncoder | None:
    """What text encoder a file holds; None for one that holds none, or cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _encoder_in(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _encoder_in(path: Path, size_bytes: int, mtime_ns: int) -> HeldEncoder | None:
    del size_bytes, mtime_ns  # of the file as it was when it was looked at
    try:
        with open_whole(path) as file:
            return held_encoder(bare_text_names(file).entries)
    except CheckpointError:  # a damaged file among others: loading it by name says what is wrong
        return None


def _sees(header: Header) -> bool:
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
