"""T5's encoder (Raffel et al. 2020, arXiv:1910.10683; gated as in version 1.1).

Names are those of transformers' `T5EncoderModel`; all sizes follow from the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.detection.parts import T5_TABLE
from modules.models.files.modules_catalogue import encoder_folders
from modules.models.libraries import library_name
from modules.models.names.component import Component, Header, meta_module, reading_sizes
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.text_encoders.encoding import Encoding
from modules.models.text_encoders.gguf_tokenizers import own_t5
from modules.models.text_encoders.tokenizers import T5_FILE, T5_TOKENS, T5Tokenizer, standard_t5

if TYPE_CHECKING:
    from transformers import T5Config

BLOCK = re.compile(r"\bencoder\.block\.(\d+)\.")
TOKENIZERS = ("t5_tokenizer.json", "t5xxl/tokenizer.json")
TEXTS_PER_CALL = 32


def t5_keymap(prefix: str) -> KeyMap:
    """Return the key map of T5EncoderModel, whose table of tokens is the encoder's own."""
    return KeyMap((ModulePair(f"{prefix}.shared", "encoder.embed_tokens"), ModulePair(f"{prefix}.encoder", "encoder")))


def t5_file_keymap(prefix: str) -> KeyMap:
    """From the names in a whole checkpoint to those of a file or folder that holds T5 alone."""
    return KeyMap(ModulePair(f"{prefix}.{part}", part) for part in ("shared", "encoder"))


def t5_component(name: str, header: Header, prefix: str, hint: str, context_width: int | None = None) -> Component:
    """T5 at `prefix` on the meta device; `hint` says what to do where it is not whole. Raises `CheckpointError` for one
    that is not whole, of another type, or of a width that the denoiser does not take (`context_width`)."""
    if not any(key.startswith(f"{prefix}.") for key in header):
        raise CheckpointError(f"it has no text encoder (looked for {prefix}.*), and none was found. {hint}")
    config = _config(header, prefix, hint)
    if context_width is not None and context_width != config.d_model:
        path = header[f"{prefix}.{T5_TABLE}"].file
        raise CheckpointError(
            f"its text encoder{f' {path.name}' if path else ''} is {config.d_model} wide, and the model takes tokens "
            f"of {context_width}. {hint}"
        )
    module = meta_module("transformers.T5EncoderModel", config)
    del module.shared  # the same table as the encoder's
    unused = (f"{prefix}.encoder.embed_tokens.",)  # the second name that some files have for the table
    return Component(name, module, t5_keymap(prefix), (f"{prefix}.",), hint, unused=unused)


def _config(header: Header, prefix: str, hint: str) -> T5Config:
    first = f"{prefix}.encoder.block.0.layer"
    attention, feed_forward = f"{first}.0.SelfAttention", f"{first}.1.DenseReluDense"
    with reading_sizes("T5 is not whole or of another kind", hint):
        vocabulary, width = header[f"{prefix}.{T5_TABLE}"].shape
        buckets, heads = header[f"{attention}.relative_attention_bias.weight"].shape
        inner, _ = header[f"{attention}.q.weight"].shape
        mlp_width, _ = header[f"{feed_forward}.wi_0.weight"].shape
    blocks = {int(match[1]) for key in header if key.startswith(f"{prefix}.") and (match := BLOCK.search(key))}
    return library_name("transformers.T5Config")(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=inner // max(heads, 1),
        d_ff=mlp_width,
        num_layers=max(blocks) + 1,
        num_heads=heads,
        relative_attention_num_buckets=buckets,
        feed_forward_proj="gated-gelu",
    )


def t5_tokenizer(
    checkpoint: Path, vocabulary: int, own: str = "", without: str = "", files: Sequence[Path] = ()
) -> T5Tokenizer:
    """The tokenizer of a T5 of `vocabulary` tokens: that of a folder in the diffusers layout (at `own` in it), else
    that inside a GGUF file of the encoder among `files`, else one of `TOKENIZERS` in a folder for text encoders, the
    nearest to the checkpoint, else the one that comes with the program.

    Raises `CheckpointError` for a file that is no tokenizer of it, and for a T5 of fewer tokens than the program's
    tokenizer has: it names the file and the place, and `without` (what else can be done).
    """
    inside = None if own and (checkpoint / own).is_file() else own_t5(files)
    if inside is not None:
        return inside
    file = t5_tokenizer_file(checkpoint, own)
    if file is not None:
        return T5Tokenizer.from_file(file, vocabulary)
    if vocabulary >= T5_TOKENS:
        return standard_t5()
    raise CheckpointError(
        f"{checkpoint.name}: T5 is there, and its tokenizer is not: it knows {vocabulary} tokens, and the program's "
        f"own {T5_FILE.stem} has {T5_TOKENS}. Put its tokenizer.json into the folder text_encoder next to the "
        f"checkpoints' folder, as models/text_encoder/{TOKENIZERS[0]}{without}."
    )


def t5_tokenizer_file(checkpoint: Path, own: str = "") -> Path | None:
    """A user's tokenizer file, see `t5_tokenizer`."""
    if own and (checkpoint / own).is_file():
        return checkpoint / own
    for folder in encoder_folders(checkpoint):
        for name in TOKENIZERS:
            if (folder / name).is_file():
                return folder / name
    return None


class T5Encoder:
    """Wraps a `T5EncoderModel`, a `TextEncoder`. Brackets and weights are read and left out (`reads_weights`), or text:
    prompt weights have no effect on T5.

    A text is filled up with padding to `tokens` tokens at least, and cut off at `most` (None: never). With `is_masked`
    the encoder does not look at the padding. `Encoding.mask` always says which tokens are real, for denoisers that
    want to know.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: T5Tokenizer,
        device: torch.device | str,
        *,
        tokens: int = 1,
        most: int | None = None,
        reads_weights: bool = True,
        is_masked: bool = False,
    ) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._device = torch.device(device)
        self._tokens, self._most = tokens, most
        self._reads_weights, self._is_masked = reads_weights, is_masked

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return self._tokenizer.count(text)

    def encode(self, texts: Sequence[str]) -> Encoding:
        """The last layer's states [B,T,width], T being the longest text's."""
        return self.encode_ids([self._tokenizer.text_ids(text, self._reads_weights) for text in texts])

    @torch.no_grad()
    def encode_ids(self, rows: Sequence[Sequence[int]]) -> Encoding:
        """`encode` of token ids that end with the end token."""
        cut = [row[: self._most] for row in rows]
        longest = max(self._tokens, *(len(row) for row in cut))
        ids = torch.tensor([[*row, *[self._tokenizer.pad_id] * (longest - len(row))] for row in cut])
        mask = torch.tensor([[column < len(row) for column in range(longest)] for row in cut])
        parts: list[Tensor] = []
        for start in range(0, len(rows), TEXTS_PER_CALL):
            part = slice(start, start + TEXTS_PER_CALL)
            seen = mask[part].to(self._device) if self._is_masked else None
            output = self._model(input_ids=ids[part].to(self._device), attention_mask=seen)
            parts.append(output.last_hidden_state)
        return Encoding(torch.cat(parts), mask)
