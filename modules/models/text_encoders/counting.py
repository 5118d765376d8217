"""How the page counts the tokens of a prompt for a model: by its own tokenizer. Imports no torch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer, own_t5
from modules.models.text_encoders.tekken import tekken_tokenizer
from modules.models.text_encoders.tokenizers import standard_t5
from modules.prompting.attention import is_break, parse_attention
from modules.prompting.chunks import TokenCount, count_tokens
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions, chunks_of
from modules.prompting.tokens import ClipTokenizer
from modules.system.registry import Registry

Count = Callable[[str, TextOptions, Sequence[Path]], int]
COUNTS: Registry[Count] = Registry("tokenizer")
"""Tokens of one text by the name of a tokenizer, given the files of text encoders; for encoders that take texts of any
length."""


@dataclass(frozen=True)
class TokenCounting:
    """The counting of a model's prompts: a name of `COUNTS`, and how many tokens the model reads of a text; without a
    name CLIP's chunks of 75. `files`: those that the model's text encoders came from, which may hold their
    tokenizer."""

    tokenizer: str = ""
    limit: int = 0
    files: tuple[Path, ...] = ()

    def count(self, text: str, options: TextOptions) -> TokenCount:
        """The tokens of one text."""
        if not self.tokenizer:
            return count_tokens(chunks_of(ClipTokenizer.standard(), text, options))
        return TokenCount(COUNTS.get(self.tokenizer)(text, options, self.files), self.limit)


BY_CHUNKS = TokenCounting()


def plain_text(text: str, emphasis: Emphasis) -> str:
    """A text without its brackets, weights and BREAK, unless brackets are text."""
    if emphasis is Emphasis.NONE:
        return text
    return "".join(" " if is_break(piece) else piece[0] for piece in parse_attention(text))


def unread_syntax(
    texts: Iterable[str], emphasis: Emphasis, label: str, reads_weights: bool, reads_breaks: bool
) -> list[str]:
    """Sentences about what stands in texts and means nothing to the text encoder of the model family `label`."""
    if emphasis is Emphasis.NONE:
        return []
    pieces = [piece for text in texts for piece in parse_attention(text)]
    found = []
    if not reads_weights and any(weight != 1.0 and not is_break((word, weight)) for word, weight in pieces):
        found.append(f"{label}: weights in the prompt, as in (word:1.3), have no effect on its text encoder.")
    if not reads_breaks and any(is_break(piece) for piece in pieces):
        found.append(f"{label}: BREAK is read as a space, because its text encoder takes a prompt as a whole.")
    return found


def _count_t5(text: str, options: TextOptions, files: Sequence[Path]) -> int:
    return len((own_t5(files) or standard_t5()).text_ids(text, options.emphasis is not Emphasis.NONE)) - 1


def _count_llm(text: str, options: TextOptions, files: Sequence[Path]) -> int:
    return llm_tokenizer(files).count(plain_text(text, options.emphasis))


def _count_tekken(text: str, options: TextOptions, files: Sequence[Path]) -> int:
    return tekken_tokenizer(files).count(plain_text(text, options.emphasis))


COUNTS.add("t5", _count_t5)
COUNTS.add("tekken", _count_tekken)
COUNTS.add("qwen3", _count_llm)
