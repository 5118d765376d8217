"""Captions to what the denoiser attends to, through the family's own conditioning; encoded ahead where they may be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from lib_training.base_model import parts_identity
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.loading.loaded import LoadedModel
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.prompting.conditioning import Conditioning, TextGroup
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions, chunks_of
from modules.prompting.padding import stack_conditionings, stack_masks
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings
from modules.system.atomic_files import output_error, write_atomic

TOGETHER = 32  # captions that are encoded in one call

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class Caption:
    """A text for an image of this size; `is_dropped`: the image is shown without one, as a negative prompt is empty."""

    text: str
    size_px: Size
    is_dropped: bool = False


def _text(caption: Caption) -> str:
    return "" if caption.is_dropped else caption.text


class CaptionEncoder:
    """Encodes captions of one model. Brackets are text. All get as many chunks of tokens as the longest has."""

    def __init__(self, model: LoadedModel, clip_skip: int = 1) -> None:
        self._model = model
        self._tokenizer = ClipTokenizer.standard()
        self._options = TextOptions(emphasis=Emphasis.NONE, clip_skip=clip_skip)
        width = model.family.denoiser.sizes(model.unet).context_width
        parts = TextParts(model.text_encoders, self._tokenizer, model.device, model.info.path, width, model.part_files)
        self._conditioning = model.family.texts.conditioning(parts)
        self._tables: dict[int, EmbeddingTable] = {}
        self._longest = ""
        self._chunks = 1

    def use_words(self, words: Mapping[str, Mapping[int, Tensor]]) -> None:
        """Have vectors [n, width], by width of an encoder, take the place of these words."""
        self._tables = {
            width: EmbeddingTable(self._tokenizer, {word: vectors[width] for word, vectors in words.items()})
            for width in self._model.text_widths
        }

    def fit(self, texts: Iterable[str]) -> None:
        """Take note of all texts that will come: the longest says how many chunks there are."""
        if not self._model.family.texts.reads_breaks:
            return  # no chunks: what is too long is cut off
        table = next(iter(self._tables.values()), None)
        for text in texts:
            chunks = len(chunks_of(self._tokenizer, text, self._options, table))
            if chunks > self._chunks:
                self._longest, self._chunks = text, chunks

    @property
    def identity(self) -> str:
        """Return what encodings depend on besides the text."""
        info, plan = self._model.info, self._model.plan
        return (
            f"{info.path}/{info.size_bytes}/{info.mtime_ns}/{plan.fingerprint}/{self._options.clip_skip}/{self._chunks}"
            f"{parts_identity(self._model)}"
        )

    def encode(self, captions: Sequence[Caption], has_gradients: bool = False) -> list[Conditioning]:
        """One conditioning each, of equal shapes."""
        made: dict[Caption, Conditioning] = {}
        together: dict[tuple[Size, bool], list[Caption]] = {}
        for caption in dict.fromkeys(captions):
            together.setdefault((caption.size_px, caption.is_dropped), []).append(caption)
        for (size_px, is_dropped), members in together.items():
            request = TextRequest(self._tables, self._options, Settings(), size_px, has_gradients)
            with torch.set_grad_enabled(has_gradients), self._model.computing():
                found = self._conditioning(request).conditioning([self._group(each) for each in members], is_dropped)
            made.update({each: by_text[_text(each)] for each, by_text in zip(members, found, strict=True)})
        return [made[caption] for caption in captions]

    def _group(self, caption: Caption) -> TextGroup:
        """The caption, and next to it the longest, to whose length it is filled up."""
        text = _text(caption)
        texts = tuple(dict.fromkeys((text, self._longest))) if self._chunks > 1 else (text,)
        return TextGroup(texts, (1,) * len(texts))


@dataclass
class CaptionCache:
    """Encodings by caption, in memory and, with a folder, on disk: so that text encoders can leave memory."""

    encoder: CaptionEncoder
    folder: Path | None = None
    _known: dict[Caption, Conditioning] = field(default_factory=dict)

    def fill(self, captions: Iterable[Caption]) -> int:
        """Encode what is not known yet; returns how many were encoded."""
        missing = []
        for caption in dict.fromkeys(captions):
            path = self._path(caption)
            found = self._known.get(caption) or (None if path is None else _read(path))
            if found is None:
                missing.append(caption)
            else:
                self._known[caption] = found
        for start in range(0, len(missing), TOGETHER):
            members = missing[start : start + TOGETHER]
            for caption, made in zip(members, self.encoder.encode(members), strict=True):
                vector = None if made.vector is None else made.vector.cpu()
                mask = None if made.mask is None else made.mask.cpu()
                self._known[caption] = Conditioning(made.crossattn.cpu().clone(), vector, mask)
                path = self._path(caption)
                if path is not None:
                    self._write(path, self._known[caption])
        return len(missing)

    def _write(self, path: Path, found: Conditioning) -> None:
        try:
            write_atomic(path, _bytes(found))
        except OSError as error:
            raise output_error(path.name, path.parent, error) from error

    def get(self, captions: Sequence[Caption]) -> list[Conditioning]:
        """Return those that `fill` received."""
        return [self._known[caption] for caption in captions]

    def _path(self, caption: Caption) -> Path | None:
        if self.folder is None:
            return None
        key = f"{self.encoder.identity}\n{caption.size_px}\n{caption.is_dropped}\n{caption.text}"
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"


def batched(conditionings: Sequence[Conditioning]) -> DenoiserContext:
    """Stack them as the denoiser takes them."""
    vectors = [item.vector for item in conditionings if item.vector is not None]
    return DenoiserContext(
        stack_conditionings(conditionings),
        torch.stack(vectors) if vectors else None,
        mask=stack_masks(conditionings),
    )


def _bytes(found: Conditioning) -> bytes:
    tensors = {"crossattn": found.crossattn.contiguous()}
    if found.vector is not None:
        tensors["vector"] = found.vector.contiguous()
    if found.mask is not None:
        tensors["mask"] = found.mask.contiguous()
    return save(tensors)


def _read(path: Path) -> Conditioning | None:
    try:
        tensors = load(path.read_bytes())
    except OSError:
        return None
    except Exception as error:  # safetensors raises an error of its own for damaged files
        if type(error).__name__ != "SafetensorError":
            raise
        return None
    return Conditioning(tensors["crossattn"], tensors.get("vector"), tensors.get("mask"))
