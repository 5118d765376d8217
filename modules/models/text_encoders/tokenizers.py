"""Tokenizers of text encoders with relative positions and of language models, from the files that come with the program
or from those of a model. Imports no torch: the page counts tokens with them."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from modules.errors import CheckpointError
from modules.prompting.attention import is_break, parse_attention

DATA = Path(__file__).parent / "data"
T5_FILE = DATA / "t5_tokenizer.json.gz"
QWEN_VOCABULARY, QWEN_MERGES = DATA / "qwen_vocab.json.gz", DATA / "qwen_merges.txt.gz"
END, PAD = "</s>", "<pad>"
QWEN_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Qwen's byte pairs never cross: contractions, words with what is before them, single digits, signs, spaces."""
QWEN_PAD = 151643
QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>"),
    *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
"""Tokens that are one unit wherever they stand, from id 151643 on."""


class T5Tokenizer:
    """T5's tokenizer (SentencePiece, unigram)."""

    def __init__(self, tokenizer: Tokenizer, end_id: int, pad_id: int) -> None:
        """`end_id` ends every text, `pad_id` fills it up."""
        self._tokenizer, self.end_id, self.pad_id = tokenizer, end_id, pad_id
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def from_file(cls, path: Path, vocabulary: int) -> T5Tokenizer:
        """From a file of the `tokenizers` library. `vocabulary`: how many tokens the encoder knows. Raises
        `CheckpointError` for a file that is no tokenizer, or another model's."""
        try:
            tokenizer = _from_file(path)
        except Exception as error:  # the library has no class of its own for it
            raise CheckpointError(f"{path.name} is no tokenizer ({error}). Put T5's tokenizer.json there.") from error
        end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
        known = tokenizer.get_vocab_size()
        if end is None or pad is None or known > vocabulary:
            raise CheckpointError(
                f"{path.name} is not the tokenizer of this T5: it has {known} tokens (the encoder {vocabulary}), and "
                f"needs {END} and {PAD} among them. Put the tokenizer.json there that belongs to the encoder."
            )
        return cls(tokenizer, end, pad)

    def text_ids(self, text: str, with_attention: bool = True) -> list[int]:
        """The ids of a text and the end token. `with_attention`: brackets and weights are read and left out; their
        pieces are encoded one by one."""
        pieces = [text]
        if with_attention:
            pieces = [piece[0] for piece in parse_attention(text) if not is_break(piece)]
        found = [self._tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
        return [*(token for piece in found for token in piece), self.end_id]

    def weighted_ids(self, pieces: Sequence[tuple[str, float]]) -> tuple[list[int], list[float]]:
        """The ids of pieces of text and the end token, and the weight of each id; the end token weighs 1."""
        ids: list[int] = []
        weights: list[float] = []
        for text, weight in pieces:
            found = self._tokenizer.encode(text, add_special_tokens=False).ids
            ids += found
            weights += [weight] * len(found)
        return [*ids, self.end_id], [*weights, 1.0]

    def ids(self, text: str, tokens: int, with_attention: bool = True) -> list[int]:
        """`text_ids` as exactly `tokens` ids: filled up with padding, or cut off."""
        ids = self.text_ids(text, with_attention)
        return (ids + [self.pad_id] * (tokens - len(ids)))[:tokens]

    def count(self, text: str) -> int:
        """Tokens of a text without the end token, brackets left out."""
        return len(self.text_ids(text)) - 1


class LlmTokenizer:
    """The tokenizer of language models (byte pairs): Qwen's is the same for all of its models."""

    def __init__(self, tokenizer: Tokenizer, pad_id: int = QWEN_PAD, first_ids: tuple[int, ...] = ()) -> None:
        """`pad_id` fills a text up, `first_ids` begin each."""
        self._tokenizer, self._first_ids = tokenizer, first_ids
        self.pad_id = pad_id

    @classmethod
    def standard(cls) -> LlmTokenizer:
        """Return the tokenizer with the included vocabulary. Raises `CheckpointError` if its files cannot be read."""
        return _standard_llm()

    def ids(self, text: str) -> list[int]:
        """The ids of a text; without a template."""
        return [*self._first_ids, *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, without tokens that are one unit wherever they stand."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def count(self, text: str) -> int:
        """Tokens of a text, without those that begin each."""
        return len(self.ids(text)) - len(self._first_ids)


@cache
def standard_t5() -> T5Tokenizer:
    """T5's tokenizer that comes with the program."""
    return T5Tokenizer.from_file(T5_FILE, 1 << 30)


def unigram(
    pieces: Sequence[tuple[str, float]], unknown_id: int, single: Sequence[str], charsmap: bytes, has_prefix: bool
) -> Tokenizer:
    """T5's tokenizer with other pieces and scores. `single`: tokens that are one unit wherever they stand; `charsmap`:
    SentencePiece's table of normalization (empty: T5's own); `has_prefix`: whether a text begins with a space."""
    parts: dict[str, Any] = json.loads(_unpacked(T5_FILE))
    parts["model"] = {"type": "Unigram", "unk_id": unknown_id, "vocab": pieces, "byte_fallback": False}
    parts["added_tokens"], parts["post_processor"] = [], None
    if charsmap:
        parts["normalizer"]["normalizers"][0]["precompiled_charsmap"] = base64.b64encode(charsmap).decode("ascii")
    if not has_prefix:
        parts["pre_tokenizer"] |= {"add_prefix_space": False, "prepend_scheme": "never"}
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in single])
    return tokenizer


T5_TOKENS = 32_100
"""How many tokens the tokenizer that comes with the program has."""


@cache
def _standard_llm() -> LlmTokenizer:
    try:
        vocabulary: dict[str, int] = json.loads(_unpacked(QWEN_VOCABULARY))
        lines = _unpacked(QWEN_MERGES).splitlines()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CheckpointError(
            f"The vocabulary of language models cannot be read from modules/models/text_encoders/data ({error}). It is "
            "part of the program: restore the files, or get the program again."
        ) from error
    merges = [(first, second) for line in lines[1:] if line for first, second in [line.split(" ")]]
    return LlmTokenizer(byte_pairs(vocabulary, merges, QWEN_SPECIAL))


def byte_pairs(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], single: Sequence[str], word: str = QWEN_WORD
) -> Tokenizer:
    """Qwen's tokenizer with this vocabulary. `single`: tokens that are one unit wherever they stand; `word`: what byte
    pairs never cross, where that is another model's: then texts are not normalized either."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = decoders.ByteLevel()
    if word == QWEN_WORD:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(word), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in single])
    return tokenizer


def _from_file(path: Path) -> Tokenizer:
    return Tokenizer.from_str(_unpacked(path)) if path.suffix == ".gz" else Tokenizer.from_file(str(path))


def _unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8")
