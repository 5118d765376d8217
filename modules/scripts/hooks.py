"""Scripts and callbacks of extensions at the moments of a job: implements `modules.processing.request.hooks.Hooks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from PIL import Image

from modules.errors import FeatherweightError
from modules.processing.request.hooks import (
    BatchDraft,
    Denoised,
    DenoiserInputs,
    ExtraNoise,
    FileToSave,
    Grid,
    GuidanceHooks,
    MaskBlend,
    MaskedStart,
    Overlay,
    PassStart,
)
from modules.processing.request.request import GenerationRequest
from modules.scripts.acting import Acting, acting
from modules.scripts.callbacks import (
    AfterCFGCallbackParams,
    Callbacks,
    CFGDenoisedParams,
    CFGDenoiserParams,
    ExtraNoiseParams,
    ImageGridLoopParams,
    ImageSaveParams,
    Moment,
)
from modules.scripts.foreign import PLAIN, ForeignLoading
from modules.scripts.job import ImageJob, Job
from modules.scripts.library import default_args
from modules.scripts.script import (
    MaskBlendArgs,
    PostprocessBatchListArgs,
    PostprocessImageArgs,
    PostProcessMaskOverlayArgs,
    PostSampleArgs,
    Script,
)

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.autoencoders.separate_tiles import SeparateTiles
    from modules.processing.request.model_use import ModelUse
    from modules.sampling.types import StepInfo

FIRST_HOOKS = ("setup", "before_process", "process", "on_model")
"""Those that may say that the job cannot be made: before anything is computed, or before a pass is."""


class ScriptRunner:
    """All who take part in one job: always-on scripts with their arguments, and callbacks. One that fails is left out
    of the rest of the job, with a notice. A script of the user's that the request does not name gets the defaults of
    its controls."""

    def __init__(
        self,
        scripts: list[Script],
        callbacks: Callbacks,
        request: GenerationRequest,
        foreign: ForeignLoading = PLAIN,
    ) -> None:
        given = {title.lower(): args for title, args in request.alwayson_args.items()}
        self._scripts: dict[str, tuple[Script, Sequence[Any] | None]] = {
            script.title(): (script, given.get(script.title().lower())) for script in scripts
        }
        self._callbacks = callbacks
        self.foreign = foreign
        self._faulty: set[int] = set()
        self._working: list[str] = []  # those in one of their hooks
        self._jobs: list[Job] = []  # those that are made now, the innermost last
        self.notices: list[str] = []
        self.seconds: dict[str, float] = {}  # what the hooks of an extension took, by its name

    @contextmanager
    def making(self, job: Job) -> Iterator[None]:
        """While open, the images of this job are made, perhaps inside of another's."""
        self._jobs.append(job)
        try:
            yield
        finally:
            self._jobs.pop()

    def call(self, hook: str, p: Any, *objects: Any, **facts: Any) -> None:
        """Call a hook of all scripts: `hook(p, *objects, *args, **facts)`. Before anything is computed an error of the
        program's own ends the job with its sentence: the user asked for something that cannot be made. A script does
        not take part in what it makes in its own hooks."""
        for title, (script, given) in list(self._scripts.items()):
            if getattr(type(script), hook) is getattr(Script, hook) or title in self._working:
                continue
            if (self._working and not script.takes_part_inside) or not self._is_wanted(script):
                continue
            method: Callable[..., None] = getattr(script, hook)
            self._working.append(title)
            began = time.perf_counter()
            try:
                args = self._args_of(script, given)
                with acting(script.acting):
                    method(p, *objects, *args, **facts)
            except FeatherweightError as error:
                if hook in FIRST_HOOKS:
                    raise
                self._leave_out(script, hook, error)
            except (Exception, SystemExit) as error:  # somebody else's code must not cost the image
                self._leave_out(script, hook, error)
            finally:
                self._working.pop()
                self._count(script.acting, time.perf_counter() - began)

    def _is_wanted(self, script: Script) -> bool:
        """Whether a script takes part in the innermost job: one that a script built takes part as far as its `scripts`
        says."""
        return not self._jobs or self._jobs[-1].takes_script(script)

    def _args_of(self, script: Script, given: Sequence[Any] | None) -> Sequence[Any]:
        changed = self._jobs[-1].changed_args(script) if self._jobs else None
        if changed is not None:
            return changed
        if given is None and script.is_foreign:
            given = default_args(script)
            self._scripts[script.title()] = (script, given)
        return given or ()

    def all_args(self) -> list[tuple[Script, Sequence[Any]]]:
        """Every script with its arguments; one whose controls cannot be built has none."""
        found: list[tuple[Script, Sequence[Any]]] = []
        for script, given in list(self._scripts.values()):
            try:
                found.append((script, self._args_of(script, given)))
            except (Exception, SystemExit) as error:  # somebody else's code
                self._leave_out(script, "ui", error)
        return found

    def _leave_out(self, script: Script, hook: str, error: BaseException) -> None:
        script.failed(hook, error)
        title = script.title()
        self.notices.append(f"The script {title!r} failed in {hook} ({error}) and was left out.")
        self._scripts.pop(title, None)  # a job inside of this one may have left it out already

    def _count(self, author: Acting | None, seconds: float) -> None:
        if author is not None:
            self.seconds[author.owner.name] = self.seconds.get(author.owner.name, 0.0) + seconds

    def tell(self, moment: Moment, params: Any) -> None:
        """Call the callbacks of a moment."""
        for entry in self._callbacks.at(moment):
            if id(entry) in self._faulty:
                continue
            began = time.perf_counter()
            try:
                self._callbacks.run(entry, params)
            except (Exception, SystemExit) as error:  # as above
                entry.failed(error)
                self.notices.append(f"The extension {entry.label} failed in {moment.value} ({error}), was left out.")
                self._faulty.add(id(entry))
            finally:
                self._count(entry.acting, time.perf_counter() - began)

    def overrides(self, *hooks: str) -> bool:
        """Whether a script has one of these hooks."""
        return any(
            getattr(type(script), hook) is not getattr(Script, hook)
            for script, _ in self._scripts.values()
            for hook in hooks
        )

    def may_listen(self, hook: str) -> bool:
        """Whether a script of the user's has this hook, in which it may register callbacks."""
        scripts = [script for script, _ in self._scripts.values() if script.is_foreign]
        return any(getattr(type(script), hook) is not getattr(Script, hook) for script in scripts)

    def listens(self, *moments: Moment) -> bool:
        """Whether there is a callback for one of these moments."""
        return any(self._callbacks.at(moment) for moment in moments)


class JobHooks:
    """The moments of one run, for the job `p`."""

    def __init__(self, script_runner: ScriptRunner, p: Job) -> None:
        self._script_runner = script_runner
        self._p = p
        self.wants_mask_blends = script_runner.overrides("on_mask_blend")
        self.wants_whole_batches = script_runner.overrides("postprocess_batch", "postprocess_batch_list")
        self._is_sampled = False  # the present batch, to its end

    @property
    def guidance(self) -> GuidanceHooks | None:
        """Asked for each pass, because extensions register callbacks in their hooks too, the last one included."""
        listens = self._script_runner.listens(Moment.CFG_DENOISER, Moment.CFG_DENOISED, Moment.CFG_AFTER_CFG)
        listens = listens or self._script_runner.may_listen("process_before_every_sampling")
        return _GuidanceCallbacks(self._script_runner, self._p) if listens else None

    @property
    def vae_tiles(self) -> SeparateTiles | None:
        return self._p.vae_tiles

    def before_batch(self, batch: BatchDraft) -> None:
        self._is_sampled = False
        self._take_lists(batch)
        p = self._p
        p.iteration = batch.number
        p.prompts, p.negative_prompts = batch.prompts, batch.negative_prompts
        p.seeds, p.subseeds = batch.seeds, batch.subseeds
        self._script_runner.call("before_process_batch", p, **_facts(batch))
        for mine, theirs in (
            (p.prompts, batch.prompts),
            (p.negative_prompts, batch.negative_prompts),
            (p.seeds, batch.seeds),
            (p.subseeds, batch.subseeds),
        ):
            _take(mine, theirs)
        size = len(batch.seeds)
        p.hr_prompts, p.hr_negative_prompts = p.hires_texts_of(slice(batch.number * size, (batch.number + 1) * size))
        self._take_hires(batch)

    def _take_hires(self, batch: BatchDraft) -> None:
        _take(self._p.hr_prompts, batch.hires_prompts)
        _take(self._p.hr_negative_prompts, batch.hires_negative_prompts)

    def adapters_active(self, batch: BatchDraft, adapters: Mapping[str, Any]) -> None:
        self._script_runner.call(
            "after_extra_networks_activate", self._p, **_facts(batch), extra_network_data=dict(adapters)
        )

    def batch(self, batch: BatchDraft) -> None:
        self._script_runner.call("process_batch", self._p, **_facts(batch))
        self._take_hires(batch)

    def before_hires(self) -> None:
        self._p.is_hr_pass = True
        self._script_runner.call("before_hr", self._p)

    def step(self, info: StepInfo) -> None:
        self._script_runner.foreign.step(self._p, info)

    def before_sampling(self, start: PassStart) -> None:
        self._p.is_hr_pass = start.is_hires
        facts = {"x": start.x, "noise": start.noise, "c": start.cond, "uc": start.uncond}
        self._script_runner.call("process_before_every_sampling", self._p, **facts)
        if self._p.before_sampling is not None:
            self._p.before_sampling(start)

    def on_model(self, use: ModelUse) -> None:
        self._p.is_hr_pass = use.facts.is_hires
        self._script_runner.call("on_model", self._p, use)

    def masked(self, start: MaskedStart) -> None:
        p = cast(ImageJob, self._p)
        p.init_latent, p.nmask, p.mask = start.latents, start.painted, 1.0 - start.painted
        count = len(start.latents) if start.overlays else 0
        p.overlay_images = [start.overlays[index % len(start.overlays)] for index in range(count)]
        p.mask_for_overlay = start.overlay_mask
        if start.area is not None:
            left, top, right, bottom = start.area
            p.paste_to = (left, top, right - left, bottom - top)

    def mask_blend(self, blend: MaskBlend) -> None:
        denoiser = None if blend.sigma is None else self  # only tells the last blend from the others
        args = MaskBlendArgs(
            blend.current, blend.painted, blend.initial, 1.0 - blend.painted, blend.blended, denoiser, blend.sigma
        )
        self._script_runner.call("on_mask_blend", self._p, args)
        blend.blended = args.blended_latent

    def extra_noise(self, noise: ExtraNoise) -> None:
        params = ExtraNoiseParams(noise.noise, noise.x, noise.xi)
        self._script_runner.tell(Moment.EXTRA_NOISE, params)
        noise.noise = params.noise

    def sampled(self, latents: Tensor) -> Tensor:
        self._is_sampled = True
        samples = PostSampleArgs(latents)
        self._script_runner.call("post_sample", self._p, samples)
        return samples.samples

    def decoded(self, batch: BatchDraft, images: list[Tensor]) -> list[Tensor]:
        import torch

        whole = torch.stack(images)
        self._script_runner.call("postprocess_batch", self._p, images=whole, **_facts(batch))
        result = PostprocessBatchListArgs(list(whole))
        self._script_runner.call("postprocess_batch_list", self._p, result, **_facts(batch))
        return result.images

    def image(self, image: Image.Image, index: int) -> Image.Image:
        args = PostprocessImageArgs(image, index, self._is_sampled)
        self._p.batch_index = index
        self._script_runner.call("postprocess_image", self._p, args)
        return args.image

    def overlay(self, overlay: Overlay) -> None:
        """A script may also have replaced the overlays at the job."""
        own = cast(ImageJob, self._p).overlay_images
        image = own[overlay.index % len(own)] if own and overlay.image is not None else overlay.image
        args = PostProcessMaskOverlayArgs(overlay.index, overlay.mask, image)
        self._script_runner.call("postprocess_maskoverlay", self._p, args)
        overlay.mask, overlay.image = args.mask_for_overlay, args.overlay_image

    def composited(self, image: Image.Image, index: int) -> Image.Image:
        args = PostprocessImageArgs(image, index, self._is_sampled)
        self._script_runner.call("postprocess_image_after_composite", self._p, args)
        return args.image

    def extra_params(self) -> Mapping[str, Any]:
        return self._p.extra_generation_params

    def before_saving(self, file: FileToSave) -> None:
        params = ImageSaveParams(file.image, self._p, "", file.infos)
        self._script_runner.tell(Moment.BEFORE_IMAGE_SAVED, params)
        file.image, file.infos = params.image, {str(key): str(value) for key, value in params.pnginfo.items()}

    def saved(self, file: FileToSave) -> None:
        self._script_runner.tell(Moment.IMAGE_SAVED, ImageSaveParams(file.image, self._p, str(file.path), file.infos))

    def sheet(self, sheet: Grid) -> None:
        columns = -(-len(sheet.images) // sheet.rows)
        params = ImageGridLoopParams(sheet.images, columns, sheet.rows)
        self._script_runner.tell(Moment.IMAGE_GRID, params)
        sheet.images = list(params.imgs)
        if params.rows != sheet.rows or params.cols != columns:
            sheet.rows = max(1, min(params.rows, len(sheet.images)))

    def _take_lists(self, batch: BatchDraft) -> None:
        """Prompts and seeds that `process` wrote into `p.all_prompts` and the like, one for each image of the job."""
        size = len(batch.seeds)
        part = slice(batch.number * size, (batch.number + 1) * size)
        lists: tuple[list[Any], ...] = (batch.prompts, batch.negative_prompts, batch.seeds, batch.subseeds)
        for mine, theirs in zip(self._p.changed_lists(), lists, strict=True):
            if mine is not None:
                _take(mine[part], theirs)


@dataclass
class Denoiser:
    """What `params.denoiser` of `on_cfg_denoiser` offers: the job, and how far its pass is."""

    p: Job
    steps: int
    step: int = 0
    total_steps: int = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"params.denoiser.{name} is not supported here: a denoiser offers p, step, steps and total_steps; the "
            "tensors are attributes of params."
        )


class _GuidanceCallbacks:
    """The callbacks at every evaluation."""

    def __init__(self, script_runner: ScriptRunner, p: Job) -> None:
        self._script_runner = script_runner
        self._denoiser = Denoiser(p, p.steps)

    @property
    def needs_uncond(self) -> bool:
        """What came out of a call is told with its negative half; the other moments have no use for it."""
        return self._script_runner.listens(Moment.CFG_DENOISED)

    def before_denoiser(self, inputs: DenoiserInputs) -> None:
        self._denoiser.step, self._denoiser.total_steps = inputs.step, inputs.total_steps
        params = CFGDenoiserParams(
            x=inputs.x,
            image_cond=inputs.image,
            sigma=inputs.sigma,
            sampling_step=inputs.step,
            total_sampling_steps=inputs.total_steps,
            text_cond=inputs.text_cond,
            text_uncond=inputs.text_uncond,
            denoiser=self._denoiser,
            vector=inputs.vector,
            extra=inputs.extra,
        )
        self._script_runner.tell(Moment.CFG_DENOISER, params)
        inputs.x, inputs.sigma, inputs.image, inputs.vector = params.x, params.sigma, params.image_cond, params.vector
        inputs.text_cond, inputs.text_uncond = params.text_cond, params.text_uncond

    def after_denoiser(self, outputs: Denoised) -> None:
        params = CFGDenoisedParams(outputs.x, outputs.step, outputs.total_steps)
        self._script_runner.tell(Moment.CFG_DENOISED, params)
        outputs.x = params.x

    def after_guidance(self, outputs: Denoised) -> None:
        params = AfterCFGCallbackParams(outputs.x, outputs.step, outputs.total_steps)
        self._script_runner.tell(Moment.CFG_AFTER_CFG, params)
        outputs.x = params.x


def _take(mine: Sequence[Any], theirs: list[Any]) -> None:
    """Take over what a script wrote, if there is an entry for each image."""
    if len(mine) == len(theirs):
        theirs[:] = mine


def _facts(batch: BatchDraft) -> dict[str, Any]:
    return {
        "batch_number": batch.number,
        "prompts": batch.prompts,
        "seeds": batch.seeds,
        "subseeds": batch.subseeds,
    }
