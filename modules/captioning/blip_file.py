"""BLIP's own files, such as `model_base_caption_capfilt_large.pth`, as the model of transformers.

The weights are those of salesforce/BLIP: a vision transformer with timm's names (`visual_encoder`), and a BERT that
looks at the image (`text_decoder`), whose names transformers kept. All sizes are read off the weights; heads have 64
channels. The words are not in the file: `vocab.txt` of bert-base-uncased must lie next to it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.upscalers.loading import read_weights

HEAD_CHANNELS = 64
VOCABULARY = "vocab.txt"
BEGIN, END = "[DEC]", "[SEP]"
ADDED = (BEGIN, "[ENC]")  # words behind those of the vocabulary
VISION_NAMES = (
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision_model.encoder.layers.\1.self_attn.projection."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.", r"vision_model.encoder.layers.\1.self_attn."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision_model.encoder.layers.\1.layer_norm\2."),
    (r"^visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision_model.encoder.layers.\1.mlp."),
)


def model_name(name: str) -> str | None:
    """The name in transformers' model; None for what that computes itself."""
    for pattern, replacement in VISION_NAMES:
        found, count = re.subn(pattern, replacement, name)
        if count:
            return found
    return None if name.endswith("position_ids") or not name.startswith("text_decoder.") else name


def load_blip_file(path: Path) -> tuple[Any, BlipWords]:
    """The model on the CPU, in float32, and its words. Raises `CheckpointError` that names the file."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    words = BlipWords(path.with_name(VOCABULARY))
    content = read_weights(path)
    inner = content.get("model")
    weights = {
        name: value.float()
        for key, value in (inner if isinstance(inner, Mapping) else content).items()
        if isinstance(value, Tensor) and (name := model_name(key)) is not None
    }
    try:
        config = BlipConfig(**_sizes(weights, words))
        with torch.device("meta"):
            model = BlipForConditionalGeneration(config)
        missing = set(model.state_dict()) - set(weights) - {"text_decoder.cls.predictions.decoder.bias"}
        if missing:
            raise KeyError(sorted(missing)[0])
        weights.setdefault("text_decoder.cls.predictions.decoder.bias", weights["text_decoder.cls.predictions.bias"])
        model.load_state_dict(weights, assign=True)
        _compute_positions(model)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{path.name} is no captioning model of BLIP: {reason[-1].strip() if reason else type(error).__name__}. "
            "Take model_base_caption_capfilt_large.pth, or a folder in the layout of transformers."
        ) from error
    return model, words


def _compute_positions(model: Any) -> None:
    """The numbers of positions, which are in no file."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                module.register_buffer(name, torch.arange(buffer.shape[-1]).expand(buffer.shape), persistent=False)


def _sizes(weights: Mapping[str, Tensor], words: BlipWords) -> dict[str, Any]:
    """Read what `BlipConfig` is made of; raises `KeyError` for a weight that is missing."""
    patches = weights["vision_model.embeddings.position_embedding"].shape[1] - 1
    channels, _, patch, _ = weights["vision_model.embeddings.patch_embedding.weight"].shape
    vocabulary, width = weights["text_decoder.bert.embeddings.word_embeddings.weight"].shape
    bert = "text_decoder.bert.encoder.layer"
    if vocabulary != len(words.words):
        raise ValueError(f"it has {vocabulary} words, {VOCABULARY} with its additions has {len(words.words)}")
    return {
        "vision_config": {
            "hidden_size": channels,
            "intermediate_size": weights["vision_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": _layers(weights, "vision_model.encoder.layers"),
            "num_attention_heads": max(channels // HEAD_CHANNELS, 1),
            "patch_size": patch,
            "image_size": math.isqrt(patches) * patch,
            "layer_norm_eps": 1e-6,
        },
        "text_config": {
            "vocab_size": vocabulary,
            "hidden_size": width,
            "encoder_hidden_size": channels,
            "intermediate_size": weights[f"{bert}.0.intermediate.dense.weight"].shape[0],
            "num_hidden_layers": _layers(weights, bert),
            "num_attention_heads": max(width // HEAD_CHANNELS, 1),
            "max_position_embeddings": weights["text_decoder.bert.embeddings.position_embeddings.weight"].shape[0],
            "bos_token_id": words.index(BEGIN),
            "eos_token_id": words.index(END),
            "sep_token_id": words.index(END),
            "pad_token_id": 0,
        },
    }


def _layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    return 1 + max(int(found[1]) for name in weights if (found := re.match(rf"{re.escape(prefix)}\.(\d+)\.", name)))


class BlipWords:
    """The pieces of words that BERT's numbers stand for; enough to read what the model writes."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` that says where to get the file."""
        try:
            own = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"BLIP's file needs its words: put {VOCABULARY} of bert-base-uncased into {path.parent} ({error})."
            ) from error
        self.words = [*own, *(word for word in ADDED if word not in own)]

    def index(self, word: str) -> int:
        """The number of a word; raises `KeyError`."""
        if word not in self.words:
            raise KeyError(f"{VOCABULARY} lacks {word}")
        return self.words.index(word)

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text; what stands in brackets is no word of it."""
        text = ""
        for token in tokens:
            word = self.words[int(token)]
            if skip_special_tokens and word.startswith("[") and word.endswith("]") and len(word) > 1:
                continue
            text += word.removeprefix("##") if word.startswith("##") else f" {word}"
        return text.strip()
