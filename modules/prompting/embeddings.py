"""Textual inversion embeddings by the tokens of their names (Gal et al. 2022, arXiv:2208.01618)."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from modules.prompting.chunks import EmbeddingMatch, Tokenizer


class EmbeddingTable:
    """Embeddings loaded for one text encoder: finds their names in a prompt and holds their vectors.

    `vectors` maps a name to its [n, D] vectors, n from 1 to 75. Names are matched as tokens, so in any case; where
    several fit, the longest wins, and of equally long ones the first given.
    """

    def __init__(self, tokenizer: Tokenizer, vectors: Mapping[str, Tensor]) -> None:
        self._vectors = dict(vectors)
        self._by_first_token: dict[int, list[tuple[tuple[int, ...], EmbeddingMatch]]] = {}
        for name, values in self._vectors.items():
            ids = tuple(tokenizer.encode(name))
            if ids:
                match = EmbeddingMatch(name, int(values.shape[0]), len(ids))
                self._by_first_token.setdefault(ids[0], []).append((ids, match))
        for candidates in self._by_first_token.values():
            candidates.sort(key=lambda candidate: len(candidate[0]), reverse=True)

    def find(self, tokens: Sequence[int], position: int) -> EmbeddingMatch | None:
        """The embedding whose name starts at `position`, or None."""
        for ids, match in self._by_first_token.get(tokens[position], ()):
            if tuple(tokens[position : position + len(ids)]) == ids:
                return match
        return None

    def vectors(self, name: str) -> Tensor:
        """The [n, D] vectors of an embedding in the table."""
        return self._vectors[name]

    def __len__(self) -> int:
        return len(self._vectors)
