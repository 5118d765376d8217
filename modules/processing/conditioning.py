"""Prompts of a job to conditionings, through the model's text encoder and a cache that knows what they depend on."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from modules.models.loaded import LoadedModel
from modules.processing.networks import ActiveNetworks
from modules.prompting.cache import ConditioningCache, ResultIdentity
from modules.prompting.clip_encoder import ClipTextEncoder
from modules.prompting.conditioning import ComposedConditioning, PromptEncoder, ScheduledConditioning, Timing
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions, TextTower
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
        self.networks = ActiveNetworks()
        self._tower = TextTower(ClipTokenizer.from_package(), ClipTextEncoder(model.text_encoder, device=model.device))
        self._prompts: ConditioningCache[tuple[ComposedConditioning, ...]] = ConditioningCache(CACHED_ENCODINGS)
        self._negatives: ConditioningCache[tuple[ScheduledConditioning, ...]] = ConditioningCache(CACHED_ENCODINGS)

    def encode(
        self,
        prompts: Sequence[str],
        negatives: Sequence[str],
        steps: int,
        settings: Settings,
        hires_steps: int | None = None,
    ) -> EncodedPrompts:
        """Encode a batch's texts for `steps` network evaluations; with `hires_steps` for the second pass's.

        `networks` must say what is on the text encoder.

        Texts are those after styles, comments and network tags. Equal texts of one job, and of jobs before, are
        encoded once.
        """
        timing = Timing(steps, hires_steps, settings.flag("use_old_scheduling"))
        options = TextOptions(
            emphasis=Emphasis(settings.text("emphasis")),
            comma_backtrack=settings.whole("comma_padding_backtrack"),
            clip_skip=settings.whole("CLIP_stop_at_last_layers"),
        )
        encoder = PromptEncoder((self._tower,), options)
        if not settings.flag("persistent_cond_cache"):
            self.clear()
        positive = self._identity(tuple(prompts), "positive", timing, options)
        negative = self._identity(tuple(negatives), "negative", timing, options)
        with self._model.computing():
            return EncodedPrompts(
                self._prompts.get_or_make(positive, lambda: tuple(encoder.encode_prompts(prompts, timing))),
                self._negatives.get_or_make(negative, lambda: tuple(encoder.encode_negatives(negatives, timing))),
                encoder.encode_empty().crossattn,
            )

    def clear(self) -> None:
        """Forget all encodings."""
        self._prompts.clear()
        self._negatives.clear()

    def _identity(self, texts: tuple[str, ...], role: str, timing: Timing, options: TextOptions) -> ResultIdentity:
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
            comma_backtrack=options.comma_backtrack,
            clip_skip=options.clip_skip,
            networks=self.networks.uses,
            lora_mode=self.networks.mode,
        )
