"""A tiny T5 with random weights, and a tokenizer for it in the format of the `tokenizers` library."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

WIDTH, HEADS, HEAD_WIDTH, MLP, LAYERS, BUCKETS = 256, 2, 48, 160, 3, 32
WORDS = ("a", "red", "cat", "on", "wall", "blurry", "blue", "dog")
PIECES = (
    "<pad>",
    "</s>",
    "<unk>",
    *(f"\u2581{word}" for word in WORDS),
    "\u2581",
    *"abcdefghijklmnopqrstuvwxyz()[]:.019",
)
VOCABULARY = len(PIECES) + 5  # as the real one, with rows to spare
PREFIX = "text_encoders.t5xxl.transformer."


def t5_tensors(width: int = WIDTH) -> dict[str, Tensor]:
    """All tensors of a file `t5xxl.safetensors`, fp16, that keep a forward pass finite."""
    inner = HEADS * HEAD_WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "shared.weight": (VOCABULARY, width),
        "encoder.final_layer_norm.weight": (width,),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (BUCKETS, HEADS),
    }
    for block in range(LAYERS):
        level = f"encoder.block.{block}.layer"
        for name in "qkv":
            shapes[f"{level}.0.SelfAttention.{name}.weight"] = (inner, width)
        shapes[f"{level}.0.SelfAttention.o.weight"] = (width, inner)
        shapes[f"{level}.1.DenseReluDense.wi_0.weight"] = (MLP, width)
        shapes[f"{level}.1.DenseReluDense.wi_1.weight"] = (MLP, width)
        shapes[f"{level}.1.DenseReluDense.wo.weight"] = (width, MLP)
        for layer in (0, 1):
            shapes[f"{level}.{layer}.layer_norm.weight"] = (width,)
    generator = torch.Generator().manual_seed(5)
    return {
        key: (
            1 + 0.05 * torch.randn(shape, generator=generator)
            if len(shape) == 1
            else torch.randn(shape, generator=generator) / (1 if "bias" in key else shape[-1] ** 0.5)
        ).half()
        for key, shape in shapes.items()
    }


def write_tokenizer(path: Path, more_pieces: tuple[str, ...] = ()) -> Path:
    """A file that would also cut and fill up, as published ones may."""
    scores = [(piece, 0.0 if piece.startswith("<") else -1.0) for piece in (*PIECES, *more_pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path
