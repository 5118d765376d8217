"""The emphasis of the first web UIs, for their seeds: brackets weigh token by token, and a prompt ends at 75 tokens.

A token whose text holds brackets is left out, and changes the weight of all that follow it: `(` and `]` times 1.1, `)`
and `[` divided by it. There are no written weights, escapes, BREAK or further chunks; what does not fit is cut off.
"""

from collections.abc import Mapping, Sequence

from modules.prompting.chunks import CHUNK_LENGTH, EmbeddingFinder, Fix, PromptChunk, Tokenizer
from modules.prompting.emphasis import Emphasis

_FACTORS = {"(": 1.1, ")": 1 / 1.1, "[": 1 / 1.1, "]": 1.1}


def bracket_weights(vocabulary: Mapping[str, int]) -> dict[int, float]:
    """Return by token id what each token with brackets multiplies the weight with; those that cancel out are not in
    it."""
    weights = {}
    for text, token in vocabulary.items():
        weight = 1.0
        for sign in text:
            weight *= _FACTORS.get(sign, 1.0)
        if weight != 1.0:
            weights[token] = weight
    return weights


def chunk_prompt_old(
    tokenizer: Tokenizer,
    weights: Mapping[int, float],
    text: str,
    emphasis: Emphasis = Emphasis.ORIGINAL,
    embeddings: EmbeddingFinder | None = None,
    pad_id: int | None = None,
) -> PromptChunk:
    """The one chunk of a text; `weights` are `bracket_weights` of the tokenizer's vocabulary.

    With `Emphasis.NONE` brackets are tokens like any other. An embedding that only begins before the end keeps its
    first vectors.
    """
    tokens, multipliers, fixes = _weighed(
        tokenizer.encode(text), weights if emphasis is not Emphasis.NONE else {}, embeddings
    )
    counted = min(len(tokens), CHUNK_LENGTH)
    padding = CHUNK_LENGTH - counted
    end = tokenizer.end_id
    return PromptChunk(
        (tokenizer.start_id, *tokens[:CHUNK_LENGTH], end, *[end if pad_id is None else pad_id] * padding),
        (1.0, *multipliers[:CHUNK_LENGTH], *[1.0] * (padding + 1)),
        tuple(fix for fix in fixes if fix.offset < CHUNK_LENGTH),
        counted,
    )


def _weighed(
    tokens: Sequence[int], weights: Mapping[int, float], embeddings: EmbeddingFinder | None
) -> tuple[list[int], list[float], list[Fix]]:
    """Tokens without brackets, the weight of each, and the embeddings found among them."""
    kept: list[int] = []
    multipliers: list[float] = []
    fixes: list[Fix] = []
    weight = 1.0
    position = 0
    while position < len(tokens):
        factor = weights.get(tokens[position])
        match = embeddings.find(tokens, position) if embeddings is not None and factor is None else None
        if factor is not None:
            weight *= factor
        elif match is not None:
            fixes.append(Fix(len(kept), match.name))
            kept += [0] * match.vectors
            multipliers += [weight] * match.vectors
        else:
            kept.append(tokens[position])
            multipliers.append(weight)
        position += match.tokens if match is not None else 1
    return kept, multipliers, fixes
