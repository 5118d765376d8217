"""Prompts of a job to conditionings, through the model's text encoder and a cache that knows what they depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from modules.adapters.embeddings import Embedding
from modules.models.families.family import ConditioningRecipe, TextTowerRecipe
from modules.models.loaded import LoadedModel
from modules.processing.engine.tag_types import ActiveAdapters
from modules.processing.pipeline.size_vector import SizeFacts, size_vector
from modules.processing.pipeline.texts import text_options
from modules.prompting.cache import ConditioningCache, ResultIdentity
from modules.prompting.clip_encoder import ClipTextEncoder
from modules.prompting.conditioning import (
    ComposedConditioning,
    ExtraTokens,
    PromptEncoder,
    ScheduledConditioning,
    Timing,
)
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions, TextTower
from modules.prompting.t5_encoder import T5TextEncoder, T5Tokenizer
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings

CACHED_ENCODINGS = 16


@dataclass(frozen=True)
class EncodedPrompts:
    """One prompt and one negative an image of a batch, and the empty text's encoding [77,width]."""

    prompts: tuple[ComposedConditioning, ...]
    negatives: tuple[ScheduledConditioning, ...]
    empty: Tensor


class Conditioner:
    """The prompt encoder of one loaded model; lives and dies with it."""

    def __init__(self, model: LoadedModel, plan_fingerprint: str) -> None:
        self._model = model
        self._plan_fingerprint = plan_fingerprint
        self.adapters = ActiveAdapters()
        self._tokenizer = ClipTokenizer.from_package()
        self._t5_tokenizer: T5Tokenizer | None = None
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
    ) -> EncodedPrompts:
        """Encode a batch's texts for `steps` network model calls of an image of `size_px` (width, height); with
        `hires_steps` for the second pass's.

        `networks` must say what is on the text encoder.

        Texts are those after styles, comments and network tags. Equal texts of one job, and of jobs before, are
        encoded once.
        """
        timing = Timing(steps, hires_steps, settings.flag("use_old_scheduling"))
        options = text_options(settings)
        recipe = self._model.family.recipe
        sizes = SizeFacts.of(recipe.sizes, size_px, settings)
        by_options = settings.flag("sdxl_clip_l_skip")
        encoder = PromptEncoder(
            tuple(self._tower(tower, by_options) for tower in recipe.towers),
            options,
            size_vector(recipe.sizes, sizes, is_negative=False),
            joins_pooled=recipe.joins_pooled,
            extra_tokens=self._extra_tokens(recipe, options),
        )
        negative_encoder = replace(
            encoder,
            vector_suffix=size_vector(recipe.sizes, sizes, is_negative=True),
            zero_empty_negative=recipe.zero_empty_negative,
        )
        if not settings.flag("persistent_cond_cache"):
            self.clear()
        positive = self._identity(tuple(prompts), "positive", timing, options, sizes, by_options)
        negative = self._identity(tuple(negatives), "negative", timing, options, sizes, by_options)

        def encode_prompts() -> tuple[ComposedConditioning, ...]:
            return tuple(encoder.encode_prompts(prompts, timing))

        def encode_negatives() -> tuple[ScheduledConditioning, ...]:
            return tuple(negative_encoder.encode_negatives(negatives, timing))

        def encode() -> EncodedPrompts:
            with self._model.computing():
                return EncodedPrompts(
                    self._prompts.get_or_make(positive, encode_prompts),
                    self._negatives.get_or_make(negative, encode_negatives),
                    encoder.encode_empty().crossattn,
                )

        return self._model.recovery.run("text", encode)

    def _tower(self, recipe: TextTowerRecipe, by_options: bool) -> TextTower:
        """One of the model's text encoders, used as its family does; `by_options`: the setting "Clip skip SDXL"."""
        module = self._model.text_encoders[recipe.component]
        projected = hasattr(module, "text_projection")
        encoder = ClipTextEncoder(
            module.text_model if projected else module,
            device=self._model.device,
            use_pooled=recipe.pooled,
            project=module.text_projection if projected else None,
            fixed_layer=None if recipe.skips_by_options and by_options else recipe.layer_from_end,
            final_norm=recipe.final_norm,
        )
        table = self._tables.get(int(module.config.hidden_size))
        return TextTower(self._tokenizer, encoder, table, recipe.pad_id)

    def _extra_tokens(self, recipe: ConditioningRecipe, options: TextOptions) -> ExtraTokens | None:
        """What follows the towers' tokens."""
        optional = recipe.extra_encoder
        if optional is None:
            return None
        width = self._model.family.input_sizes(self._model.unet).context_width
        module = self._model.text_encoders.get(optional.component)
        if module is None:
            return ExtraTokens(width)
        if self._t5_tokenizer is None:
            self._t5_tokenizer = T5Tokenizer(optional.tokenizer(self._model.info.path), int(module.config.vocab_size))
        reads_weights = options.emphasis is not Emphasis.NONE
        encoder = T5TextEncoder(module, self._t5_tokenizer, self._model.device, reads_weights)
        return ExtraTokens(width, encoder.encode)

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
        sizes: SizeFacts,
        by_options: bool,
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
            text_encoder="clip skip SDXL" if by_options else "",
            width_px=sizes.width_px,
            height_px=sizes.height_px,
            crop_left_px=sizes.crop_left_px,
            crop_top_px=sizes.crop_top_px,
            aesthetic_scores=(sizes.low_score, sizes.high_score),
        )
