"""Tokens in chunks of 75: the unit that CLIP can encode, framed by a start and an end token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from modules.errors import InvalidValueError
from modules.prompting.attention import is_break, parse_attention
from modules.prompting.emphasis import Emphasis

CHUNK_LENGTH = 75  # tokens of text in a chunk
CHUNK_TOKENS = 77  # with start and end: the length of CLIP's position embedding
DEFAULT_COMMA_BACKTRACK = 20


class Tokenizer(Protocol):
    """Tokenizer as chunking needs it (`ClipTokenizer` is one)."""

    start_id: int
    end_id: int
    comma_id: int | None

    @property
    def bracket_weights(self) -> Mapping[int, float]:
        """Return what tokens with brackets weigh under the old emphasis; see `old_emphasis.bracket_weights`."""

    def encode(self, text: str) -> Sequence[int]: ...


class EmbeddingMatch(NamedTuple):
    """A textual inversion embedding found at a token position."""

    name: str
    vectors: int  # how many token positions its vectors fill, 1 to 75
    tokens: int  # how many tokens of the prompt its name covers, at least 1


class EmbeddingFinder(Protocol):
    """Finds the name of an embedding (Gal et al. 2022, arXiv:2208.01618) among tokens; the longest name wins."""

    def find(self, tokens: Sequence[int], position: int) -> EmbeddingMatch | None: ...


@dataclass(frozen=True)
class Fix:
    """Where an embedding's vectors go: `offset` counts from the first token after the start token."""

    offset: int
    name: str


@dataclass(frozen=True)
class PromptChunk:
    """77 token ids (0 where vectors go), 77 multipliers, the embeddings to put in, and how many tokens count."""

    tokens: tuple[int, ...]
    multipliers: tuple[float, ...]
    fixes: tuple[Fix, ...] = ()
    counted: int = CHUNK_LENGTH


@dataclass(frozen=True)
class TokenCount:
    """For the counter next to the prompt: `count`/`limit`."""

    count: int
    limit: int

    def __str__(self) -> str:
        return f"{self.count}/{self.limit}"


def chunk_prompt(
    tokenizer: Tokenizer,
    text: str,
    emphasis: Emphasis = Emphasis.ORIGINAL,
    comma_backtrack: int = DEFAULT_COMMA_BACKTRACK,
    embeddings: EmbeddingFinder | None = None,
    pad_id: int | None = None,
) -> list[PromptChunk]:
    """The chunks of one text (no edits or AND in it any more), at least one.

    A chunk ends when it is full or at BREAK, and is filled up with `pad_id`, by default the end token. If a chunk is
    full and its last comma is at most `comma_backtrack` tokens back, what follows that comma moves on to the next
    chunk; 0 turns that off. An embedding that does not fit into the rest of a chunk starts the next one.

    Raises `InvalidValueError` for an embedding of more than 75 vectors.
    """
    pieces = [(text, 1.0)] if emphasis is Emphasis.NONE else parse_attention(text)
    builder = _Builder(tokenizer, comma_backtrack, tokenizer.end_id if pad_id is None else pad_id)
    for piece in pieces:
        if is_break(piece) and emphasis is not Emphasis.NONE:
            builder.close()
        elif embeddings is None:
            builder.add_tokens(tokenizer.encode(piece[0]), piece[1])
        else:
            builder.add_with_embeddings(tokenizer.encode(piece[0]), piece[1], embeddings)
    return builder.finish()


def empty_chunk(tokenizer: Tokenizer, pad_id: int | None = None) -> PromptChunk:
    """The chunk of the empty text: what shorter texts are filled up with."""
    return _Builder(tokenizer, 0, tokenizer.end_id if pad_id is None else pad_id).finish()[0]


def count_tokens(chunks: Sequence[PromptChunk]) -> TokenCount:
    """Tokens used, where a closed chunk counts in full, and the room in as many chunks."""
    count = sum(chunk.counted for chunk in chunks)
    return TokenCount(count, max(1, -(-count // CHUNK_LENGTH)) * CHUNK_LENGTH)


@dataclass
class _Builder:
    """The chunk being filled and those before it."""

    tokenizer: Tokenizer
    comma_backtrack: int
    pad_id: int
    chunks: list[PromptChunk] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    multipliers: list[float] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    last_comma: int = -1

    def add_tokens(self, tokens: Sequence[int], weight: float) -> None:
        """Append tokens of one weight, closing chunks as they fill up."""
        comma = self.tokenizer.comma_id
        position = 0
        while position < len(tokens):
            filled = len(self.tokens)
            if filled == CHUNK_LENGTH:
                # The comma that overflows a chunk is not the next chunk's last comma: so it is in the recordings' UI.
                self._make_room(is_comma=tokens[position] == comma)
                part = tokens[position : position + 1]
            else:
                part = tokens[position : position + CHUNK_LENGTH - filled]
                if comma in part:
                    self.last_comma = filled + max(index for index, token in enumerate(part) if token == comma)
            self.tokens += part
            self.multipliers += [weight] * len(part)
            position += len(part)

    def add_with_embeddings(self, tokens: Sequence[int], weight: float, embeddings: EmbeddingFinder) -> None:
        """Add the same, with the names of embeddings replaced by room for their vectors."""
        position = plain = 0
        while position < len(tokens):
            match = embeddings.find(tokens, position)
            if match is None:
                position += 1
                continue
            self.add_tokens(tokens[plain:position], weight)
            self._add_vectors(match, weight)
            position = plain = position + match.tokens
        self.add_tokens(tokens[plain:], weight)

    def _add_vectors(self, match: EmbeddingMatch, weight: float) -> None:
        if not 1 <= match.vectors <= CHUNK_LENGTH:
            raise InvalidValueError(
                f"Embedding {match.name!r} has {match.vectors} vectors; between 1 and {CHUNK_LENGTH} fit into a "
                "prompt. Remove it from the prompt or from the embeddings folder."
            )
        if len(self.tokens) == CHUNK_LENGTH:
            self._make_room(is_comma=False)
        if len(self.tokens) + match.vectors > CHUNK_LENGTH:
            self.close()
        self.fixes.append(Fix(len(self.tokens), match.name))
        self.tokens += [0] * match.vectors
        self.multipliers += [weight] * match.vectors

    def _make_room(self, is_comma: bool) -> None:
        """Close a full chunk; unless a comma comes next, what follows the last comma may move on."""
        cut = self.last_comma + 1
        moves = self.last_comma >= 0 and not is_comma and CHUNK_LENGTH - self.last_comma <= self.comma_backtrack
        if not moves or cut == CHUNK_LENGTH:
            self.close()
            return
        # An embedding that moves takes its vectors along. The reference UI leaves them behind in the old chunk.
        tokens, multipliers = self.tokens[cut:], self.multipliers[cut:]
        fixes = [Fix(fix.offset - cut, fix.name) for fix in self.fixes if fix.offset >= cut]
        del self.tokens[cut:], self.multipliers[cut:]
        self.fixes = [fix for fix in self.fixes if fix.offset < cut]
        self.close()
        self.tokens, self.multipliers, self.fixes = tokens, multipliers, fixes

    def close(self, counted: int = CHUNK_LENGTH) -> None:
        """Fill the chunk up and begin the next."""
        padding = CHUNK_LENGTH - len(self.tokens)
        tokens = (self.tokenizer.start_id, *self.tokens, self.tokenizer.end_id, *[self.pad_id] * padding)
        multipliers = (1.0, *self.multipliers, *[1.0] * (padding + 1))
        self.chunks.append(PromptChunk(tokens, multipliers, tuple(self.fixes), counted))
        self.tokens, self.multipliers, self.fixes, self.last_comma = [], [], [], -1

    def finish(self) -> list[PromptChunk]:
        """Close what is left; a text without tokens is one empty chunk."""
        if self.tokens or not self.chunks:
            self.close(counted=len(self.tokens))
        return self.chunks
