"""The passes of a batch: one, or with hires fix two, and what is done between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from PIL import Image
from torch import Tensor

from modules.images.resize import Scaler, scale_lanczos
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.engine.engine import Engine
from modules.processing.engine.lease import ModelInUse
from modules.processing.pipeline.guidance import GuidedDenoiser
from modules.processing.pipeline.refiner import refiner_fields, refiner_switch
from modules.processing.pipeline.run_pass import (
    PassResult,
    PassTools,
    guided_denoiser,
    needs_negatives,
    pass_levels,
    run_pass,
)
from modules.processing.pipeline.starts.image import ImageStart
from modules.processing.pipeline.starts.latents import LatentsStart, enlarged, tail_run
from modules.processing.pipeline.starts.noise import NoiseStart
from modules.processing.pipeline.starts.references import References
from modules.processing.pipeline.starts.start import Start
from modules.processing.record.recorder import Recorder
from modules.processing.request.batch import Batch, PassTexts, with_own_texts
from modules.processing.request.events import Events
from modules.processing.request.hooks import BatchDraft
from modules.processing.request.pass_settings import PassSettings
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.source_images import FromImage
from modules.processing.request.stages import HiresSize, Part, PartOf, Stage, hires_size, refines
from modules.processing.request.texts import prepare_text
from modules.processing.request.upscaling import PIXEL_UPSCALERS, upscale_image
from modules.prompting.extra_networks import PromptTags
from modules.sampling.catalog import SAMPLERS


@dataclass(frozen=True)
class SecondPass:
    """The second pass of hires fix. What its request leaves open is as in the first pass."""

    hires: HiresRequest
    settings: PassSettings
    size: HiresSize

    @classmethod
    def of(cls, request: GenerationRequest, hires: HiresRequest, model: LoadedModel) -> SecondPass:
        """The second pass of a request."""
        size = hires_size(*request.size_px, hires, model.downscale)
        ratio = request.settings.optimizations.token_merging_ratio_hr
        settings = PassSettings(
            sampler=SAMPLERS.get(hires.sampler or request.sampler),
            scheduler=hires.scheduler or request.scheduler,
            steps=hires.steps or request.steps,
            cfg_scale=request.cfg_scale,
            distilled_cfg_scale=hires.distilled_cfg_scale or request.distilled_cfg_scale,
            settings=request.settings,
            schedule_table=model.family.noise.schedule_table,
            stage=Stage.SAMPLE_HIRES,
            size_px=size.target,
            token_merging_ratio=ratio or request.settings.optimizations.token_merging_ratio,
        )
        return cls(hires, settings, size)


@dataclass(frozen=True)
class Passes:
    """The work for every batch of a job."""

    request: GenerationRequest
    start: Start
    first: PassSettings
    second: SecondPass | None

    @classmethod
    def of(cls, request: GenerationRequest, model: LoadedModel, scale: Scaler) -> Passes:
        """The passes of a request with this model; `scale` resizes images to start from."""
        first = PassSettings(
            sampler=SAMPLERS.get(request.sampler),
            scheduler=request.scheduler,
            steps=request.steps,
            cfg_scale=request.cfg_scale,
            distilled_cfg_scale=request.distilled_cfg_scale,
            settings=request.settings,
            schedule_table=model.family.noise.schedule_table,
            size_px=request.size_px,
            token_merging_ratio=request.token_merging_ratio,
        )
        second = SecondPass.of(request, request.hires, model) if request.hires is not None else None
        return cls(request, start_of(request, scale), first, second)

    def steps(self, model: LoadedModel) -> int:
        """Sampling steps of one batch."""
        levels = pass_levels(model, self.first)
        runs = [self.start.sampling_run(self.first, levels)]
        if self.second is not None:
            runs.append(tail_run(self.second.settings, levels, self.second.hires.denoising_strength, fix_steps=True))
        return sum(max(len(run.sigmas) - 1, 0) for run in runs if run is not None)


def start_of(request: GenerationRequest, scale: Scaler) -> Start:
    """Where the first pass of a request starts from."""
    if isinstance(request.start, FromImage):
        return ImageStart.of(request.start, request, scale)
    return NoiseStart(References.of(request))


def scaler_of(request: GenerationRequest, engine: Engine, in_use: ModelInUse, events: Events) -> Scaler:
    """How images to start from are resized: by the upscaler that the setting names where they grow, else by Lanczos;
    masks always by Lanczos."""
    name = request.settings.upscaling.upscaler_for_img2img
    if not name or name == "None":
        return scale_lanczos

    def scale(image: Image.Image, width: int, height: int) -> Image.Image:
        if image.mode == "L" or max(width / image.width, height / image.height) <= 1.0:
            return scale_lanczos(image, width, height)
        events.stage(Stage.ENLARGE)
        larger = partial(_enlarge, image, name, (width, height), request, engine, in_use, events)
        return in_use.model.recovery.run(Stage.ENLARGE, larger)

    return scale


@dataclass(frozen=True)
class BatchTools:
    """The tools of the passes of a job, which own none of them."""

    engine: Engine
    passing: PassTools
    events: Events
    recorder: Recorder


def sample_batch(passes: Passes, draft: BatchDraft, tools: BatchTools) -> Tensor:
    """The clean latents of a batch, [B,C,h,w]; hooks may change the draft meanwhile."""
    request, hooks, recorder = passes.request, tools.passing.hooks, tools.recorder
    batch = Batch.of(draft, request)
    tags = batch.prompts[0].tags
    _apply_adapters(tags, batch, tools)
    hooks.adapters_active(draft, tags)
    hooks.batch(draft)
    batch = Batch.of(draft, request)
    recorder.begin(batch)
    texts = PassTexts(
        tuple(text.encoded for text in batch.prompts),
        tuple(text.encoded for text in batch.negatives),
        passes.first.model_calls,
        request.size_px,
        images=passes.start.seen(tools.passing.in_use.model),
    )
    encoded = _encode(texts, passes, tools, passes.first)
    result = _run(passes, passes.first, passes.start, batch, texts, encoded, tools)
    if passes.second is not None:
        result = _run_second(passes, passes.second, result.latents, batch, tools)
    return result.latents


def _run_second(passes: Passes, second: SecondPass, latents: Tensor, batch: Batch, tools: BatchTools) -> PassResult:
    """Enlarge what the first pass made, add noise again, and sample down from there."""
    settings, hires, in_use, recorder = passes.request.settings, second.hires, tools.passing.in_use, tools.recorder
    tools.passing.hooks.before_hires()
    if settings.saving.save_images_before_highres_fix and passes.request.save_images:
        for index in range(latents.shape[0]):
            recorder.before_hires(in_use.model.decode(latents[index : index + 1]), batch, index)

    def enlarge(image: Image.Image, name: str, size_px: tuple[int, int]) -> Image.Image:
        return _enlarge(image, name, size_px, passes.request, tools.engine, in_use, tools.events)

    larger = enlarged(in_use.model, latents, hires.upscaler, second.size.upscale_to, enlarge, tools.events.stage)
    if hires.checkpoint:
        tools.events.stage(Stage.LOAD)
        in_use.use(hires.checkpoint)
        recorder.checkpoint("Hires checkpoint", {})
        _apply_adapters(batch.prompts[0].tags, batch, tools)
    start = LatentsStart(larger, second.size, hires.denoising_strength, References.of(passes.request))
    texts = PassTexts(
        with_own_texts(batch.prompts, batch.hires_prompts, settings, with_tags=True),
        with_own_texts(batch.negatives, batch.hires_negatives, settings, with_tags=False),
        passes.first.model_calls,
        second.size.upscale_to,
        second.settings.model_calls,
        start.seen(tools.passing.in_use.model),
    )
    early = _encode(texts, passes, tools) if settings.compatibility.hires_fix_use_firstpass_conds else None
    if batch.hires_prompts[0]:  # the first image's tags count for the batch, as in the first pass
        _apply_adapters(prepare_text(batch.hires_prompts[0], settings).tags, batch, tools)
    encoded = early or _encode(texts, passes, tools, second.settings)
    return _run(passes, second.settings, start, batch, texts, encoded, tools)


def _run(
    passes: Passes,
    settings: PassSettings,
    start: Start,
    batch: Batch,
    texts: PassTexts,
    encoded: EncodedPrompts,
    tools: BatchTools,
) -> PassResult:
    """One pass, with the refiner where one takes part. The refiner gets no adapters."""
    request, in_use = passes.request, tools.passing.in_use

    def refine() -> GuidedDenoiser:
        tools.events.stage(Stage.LOAD)
        in_use.use(request.refiner_checkpoint)
        _apply_adapters({}, batch, tools)
        tools.recorder.checkpoint("Refiner", refiner_fields(request))
        refined = _encode(texts, passes, tools, settings)
        tools.events.stage(settings.stage)
        model = in_use.model
        image = start.image_conditioning(model, *model.latent_size(settings.size_px))
        levels, use = pass_levels(model, settings), in_use.script_use
        return guided_denoiser(settings, model, levels, refined, image, start.image_cfg_scale, use)

    switch = None
    if refines(request, settings.is_hires) and not in_use.is_in_use(request.refiner_checkpoint):
        switch = refiner_switch(request, pass_levels(in_use.model, settings), refine)
        switch = replace(switch, info=tools.engine.catalogue.default(request.refiner_checkpoint))
    result = run_pass(settings, start, batch, texts, encoded, tools.passing, switch)
    tools.recorder.used(result.used)
    return result


def _encode(
    texts: PassTexts, passes: Passes, tools: BatchTools, settings: PassSettings | None = None
) -> EncodedPrompts:
    """Encode texts with the model in use and the adapters on it. Negative prompts that a pass with these `settings`
    does not use are left for later; without settings they are encoded too."""
    tools.events.stage(Stage.ENCODE_TEXT)
    in_use, hooks = tools.passing.in_use, tools.passing.hooks
    return in_use.conditioner.encode(
        texts.prompts,
        texts.negatives,
        texts.model_calls,
        passes.request.settings,
        texts.size_px,
        texts.hires_model_calls,
        settings is None or needs_negatives(settings, in_use.model, hooks.reads_uncond),
        texts.images,
    )


def _apply_adapters(tags: PromptTags, batch: Batch, tools: BatchTools) -> None:
    tools.events.stage(Stage.ADAPTERS)
    tools.recorder.adapters(tools.passing.in_use.apply_adapters(tags), batch.texts)


def _enlarge(
    image: Image.Image,
    name: str,
    size_px: tuple[int, int],
    request: GenerationRequest,
    engine: Engine,
    in_use: ModelInUse,
    events: Events,
) -> Image.Image:
    """An image in another size (width, height) by an upscaler on pixels."""
    if name in PIXEL_UPSCALERS:
        return upscale_image(image, name, *size_px)

    def on_tile(index: int, count: int) -> None:
        events.check()
        events.stage(Stage.ENLARGE, (Part(PartOf.TILE, index, count),))

    return engine.upscalers.enlarge(image, name, size_px, request.settings, on_tile, in_use.upscaling)
