"""Chunks of tokens to the tensor that the UNet attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modules.prompting.chunks import (
    CHUNK_LENGTH,
    EmbeddingFinder,
    PromptChunk,
    Tokenizer,
    chunk_prompt,
    empty_chunk,
)
from modules.prompting.emphasis import Emphasis, apply_emphasis
from modules.prompting.old_emphasis import chunk_prompt_old

if TYPE_CHECKING:
    from torch import Tensor

# Chunks encoded in one call: enough to keep a device busy, few enough for a prompt with hundreds of texts.
CHUNKS_PER_CALL = 32


class EmbeddingLookup(EmbeddingFinder, Protocol):
    """The embeddings of one encoder: found by name, put in by vector (`EmbeddingTable` is one)."""

    def vectors(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class Injection:
    """Vectors [n, D] that replace the token embedding of row `row` from token `start` (0 is the start token)."""

    row: int
    start: int
    vectors: Tensor


@dataclass(frozen=True)
class Encoded:
    """`hidden` [B, 77, D] and, where the model uses one, `pooled` [B, P]."""

    hidden: Tensor
    pooled: Tensor | None = None


class TextEncoder(Protocol):
    """A CLIP text model behind one call.

    `tokens` is [B, 77] int64 on the CPU; `clip_skip` counts from 1, the last layer, and the final layer norm applies
    to whichever layer is taken; `injections` go into the token embedding before the positions are added.
    """

    def encode(self, tokens: Tensor, clip_skip: int, injections: Sequence[Injection]) -> Encoded: ...


@dataclass(frozen=True, eq=False)
class TextTower:
    """One text encoder with what belongs to it. `pad_id` fills chunks up after the end token (None: the end token)."""

    tokenizer: Tokenizer
    encoder: TextEncoder
    embeddings: EmbeddingLookup | None = None
    pad_id: int | None = None


@dataclass(frozen=True)
class TextOptions:
    """How text becomes an encoding: the settings `emphasis`, `comma_padding_backtrack`, `CLIP_stop_at_last_layers` and
    `use_old_emphasis_implementation`. `settings`: those that encodings depend on and that differ from their defaults,
    with their values; what is cached is known by them."""

    emphasis: Emphasis = Emphasis.ORIGINAL
    comma_backtrack: int = 20
    clip_skip: int = 1
    old_emphasis: bool = False  # see old_emphasis.py
    settings: tuple[tuple[str, object], ...] = ()


def encode_groups(
    tower: TextTower,
    groups: Sequence[Sequence[str]],
    options: TextOptions,
    counts: Sequence[Sequence[int]] | None = None,
) -> list[Encoded]:
    """Encode the texts of several prompts' schedules, each together: `hidden` [texts, tokens, D], `pooled` of the first
    chunk. There is one pass through the encoder, and equal chunks are encoded once.

    Shorter texts are filled up with empty chunks, and emphasis restores one mean for all texts of a group, each
    weighing as often as `counts` says: see `apply_emphasis`.
    """
    import torch

    empty = empty_chunk(tower.tokenizer, tower.pad_id)
    chunked = {
        text: chunks_of(tower.tokenizer, text, options, tower.embeddings, tower.pad_id)
        for group in groups
        for text in group
    }
    inputs = {_input_of(chunk): chunk for chunks in chunked.values() for chunk in (*chunks, empty)}
    encoded = _encode_chunks(tower, list(inputs.values()), options.clip_skip)
    rows = {key: index for index, key in enumerate(inputs)}
    result = []
    for index, group in enumerate(groups):
        chunks = _even_out([chunked[text] for text in group], empty)
        weights = None if counts is None else torch.tensor(counts[index], dtype=torch.float32)
        result.append(_assemble(encoded, chunks, rows, options.emphasis, weights))
    return result


def chunks_of(
    tokenizer: Tokenizer,
    text: str,
    options: TextOptions,
    embeddings: EmbeddingFinder | None = None,
    pad_id: int | None = None,
) -> list[PromptChunk]:
    """The chunks of one text as the options say; see `chunk_prompt` and `chunk_prompt_old`."""
    if options.old_emphasis:
        weights = tokenizer.bracket_weights
        return [chunk_prompt_old(tokenizer, weights, text, options.emphasis, embeddings, pad_id)]
    return chunk_prompt(tokenizer, text, options.emphasis, options.comma_backtrack, embeddings, pad_id)


_Input = tuple[tuple[int, ...], tuple[tuple[int, str], ...]]


def _input_of(chunk: PromptChunk) -> _Input:
    """Return what the encoder sees of a chunk: the multipliers come later, so chunks that differ only there are one."""
    return chunk.tokens, tuple((fix.offset, fix.name) for fix in chunk.fixes)


def _even_out(chunked: list[list[PromptChunk]], empty: PromptChunk) -> list[list[PromptChunk]]:
    longest = max(len(chunks) for chunks in chunked)
    return [chunks + [empty] * (longest - len(chunks)) for chunks in chunked]


def _encode_chunks(tower: TextTower, chunks: list[PromptChunk], clip_skip: int) -> Encoded:
    import torch

    parts = [
        _encode_batch(tower, chunks[start : start + CHUNKS_PER_CALL], clip_skip)
        for start in range(0, len(chunks), CHUNKS_PER_CALL)
    ]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    return Encoded(torch.cat([part.hidden for part in parts]), torch.cat(pooled) if pooled else None)


def _encode_batch(tower: TextTower, chunks: list[PromptChunk], clip_skip: int) -> Encoded:
    import torch

    injections: list[Injection] = []
    if tower.embeddings is not None:
        injections = [
            Injection(row, fix.offset + 1, tower.embeddings.vectors(fix.name)[: CHUNK_LENGTH - fix.offset + 1])
            for row, chunk in enumerate(chunks)
            for fix in chunk.fixes
        ]
    tokens = torch.tensor([chunk.tokens for chunk in chunks], dtype=torch.int64)
    return tower.encoder.encode(tokens, clip_skip, injections)


def _assemble(
    encoded: Encoded,
    chunked: list[list[PromptChunk]],
    rows: dict[_Input, int],
    emphasis: Emphasis,
    counts: Tensor | None,
) -> Encoded:
    """Pick each text's chunks, weigh them chunk by chunk, and lay them side by side on the token axis."""
    import torch

    columns: list[Tensor] = []
    for column in zip(*chunked, strict=True):
        picked = torch.tensor([rows[_input_of(chunk)] for chunk in column], device=encoded.hidden.device)
        multipliers = torch.tensor([chunk.multipliers for chunk in column], dtype=torch.float32)
        columns.append(apply_emphasis(encoded.hidden[picked], multipliers, emphasis, counts))
    hidden = torch.cat(columns, dim=1)
    if encoded.pooled is None:
        return Encoded(hidden)
    first = torch.tensor([rows[_input_of(chunks[0])] for chunks in chunked], device=encoded.pooled.device)
    return Encoded(hidden, encoded.pooled[first])
