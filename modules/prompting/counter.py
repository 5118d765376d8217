"""The token counter next to the prompt: "n/75" while the user types."""

from collections.abc import Callable

from modules.prompting.chunks import EmbeddingFinder, TokenCount, Tokenizer, count_tokens
from modules.prompting.comments import strip_comments
from modules.prompting.composition import split_composition
from modules.prompting.encode import TextOptions, chunks_of
from modules.prompting.extra_networks import extract_tags
from modules.prompting.schedule import parse_schedule


def count_prompt(
    tokenizer: Tokenizer,
    prompt: str,
    steps: int,
    options: TextOptions | None = None,
    *,
    apply_styles: Callable[[str], str] | None = None,
    comments: bool = True,
    is_negative: bool = False,
    embeddings: EmbeddingFinder | None = None,
) -> TokenCount:
    """Tokens of the longest text that the prompt stands for at any step, and the room in as many chunks.

    `apply_styles` expands the chosen styles where these are to be counted.
    """
    options = options or TextOptions()
    text = prompt if apply_styles is None else apply_styles(prompt)
    text, _ = extract_tags(strip_comments(text) if comments else text)
    parts = [text] if is_negative else [part.text for part in split_composition(text)]
    texts = {entry.text for part in parts for entry in parse_schedule(part, steps)}
    counts = [count_tokens(chunks_of(tokenizer, each, options, embeddings)) for each in texts]
    return max(counts, key=lambda counted: counted.count)
