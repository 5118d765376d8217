"""Text encoder as extensions see it: its tokenizer. Prompts are encoded by the program.

`ldm.modules.encoders.modules` leads here, for the `isinstance` of extensions that ask which encoder there is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from modules.prompting.encode import TextOptions, chunks_of
from modules.prompting.tokens import ClipTokenizer
from modules.prompting.vocabulary import byte_characters, read_vocabulary

CHUNK = 75
ENCODED = "prompts are encoded by the program; on_cfg_denoiser has them as text_cond and text_uncond."


class TokenizerView:
    """CLIP's tokenizer by the names of the `transformers` package: pieces and ids, without any length limit."""

    model_max_length = CHUNK + 2
    bos_token, eos_token = "<|startoftext|>", "<|endoftext|>"

    def __init__(self) -> None:
        self._clip = ClipTokenizer.standard()
        self.bos_token_id, self.eos_token_id = self._clip.start_id, self._clip.end_id
        self.pad_token_id = self.eos_token_id
        self.byte_encoder = dict(byte_characters())
        self.byte_decoder = {character: byte for byte, character in self.byte_encoder.items()}
        self.encoder = read_vocabulary().ids
        self.decoder = {index: piece for piece, index in self.encoder.items()}
        self.vocab_size = len(self.encoder)

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Ids by their pieces."""
        return dict(self.encoder)

    def encode(self, text: str, add_special_tokens: bool = True, **keywords: Any) -> list[int]:
        """The ids of a text."""
        ids = list(self._clip.encode(text))
        return [self.bos_token_id, *ids, self.eos_token_id] if add_special_tokens else ids

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True, **keywords: Any) -> dict[str, Any]:
        """`input_ids` and `attention_mask` of one text or several, neither cut nor padded."""
        texts = [text] if isinstance(text, str) else list(text)
        ids = [self.encode(one, add_special_tokens) for one in texts]
        mask = [[1] * len(one) for one in ids]
        is_one = isinstance(text, str)
        return {"input_ids": ids[0] if is_one else ids, "attention_mask": mask[0] if is_one else mask}

    def tokenize(self, text: str, **keywords: Any) -> list[str]:
        """The pieces of a text."""
        return [self.decoder[index] for index in self._clip.encode(text)]

    def convert_ids_to_tokens(self, ids: int | Sequence[int], **keywords: Any) -> Any:
        """The pieces of ids."""
        return self.decoder[ids] if isinstance(ids, int) else [self.decoder[int(one)] for one in ids]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The ids of pieces; those that there are not become the end token."""
        of = self.encoder.get
        return (
            of(tokens, self.eos_token_id) if isinstance(tokens, str) else [of(one, self.eos_token_id) for one in tokens]
        )

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **keywords: Any) -> str:
        """Ids as text again."""
        special = (self.bos_token_id, self.eos_token_id) if skip_special_tokens else ()
        pieces = "".join(self.decoder[int(one)] for one in ids if int(one) not in special)
        words = bytearray(self.byte_decoder[one] for one in pieces).decode("utf-8", "replace")
        return words.replace("</w>", " ").strip()


@cache
def tokenizer() -> TokenizerView:
    """The one tokenizer of all models that read prompts with CLIP."""
    return TokenizerView()


class _Encoder:
    """A text encoder by its tokenizer; whatever else is asked of it is refused with one sentence."""

    max_length = CHUNK + 2

    @property
    def tokenizer(self) -> TokenizerView:
        """CLIP's tokenizer."""
        return tokenizer()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"The text encoder's {name} is not supported here: {ENCODED}", name=name, obj=self)


class FrozenCLIPEmbedder(_Encoder):
    """The text encoder of the model in use."""


class FrozenOpenCLIPEmbedder(_Encoder):
    """For `isinstance` alone: OpenCLIP's encoders have the same tokenizer, and are seen as `FrozenCLIPEmbedder`."""


class CondStageModel(_Encoder):
    """`sd_model.cond_stage_model`: the encoder as `wrapped`, and what splits prompts into tokens."""

    chunk_length = CHUNK

    def __init__(self) -> None:
        self.wrapped = FrozenCLIPEmbedder()
        self.id_start, self.id_end = tokenizer().bos_token_id, tokenizer().eos_token_id
        self.id_pad = self.id_end
        self.comma_token = tokenizer().encoder.get(",</w>")

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start and end."""
        return [tokenizer().encode(text, add_special_tokens=False) for text in texts]

    def get_target_prompt_token_count(self, token_count: int) -> int:
        """The room that so many tokens take: whole chunks of 75."""
        return max(-(-token_count // CHUNK), 1) * CHUNK


def chunk_ids(text: str, options: TextOptions) -> list[int]:
    """The ids of a prompt as the model gets them, in chunks of 75 that are filled up with the end token."""
    return [index for chunk in chunks_of(ClipTokenizer.standard(), text, options) for index in chunk.tokens[1:-1]]
