"""txt2img, from a request to a result: encode, sample, perhaps sample again larger, decode, save."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

import torch
from PIL import Image
from torch import Tensor

from modules.adapters.applying import Retention
from modules.errors import Interrupted, Skipped
from modules.images.grid import fits_grid, grid_rows, image_grid
from modules.memory.timeline import MemoryTimeline
from modules.models.loaded import LoadedModel
from modules.models.reading.catalogue import CheckpointInfo
from modules.processing.engine.chosen_checkpoint import wanted_checkpoint
from modules.processing.engine.engine import Engine
from modules.processing.engine.lease import ModelInUse
from modules.processing.engine.tag_types import ActiveAdapters
from modules.processing.pipeline.conditioning import Conditioner, EncodedPrompts
from modules.processing.pipeline.events import Events
from modules.processing.pipeline.guidance import GuidedDenoiser, RefinerSwitch, Used
from modules.processing.pipeline.hires_pass import HiresPass
from modules.processing.pipeline.hires_size import old_first_pass_size
from modules.processing.pipeline.hooks import NO_HOOKS, Batch, Grid, Hooks, PassStart
from modules.processing.pipeline.pixels import to_images
from modules.processing.pipeline.previews import Previews
from modules.processing.pipeline.refiner import SwitchCondition, refiner_fields, refines
from modules.processing.pipeline.sampling_pass import (
    PassSettings,
    build_guidance,
    first_run,
    guided_denoiser,
    image_noise,
    noise_schedule,
)
from modules.processing.pipeline.texts import PromptText, prepare_text
from modules.processing.pipeline.upscaling import PIXEL_UPSCALERS, check_upscaler, upscale_image
from modules.processing.pipeline.watching import Watched
from modules.processing.record.describe import Facts, extra_fields, infotext, main_fields, schedule_label
from modules.processing.record.output import Output, name_context
from modules.processing.record.result import GeneratedImage, GenerationInfo, ImageRole, Result
from modules.processing.request import GenerationRequest
from modules.prompting.extra_networks import PromptTags
from modules.sampling.catalog import SAMPLERS
from modules.sampling.types import StepInfo
from modules.version import PROGRAM_VERSION


def txt2img(
    request: GenerationRequest, engine: Engine, output: Output, events: Events, hooks: Hooks = NO_HOOKS
) -> Result:
    """Make the images of a request. Holds the engine's lock throughout. `hooks` take part.

    Seeds must be fixed (not -1). An interrupt ends the job with the images that are finished; any other
    `FeatherweightError` is raised.
    """
    assert request.seed >= 0 and request.subseed >= 0, "seeds are fixed when a job is submitted"
    request = _with_old_hires_sizes(request)
    if request.hires is not None:
        check_upscaler(request.hires.upscaler, engine.upscalers.catalogue.names)
    with engine.lock, torch.inference_mode(), MemoryTimeline(engine.machine.device) as timeline:
        events = Watched(events, timeline)
        events.phase("loading model")
        began = time.monotonic()
        wanted = wanted_checkpoint(request, engine.catalogue)
        with ModelInUse(request, engine) as in_use:
            in_use.use(wanted.name)
            job = _Job(request, engine, in_use, wanted.name, output, events, hooks, timeline=timeline)
            job.notices += [wanted.notice] if wanted.notice else []
            job.timings["load"] = time.monotonic() - began
            return job.run()


def _with_old_hires_sizes(request: GenerationRequest) -> GenerationRequest:
    """Under "use width/height sliders to set final resolution" the first pass gets a size of its own."""
    hires = request.hires
    if hires is None or not request.settings.flag("use_old_hires_fix_width_height"):
        return request
    width, height = old_first_pass_size(request.width, request.height)
    final = replace(hires, resize_width=request.width, resize_height=request.height)
    return replace(request, width=width, height=height, hires=final)


@dataclass
class _Job:
    """The state of one run; lives as long as the function above."""

    request: GenerationRequest
    engine: Engine
    in_use: ModelInUse
    wanted: str | None  # the checkpoint that each batch begins with
    output: Output
    events: Events
    timeline: MemoryTimeline = field(kw_only=True)
    hooks: Hooks = NO_HOOKS
    batches: dict[int, Batch] = field(default_factory=dict)  # by number: those that have begun
    encoded_texts: list[str] = field(default_factory=list)  # of the batch that runs
    began: datetime = field(default_factory=lambda: datetime.now().astimezone())
    timings: dict[str, float] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    images: list[GeneratedImage] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    steps_before: int = 0  # finished by earlier batches and passes
    pass_steps: int = 0  # of the pass that runs now
    unfinished: Tensor | None = None  # what the present batch would be if it stopped now, [B,C,h,w]
    interrupted: bool = False
    retention: Retention | None = None
    added_tags: str = ""  # networks from the settings, as they would be typed
    titled: dict[str, CheckpointInfo] = field(default_factory=dict)  # named in the infotext, by field

    @property
    def model(self) -> LoadedModel:
        """The one that computes now; a refiner's from its turn on, until the next batch."""
        return self.in_use.model

    @property
    def conditioner(self) -> Conditioner:
        """The prompt encoder of that model."""
        return self.in_use.conditioner

    def run(self) -> Result:
        """All batches, then the grid."""
        request = self.request
        self.facts.extra |= request.extra_params
        self.previews = Previews(request.settings, self.engine.tiny_vaes)
        self.prompt = prepare_text(request.prompt, request.settings)
        self.negative = prepare_text(request.negative_prompt, request.settings, with_tags=False)
        self.plan = PassSettings(
            sampler=SAMPLERS.get(request.sampler),
            scheduler=request.scheduler,
            steps=request.steps,
            cfg_scale=request.cfg_scale,
            settings=request.settings,
            is_sdxl=self.model.family.is_large,
        )
        self.schedule = noise_schedule(self.model, request.settings)
        self.hires = HiresPass.of(request, self.schedule, self.plan.is_sdxl) if request.hires else None
        first = first_run(self.plan, self.schedule)
        second_steps = self.hires.steps if self.hires else 0
        self.events.plan((len(first.sigmas) - 1 + second_steps) * request.batch_count)
        for batch in range(request.batch_count):
            try:
                self.events.check()
                self._batch(batch)
            except Skipped:
                self.notices.append(f"Batch {batch + 1} was skipped.")
            except Interrupted:
                self.interrupted = True
                break
            self.steps_before = (batch + 1) * (len(first.sigmas) - 1 + second_steps)
        self._add_grid()
        return self._result()

    # -- one batch ---------------------------------------------------------------------------------------------------

    def _batch(self, batch: int) -> None:
        self.in_use.use(self.wanted)
        self.batches[batch] = facts = self._new_batch(batch)
        self.hooks.before_batch(facts)
        self.unfinished = None
        try:
            latents = self.hooks.sampled(self._sample(facts))
        except (Interrupted, Skipped):
            self._keep_unfinished(batch)
            raise
        self.events.phase("decoding")
        began = time.monotonic()
        decoded = self._decoded(latents)
        if self.hooks.wants_whole_batches:
            unit = [((image[0].float() + 1.0) / 2.0).clamp(0.0, 1.0) for image in decoded]
            decoded = (image[None] * 2.0 - 1.0 for image in self.hooks.decoded(facts, unit))
        for index, image in enumerate(decoded):
            self._finish(image, batch, index)
        self._count_time("decode", began)

    def _keep_unfinished(self, batch: int) -> None:
        """The images of a batch that was stopped, as far as they were; saved only where a setting says so."""
        latents = self.unfinished
        for index in range(0 if latents is None else latents.shape[0]):
            assert latents is not None
            self._finish(self.model.decode(latents[index : index + 1]), batch, index, is_finished=False)

    def _decoded(self, latents: Tensor) -> Iterator[Tensor]:
        """The images [1,3,H,W] of latents, one after the other, each decoded when it is asked for."""
        for index in range(latents.shape[0]):
            self.events.check()
            self.events.phase("decoding")  # and what the image before has left goes back to the system
            yield self.model.decode(latents[index : index + 1])

    def _new_batch(self, batch: int) -> Batch:
        request = self.request
        count = request.batch_size
        return Batch(batch, [request.prompt] * count, [request.negative_prompt] * count, *self._seeds(batch))

    def _sample(self, facts: Batch) -> Tensor:
        """The clean latents of a batch, [B,C,h,w]."""
        request, settings = self.request, self.request.settings
        batch = facts.number
        prompts = [self._prepared(text) for text in facts.prompts]
        negatives = [self._prepared_negative(text) for text in facts.negative_prompts]
        self.encoded_texts = [text.encoded for text in (*prompts, *negatives)]
        self._activate_adapters(prompts[0].tags)
        self.hooks.adapters_active(facts, prompts[0].tags)
        self.hooks.batch(facts)
        began = time.monotonic()
        self.events.phase("encoding prompts")
        encoded = self._encode(prompts, negatives)
        self._count_time("encode", began)
        began = time.monotonic()
        width, height = (side // self.model.downscale for side in request.size_px)
        seeds, subseeds = self._seeds(batch)
        noise = image_noise(
            (self.model.latent_channels, height, width),
            seeds,
            subseeds,
            request.subseed_strength,
            self._seed_resize(),
            self.plan.sampler,
            settings,
            self.model.device,
        )
        sampling_run = first_run(self.plan, self.schedule)
        guidance = build_guidance(
            self.plan,
            guided_denoiser(self.plan, self.model, self.schedule, encoded, (height, width)),
            self.events.check,
            self.model.plan.check_nan,
            self.hooks.guidance,
            self._refiner(self.plan, (height, width), lambda: self._encode(prompts, negatives)),
        )
        first = noise.first()
        self.hooks.before_sampling(PassStart(first, first, encoded.prompts, encoded.negatives))
        self.pass_steps = len(sampling_run.sigmas) - 1
        self.events.phase("sampling")
        with self.in_use.merging_tokens(settings.number("token_merging_ratio")):
            latents = sampling_run.run(
                guidance,
                sampling_run.start(first),
                sampling_run.step_noise(noise, per_image=not settings.flag("no_dpmpp_sde_batch_determinism")),
                self._on_step,
            )
        self.facts.used |= guidance.used
        self.events.step(self.steps_before + self.pass_steps)
        if self.hires is not None:
            latents = self._second_pass(self.hires, latents, facts)
        self._count_time("sample", began)
        return latents

    def _second_pass(self, hires: HiresPass, latents: Tensor, facts: Batch) -> Tensor:
        settings, batch = self.request.settings, facts.number
        self.hooks.before_hires()
        if settings.flag("save_images_before_highres_fix") and self.request.save_images:
            self._save_before_hires(latents, batch)
        first_steps = self.pass_steps
        self.steps_before += first_steps
        self.pass_steps = hires.steps
        seeds, subseeds = self._seeds(batch)
        enlarged = hires.enlarged(self.model, latents, self._enlarge)
        if hires.hires.checkpoint:
            self.in_use.use(hires.hires.checkpoint)
            self.titled["Hires checkpoint"] = self.model.info
            self.facts.extra["Hires checkpoint"] = self.model.info.short_title
            self._activate_adapters(self._prepared(facts.prompts[0]).tags)
        encoded = self._encode_hires(hires, facts)
        self.events.phase("sampling larger")
        height, width = (side // self.model.downscale for side in reversed(hires.size.target))
        latents, used = hires.run(
            self.model,
            enlarged,
            encoded,
            (seeds, subseeds, self._seed_resize()),
            self.events.check,
            self._on_step,
            self.model.plan.check_nan,
            self.hooks,
            self._refiner(hires.plan, (height, width), lambda: self._encode_hires(hires, facts), is_hires=True),
            self.in_use.merging_tokens,
        )
        self.facts.used |= used
        self.steps_before -= first_steps
        return latents

    def _encode(self, prompts: Sequence[PromptText], negatives: Sequence[PromptText]) -> EncodedPrompts:
        """A batch's texts for the first pass, by the model in use."""
        return self.conditioner.encode(
            [text.encoded for text in prompts],
            [text.encoded for text in negatives],
            self.plan.model_calls,
            self.request.settings,
            self.request.size_px,
        )

    def _refiner(
        self, plan: PassSettings, latents: tuple[int, int], encode: Callable[[], EncodedPrompts], is_hires: bool = False
    ) -> RefinerSwitch | None:
        """The refiner of a pass, where one was asked for that is not the model itself. It gets no networks."""
        request, settings = self.request, self.request.settings
        if request.refiner_checkpoint is None or not refines(request, is_hires):
            return None
        by_steps = settings.flag("refiner_switch_by_sample_steps")
        turn = SwitchCondition(request.refiner_switch_at, by_steps, self.schedule)
        info = self.engine.catalogue.get(request.refiner_checkpoint)
        if info.path == self.model.info.path:
            return None

        def make() -> GuidedDenoiser:
            self.events.phase("loading the refiner")
            began = time.monotonic()
            self.in_use.use(request.refiner_checkpoint)
            self._activate_adapters({})
            self._count_time("load", began)
            self.titled["Refiner"] = self.model.info
            self.facts.extra |= refiner_fields(request, self.model.info.short_title)
            self.events.phase("refining")
            return guided_denoiser(plan, self.model, noise_schedule(self.model, settings), encode(), latents)

        return RefinerSwitch(turn.should_switch, make)

    def _encode_hires(self, hires: HiresPass, facts: Batch) -> EncodedPrompts:
        """Put the second pass's networks on the model and encode its prompts, by a setting the other way round."""
        settings = self.request.settings
        wanted = (facts.prompts, facts.negative_prompts), self.plan.model_calls
        early = None
        if settings.flag("hires_fix_use_firstpass_conds"):
            early = hires.encode(self.conditioner, *wanted)
        if hires.hires.prompt:
            self._activate_adapters(prepare_text(hires.hires.prompt, settings).tags)
        return early or hires.encode(self.conditioner, *wanted)

    def _enlarge(self, image: Image.Image, name: str, size_px: tuple[int, int]) -> Image.Image:
        """Between the passes, by an upscaler on pixels."""
        if name in PIXEL_UPSCALERS:
            return upscale_image(image, name, *size_px)

        def on_tile(index: int, count: int) -> None:
            self.events.check()
            self.events.phase(f"enlarging, tile {index + 1} of {count}")

        began = time.monotonic()
        settings, limits = self.request.settings, self.in_use.upscaling
        image = self.engine.upscalers.enlarge(image, name, size_px, settings, on_tile, limits)
        self._count_time("enlarge", began)
        self.events.phase("sampling larger")
        return image

    def _on_step(self, info: StepInfo) -> None:
        done = self.steps_before + min(info.index + 1, self.pass_steps)
        self.unfinished = info.denoised
        self.events.step(done)
        self.events.latent(info)
        if self.events.wants_preview(done):
            shown = info.denoised if self.request.settings.flag("show_progress_grid") else info.denoised[:1]
            image = self.previews.image(self.model, shown)
            if image is not None:
                self.events.preview(image)

    def _finish(self, decoded: Tensor, batch: int, index: int, is_finished: bool = True) -> None:
        """Pixels, infotext, file."""
        with self.timeline.during("save"):
            self._keep(decoded, batch, index, is_finished)

    def _keep(self, decoded: Tensor, batch: int, index: int, is_finished: bool) -> None:
        (image,) = self.model.recovery.run("save", lambda: to_images(decoded))
        image = self.hooks.image(image, index)
        generated = replace(self._image(image, batch, index), is_finished=is_finished)
        settings = self.request.settings
        is_wanted = is_finished or settings.flag("save_incomplete_images")
        if is_wanted and self.request.save_images and settings.flag("samples_save"):
            generated = self._save(generated, batch, index)
        self.images.append(generated)
        self.events.finished_image(generated)

    # -- facts and files ---------------------------------------------------------------------------------------------

    def _seeds(self, batch: int) -> tuple[list[int], list[int]]:
        """Seeds count up over the whole job; with a variation strength only the variation seeds do."""
        if batch in self.batches:
            return self.batches[batch].seeds, self.batches[batch].subseeds
        request = self.request
        numbers = range(batch * request.batch_size, (batch + 1) * request.batch_size)
        fixed = request.subseed_strength > 0
        return [request.seed + (0 if fixed else i) for i in numbers], [request.subseed + i for i in numbers]

    def _all_seeds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pairs = [self._seeds(batch) for batch in range(self.request.batch_count)]
        return tuple(s for seeds, _ in pairs for s in seeds), tuple(s for _, subseeds in pairs for s in subseeds)

    def _seed_resize(self) -> tuple[int, int] | None:
        """(height, width) in latent units of the image whose composition is wanted back."""
        width, height = self.request.seed_resize_from_width, self.request.seed_resize_from_height
        if width <= 0 or height <= 0:
            return None
        return height // self.model.downscale, width // self.model.downscale

    def _image(self, image: Image.Image, batch: int, index: int) -> GeneratedImage:
        """An image with its infotext; where hooks made more images than there were seeds, those begin again."""
        facts = self.batches[batch]
        index %= len(facts.seeds)
        seed, subseed = facts.seeds[index], facts.subseeds[index]
        self.facts.extra |= self.hooks.extra_params()
        prompt = self._prepared(facts.prompts[index]).shown + self.added_tags
        negative = self._prepared_negative(facts.negative_prompts[index]).shown
        self._take_hashes()
        model = self.model
        recovered = self.in_use.recovered
        if recovered:
            self.facts.extra["Memory recovery"] = recovered
        optional = model.family.recipe.extra_encoder
        if optional is not None and model.has_optional:
            self.facts.extra[optional.field] = True
        if self.in_use.has_merged_tokens:
            self.facts.used |= Used.MERGED_TOKENS
        size_px, used = self.request.size_px, self.facts.used
        main = main_fields(self.request, model.info, size_px, seed, subseed, model.plan, model.vae_info, used)
        extra = extra_fields(self.request, prompt, negative, self.facts)
        return GeneratedImage(image, infotext(prompt, negative, main, extra), seed, subseed)

    def _take_hashes(self) -> None:
        """Have the hashes of the models that took part. They are taken while the image is made; who needs them waits
        here, with the image in hand."""
        began = time.monotonic()
        if self.model.info.sha256 is None:
            self.events.phase("taking the checkpoint's hash")
            self.model.info = self.engine.hashed(self.model.info)
        if self.model.vae_info is not None:
            self.model.vae_info = self.engine.vaes.hashed(self.model.vae_info)
        for name, info in self.titled.items():
            self.facts.extra[name] = self.engine.hashed(info).short_title
        self._count_time("hash", began)

    def _prepared(self, text: str) -> PromptText:
        return self.prompt if text == self.request.prompt else prepare_text(text, self.request.settings)

    def _prepared_negative(self, text: str) -> PromptText:
        known = text == self.request.negative_prompt
        return self.negative if known else prepare_text(text, self.request.settings, with_tags=False)

    def _save(self, image: GeneratedImage, batch: int, index: int, suffix: str = "") -> GeneratedImage:
        info = self.model.info
        context = replace(
            name_context(self.request, info.model_name, info.shorthash or "", self._all_seeds()[0], self.began),
            seed=image.seed,
            batch_index=index,
            iteration=batch,
            vae_filename=self.model.vae_info.name.partition(".")[0] if self.model.vae_info else "",
        )
        image, problem = self.output.save(image, self.request, context, suffix, self.hooks)
        if problem and problem not in self.notices:
            self.notices.append(problem)
        return image

    def _save_before_hires(self, latents: Tensor, batch: int) -> None:
        for index in range(latents.shape[0]):
            (image,) = to_images(self.model.decode(latents[index : index + 1]))
            self._save(self._image(image, batch, index), batch, index, "-before-highres-fix")

    def _add_grid(self) -> None:
        """A grid of several samples, first in the list."""
        settings = self.request.settings
        images = [image.image for image in self.images]
        wanted = settings.flag("return_grid") or settings.flag("grid_save")
        if not self.request.save_grid or not wanted or not images:
            return
        if (len(images) < 2 and settings.flag("grid_only_if_multiple")) or not fits_grid(images, settings):
            return
        sheet = Grid(images, grid_rows(len(images), settings, self.request.batch_size))
        self.hooks.sheet(sheet)
        first = self.images[0]
        grid = GeneratedImage(
            image_grid(sheet.images, sheet.rows), first.infotext, first.seed, first.subseed, kind=ImageRole.GRID
        )
        if settings.flag("grid_save"):
            grid = self._save(grid, 0, 0)
        if settings.flag("return_grid"):
            self.images.insert(0, grid)

    def _activate_adapters(self, tags: PromptTags) -> None:
        """Put the networks of a prompt on the model; nothing happens if they are there already."""
        began = time.monotonic()
        self.events.phase("loading networks")
        active = self.model.recovery.run(
            "networks", lambda: self.engine.adapters.activate(self.model, tags, self.request.settings)
        )
        self.conditioner.adapters = active
        self.retention = active.retention
        self.added_tags = self.added_tags or active.added_tags  # a second pass may have its own tags
        self.facts.extra |= active.fields
        self._use_embeddings(active)
        self.notices += [notice for notice in active.notices if notice not in self.notices]
        self._count_time("networks", began)

    def _use_embeddings(self, active: ActiveAdapters) -> None:
        """Textual inversion: all embeddings that fit the model, and those that came with its networks."""
        adapters = self.engine.adapters
        adapters.embeddings.refresh()
        widths = self.model.text_widths
        bundled = {name: item for name, item in active.embeddings.items() if set(widths) <= set(item.vectors)}
        self.conditioner.use_embeddings({**adapters.embeddings.usable(widths), **bundled})
        if not self.request.settings.flag("textual_inversion_add_hashes_to_infotext"):
            return
        found = self.conditioner.embeddings_in(*self.encoded_texts)
        used = [item for item in found if not (item.bundled_in and item.name in active.unrecorded)]
        if used:
            self.facts.extra["TI hashes"] = ", ".join(f"{item.name}: {item.short_hash}" for item in used)

    def _count_time(self, what: str, began: float) -> None:
        self.timings[what] = self.timings.get(what, 0.0) + time.monotonic() - began

    def _result(self) -> Result:
        request, info, vae = self.request, self.model.info, self.model.vae_info
        width, height = request.size_px
        seeds, subseeds = self._all_seeds()
        batches = [self.batches.get(number) or self._new_batch(number) for number in range(request.batch_count)]
        extra = extra_fields(request, self.prompt.shown, self.negative.shown, self.facts)
        label = schedule_label(request.sampler, request.scheduler)
        memory = self.timeline.record()
        peak = memory.peak()
        return Result(
            images=tuple(self.images),
            info=GenerationInfo(
                prompts=tuple(
                    self._prepared(text).shown + self.added_tags for item in batches for text in item.prompts
                ),
                negative_prompts=tuple(
                    self._prepared_negative(text).shown for item in batches for text in item.negative_prompts
                ),
                seeds=seeds,
                subseeds=subseeds,
                subseed_strength=request.subseed_strength,
                width=width,
                height=height,
                sampler=self.plan.sampler.name,
                scheduler=label,
                cfg_scale=request.cfg_scale,
                steps=request.steps,
                batch_size=request.batch_size,
                checkpoint_name=info.model_name,
                checkpoint_hash=info.shorthash or "",
                vae_name=vae.name if vae else None,
                vae_hash=vae.shorthash if vae else None,
                seed_resize_from_width=request.seed_resize_from_width,
                seed_resize_from_height=request.seed_resize_from_height,
                denoising_strength=request.hires.denoising_strength if request.hires else None,
                extra_params={**({} if label == "Automatic" else {"Schedule type": label}), **extra},
                infotexts=tuple(image.infotext for image in self.images),
                styles=request.styles,
                job_timestamp=self.began.strftime("%Y%m%d%H%M%S"),
                clip_skip=request.settings.whole("CLIP_stop_at_last_layers"),
                version=PROGRAM_VERSION,
            ),
            notices=(*self.in_use.notices, *self.notices, *self.previews.notices),
            timings_s=self.timings,
            peak_memory_bytes=peak.rss if self.engine.machine.device.type == "cpu" else peak.allocated,
            memory=memory,
            interrupted=self.interrupted,
            adapter_retention=asdict(self.retention) if self.retention is not None else None,
        )
