"""T5 as the text encoder whose tokens follow those of CLIP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.prompting.attention import is_break, parse_attention

END, PAD = "</s>", "<pad>"
TEXTS_PER_CALL = 32


class T5Tokenizer:
    """T5's tokenizer from a file of the `tokenizers` library."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        """`vocabulary`: how many tokens the encoder knows. Raises `CheckpointError` for a file that is no tokenizer, or
        another model's."""
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no class of its own for it
            raise CheckpointError(f"{path.name} is no tokenizer ({error}). Put T5's tokenizer.json there.") from error
        end, pad = self._tokenizer.token_to_id(END), self._tokenizer.token_to_id(PAD)
        known = self._tokenizer.get_vocab_size()
        if end is None or pad is None or known > vocabulary:
            raise CheckpointError(
                f"{path.name} is not the tokenizer of this T5: it has {known} tokens (the encoder {vocabulary}), and "
                f"needs {END} and {PAD} among them. Put the tokenizer.json there that belongs to the encoder."
            )
        self._end, self._pad = end, pad
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids(self, text: str, tokens: int, with_attention: bool = True) -> list[int]:
        """Exactly `tokens` ids: the text's, the end token, padding; what is beyond them is cut off.

        `with_attention`: brackets and weights are read and left out; their pieces are encoded one by one.
        """
        pieces = [text]
        if with_attention:
            pieces = [piece[0] for piece in parse_attention(text) if not is_break(piece)]
        found = [self._tokenizer.encode(piece, add_special_tokens=False).ids for piece in pieces]
        ids = [*(token for piece in found for token in piece), self._end]
        return (ids + [self._pad] * (tokens - len(ids)))[:tokens]


class T5TextEncoder:
    """Wraps a `T5EncoderModel`; `encode` is what `T5Conditioner` asks. Prompt weights have no effect on T5."""

    def __init__(
        self, model: nn.Module, tokenizer: T5Tokenizer, device: torch.device | str, with_attention: bool = True
    ) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._device = torch.device(device)
        self._with_attention = with_attention

    @torch.no_grad()
    def encode(self, texts: Sequence[str], tokens: int) -> Tensor:
        """The last layer's states [B, tokens, width], padding included, without an attention mask."""
        rows = [self._tokenizer.ids(text, tokens, self._with_attention) for text in texts]
        parts = [
            self._model(input_ids=torch.tensor(rows[start : start + TEXTS_PER_CALL], device=self._device))
            for start in range(0, len(rows), TEXTS_PER_CALL)
        ]
        return torch.cat([part.last_hidden_state for part in parts])
