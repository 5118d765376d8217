"""Prompts of a job to conditionings, through the model's text encoder and a cache that knows what they depend on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import overload
from weakref import ref

from PIL import Image
from torch import Tensor

from modules.adapters.embeddings import Embedding
from modules.models.loading.encoder_parts import Tower
from modules.models.loading.loaded import LoadedModel, why_blind
from modules.models.text_encoders.counting import unread_syntax
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.processing.engine.adapters import ActiveAdapters
from modules.processing.engine.encoded_store import EncodedStore
from modules.processing.request.source_images import as_reference
from modules.processing.request.texts import text_options
from modules.prompting.cache import ConditioningCache, ResultIdentity
from modules.prompting.conditioning import (
    ComposedConditioning,
    Facts,
    PromptEncoder,
    ScheduledConditioning,
    Timing,
)
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.encode import TextOptions
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings
from modules.system.texts import page_text

CACHED_ENCODINGS = 16


class EncodedNegatives(Sequence[ScheduledConditioning]):
    """The negative prompts of a batch, one for each image, and the empty text's encoding. The text encoders run for
    them when they are first read: where guidance does not use them, never."""

    def __init__(self, count: int, encode: Callable[[], tuple[tuple[ScheduledConditioning, ...], Tensor]]) -> None:
        """`encode` gives the `count` negative prompts and the empty text; it is called at most once."""
        self._count = count
        self._encode = encode
        self._encoded: tuple[tuple[ScheduledConditioning, ...], Tensor] | None = None

    def read(self) -> tuple[tuple[ScheduledConditioning, ...], Tensor]:
        """The negative prompts, and the encoding of the empty text [77,width]."""
        if self._encoded is None:
            self._encoded = self._encode()
        return self._encoded

    @property
    def empty(self) -> Tensor:
        """The encoding of the empty text [77,width], for padding."""
        return self.read()[1]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ScheduledConditioning]:
        return iter(self.read()[0])

    @overload
    def __getitem__(self, index: int) -> ScheduledConditioning: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ScheduledConditioning, ...]: ...

    def __getitem__(self, index: int | slice) -> ScheduledConditioning | tuple[ScheduledConditioning, ...]:
        return self.read()[0][index]


@dataclass(frozen=True)
class EncodedPrompts:
    """One prompt and one negative prompt for each image of a batch."""

    prompts: tuple[ComposedConditioning, ...]
    negatives: EncodedNegatives


class Conditioner:
    """The prompt encoder of one loaded model; lives and dies with it."""

    def __init__(self, model: LoadedModel, plan_fingerprint: str, stored_in: Path | None = None) -> None:
        """`stored_in`: the folder where encodings are kept between starts, as far as a job's settings allow."""
        self._model = model
        self._stored_in = stored_in
        self._plan_fingerprint = plan_fingerprint
        self.adapters = ActiveAdapters()
        self.notices: dict[str, None] = {}  # on texts that were encoded, in order; whoever shows them clears them
        self._tokenizer = ClipTokenizer.standard()
        self.tower = Tower(model)
        width = model.family.denoiser.sizes(model.unet).context_width
        parts = TextParts(
            model.text_encoders,
            self._tokenizer,
            model.device,
            model.info.path,
            width,
            model.part_files,
            self.tower.see,
        )
        self._conditioning = model.family.texts.conditioning(parts)
        self._tables: dict[int, EmbeddingTable] = {}  # by the width of a text encoder
        self._embeddings: dict[str, Embedding] = {}
        self._prompts: ConditioningCache[tuple[ComposedConditioning, ...]] = ConditioningCache(CACHED_ENCODINGS)
        self._negatives: ConditioningCache[tuple[ScheduledConditioning, ...]] = ConditioningCache(CACHED_ENCODINGS)

    def encode(
        self,
        prompts: Sequence[str],
        negatives: Sequence[str],
        steps: int,
        settings: Settings,
        size_px: tuple[int, int],
        hires_steps: int | None = None,
        with_negatives: bool = True,
        images: Sequence[Sequence[Image.Image]] = ((),),
    ) -> EncodedPrompts:
        """Encode a batch's texts for `steps` model calls of an image of `size_px` (width, height); with
        `hires_steps` for the second pass's. `with_negatives`: whether the negative prompts are encoded now, and not
        only when they are read. `images`: those that the model edits, which a language model that sees is shown:
        a row for each prompt, or one for all of them.

        `adapters` must say what is on the text encoder.

        Texts are those after styles, comments and adapter tags. Equal texts of one job, and of jobs before, are
        encoded once.
        """
        rows = [self._seen(row) for row in images]
        if len(rows) > 1 and len(rows) == len(prompts) and any(rows):
            rest = (steps, settings, size_px, hires_steps, with_negatives)
            texts = zip(prompts, negatives, rows, strict=True)
            return _joined([self.encode([prompt], [negative], *rest, [row]) for prompt, negative, row in texts])
        family = self._model.family
        options = text_options(settings)
        unread = unread_syntax(
            (*prompts, *negatives),
            options.emphasis,
            family.label,
            family.texts.reads_weights,
            family.texts.reads_breaks,
        )
        self.notices |= dict.fromkeys(unread)
        timing = partial(_timing, steps, hires_steps, settings)
        if not settings.optimizations.persistent_cond_cache:
            self.clear()
        shown_as = self._model.shown_as
        request = TextRequest(self._tables, options, settings, size_px, images=rows[0], shown_as=shown_as)
        conditioner = self._conditioning(request)
        positive = self._identity(tuple(prompts), "positive", timing(prompts), options, conditioner.facts)

        def encode_prompts() -> tuple[ComposedConditioning, ...]:
            encoder = PromptEncoder(conditioner)
            return self._store(settings).get_or_make(
                self._on_disk(positive),
                self._model.device,
                lambda: tuple(encoder.encode_prompts(prompts, timing(prompts))),
            )

        def encode() -> tuple[ComposedConditioning, ...]:
            with self._model.computing():
                return self._prompts.get_or_make(positive, encode_prompts)

        encoded = self._model.recovery.run("text", encode)
        # whoever holds the negatives does not hold the model, which may have to make room for a refiner
        owner = ref(self)

        def encode_negatives() -> tuple[tuple[ScheduledConditioning, ...], Tensor]:
            found = owner()
            assert found is not None, "negative prompts are read while their model is in use"
            return found._encode_negatives(tuple(negatives), timing(negatives), request)

        later = EncodedNegatives(len(negatives), encode_negatives)
        if with_negatives:
            later.read()
        return EncodedPrompts(encoded, later)

    def _encode_negatives(
        self, negatives: tuple[str, ...], timing: Timing, request: TextRequest
    ) -> tuple[tuple[ScheduledConditioning, ...], Tensor]:
        """The negative prompts, and the empty text [77,width] for padding."""
        options, conditioner = request.options, self._conditioning(replace(request, embeddings=self._tables))
        encoder, store, device = PromptEncoder(conditioner), self._store(request.settings), self._model.device
        negative = self._identity(negatives, "negative", timing, options, conditioner.facts)
        empty = self._identity(("",), "empty", Timing(1, None, False), options, conditioner.facts)

        def encode_negatives() -> tuple[ScheduledConditioning, ...]:
            return store.get_or_make(
                self._on_disk(negative), device, lambda: tuple(encoder.encode_negatives(negatives, timing))
            )

        def encode_empty() -> tuple[ScheduledConditioning, ...]:
            return store.get_or_make(
                self._on_disk(empty), device, lambda: (ScheduledConditioning(((1, encoder.encode_empty()),)),)
            )

        def encode() -> tuple[tuple[ScheduledConditioning, ...], Tensor]:
            with self._model.computing():
                encoded = self._negatives.get_or_make(negative, encode_negatives)
                first = encoded[0].at(1)
                if first.mask is None:  # else padding is zeros, and the encoder need not run for it
                    first = self._negatives.get_or_make(empty, encode_empty)[0].at(1)
                return encoded, first.crossattn

        return self._model.recovery.run("text", encode)

    def _seen(self, images: Sequence[Image.Image]) -> tuple[Image.Image, ...]:
        """The images that the text encoder is shown: none where it cannot see, with a notice where it could be able
        to."""
        model = self._model
        if model.family.texts.tower is None or not model.takes_references:
            return ()
        if model.family.denoiser.references_in_text:  # where they are as large as the denoiser sees them
            return tuple(as_reference(image, model.size_multiple_px) for image in images)
        if not images:
            if model.family.denoiser.edits_by_adapter:
                return ()
            name = model.info.name
            note = page_text(f"{name} edits images, and none is given: give it one in img2img or as a reference.")
            self.notices[note] = None
        elif blind := why_blind(model):
            self.notices[blind] = None
            return ()
        return tuple(images)

    def _store(self, settings: Settings) -> EncodedStore:
        limit = settings.optimizations.prompt_cache_mb << 20 if self._stored_in is not None else 0
        return EncodedStore(self._stored_in or Path(), limit)

    def _on_disk(self, identity: ResultIdentity) -> ResultIdentity:
        """The identity with the checkpoint called by what is known of it at once, and not by a hash that may not be
        taken yet, and with the files of its parts."""
        info = self._model.info
        parts = dict.fromkeys((*info.modules, *self._model.part_files))
        stats = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in parts if path.is_file()]
        return replace(identity, checkpoint_hash=f"{info.path}:{info.size_bytes}:{info.mtime_ns}:{stats}")

    def use_embeddings(self, embeddings: Mapping[str, Embedding]) -> None:
        """Have these embeddings take the place of their names."""
        known = {name: item.file_hash for name, item in self._embeddings.items()}
        if {name: item.file_hash for name, item in embeddings.items()} == known:
            return
        self._embeddings = dict(embeddings)
        self._tables = {
            width: EmbeddingTable(self._tokenizer, {name: item.vectors[width] for name, item in embeddings.items()})
            for width in self._model.text_widths
        }

    def embeddings_in(self, *texts: str) -> list[Embedding]:
        """The embeddings whose names stand in the texts, in the order in which they come."""
        table, found = next(iter(self._tables.values()), None), {}
        for text in texts if table is not None and self._embeddings else ():
            tokens = self._tokenizer.encode(text)
            position = 0
            while position < len(tokens):
                match = table.find(tokens, position) if table is not None else None
                if match is not None:
                    found[match.name] = self._embeddings[match.name]
                position += match.tokens if match is not None else 1
        return list(found.values())

    def clear(self) -> None:
        """Forget all encodings."""
        self._prompts.clear()
        self._negatives.clear()

    def _identity(
        self,
        texts: tuple[str, ...],
        role: str,
        timing: Timing,
        options: TextOptions,
        facts: Facts,
    ) -> ResultIdentity:
        info = self._model.info
        return ResultIdentity(
            checkpoint_hash=info.sha256 or f"{info.path}:{info.size_bytes}:{info.mtime_ns}",
            plan_fingerprint=self._plan_fingerprint,
            prompts=texts,
            steps=timing.steps,
            role=role,
            hires_steps=timing.hires_steps,
            old_timelines=timing.old_timelines,
            emphasis=options.emphasis,
            old_emphasis=options.old_emphasis,
            comma_backtrack=options.comma_backtrack,
            clip_skip=options.clip_skip,
            embeddings=tuple(sorted((name, item.file_hash) for name, item in self._embeddings.items())),
            adapters=self.adapters.uses,
            lora_mode=self.adapters.mode,
            settings=options.settings,
            facts=facts,
        )


def _joined(rows: Sequence[EncodedPrompts]) -> EncodedPrompts:
    """Encodings of one image each as those of a batch."""

    def read() -> tuple[tuple[ScheduledConditioning, ...], Tensor]:
        return tuple(row.negatives[0] for row in rows), rows[0].negatives.empty

    return EncodedPrompts(tuple(row.prompts[0] for row in rows), EncodedNegatives(len(rows), read))


def _timing(steps: int, hires_steps: int | None, settings: Settings, texts: Sequence[str]) -> Timing:
    """The steps that texts are spread over: a single one where none of them changes with the step, so that they are
    not encoded again for a second pass or another number of steps."""
    if not any("[" in text for text in texts):
        return Timing(1)
    return Timing(steps, hires_steps, settings.compatibility.use_old_scheduling)
