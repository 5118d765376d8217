"""The token counter next to the prompt: "n/75" while the user types, by the tokenizer of the model in use."""

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

    def count(text: str) -> TokenCount:
        return count_tokens(chunks_of(tokenizer, text, options, embeddings))

    return longest_count(count, prompt, steps, apply_styles=apply_styles, comments=comments, is_negative=is_negative)


def longest_count(
    count: Callable[[str], TokenCount],
    prompt: str,
    steps: int,
    *,
    apply_styles: Callable[[str], str] | None = None,
    comments: bool = True,
    is_negative: bool = False,
) -> TokenCount:
    """`count_prompt` with a text encoder that counts otherwise: `count` is asked for each text."""
    text = prompt if apply_styles is None else apply_styles(prompt)
    text, _ = extract_tags(strip_comments(text) if comments else text)
    parts = [text] if is_negative else [part.text for part in split_composition(text)]
    texts = {entry.text for part in parts for entry in parse_schedule(part, steps)}
    return max((count(each) for each in texts), key=lambda counted: counted.count)
