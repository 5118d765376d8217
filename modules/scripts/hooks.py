"""Scripts and callbacks of extensions at the moments of a job: implements `modules.processing.request.hooks.Hooks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from PIL import Image

from modules.errors import FeatherweightError
from modules.processing.request.hooks import (
    BatchDraft,
    ExtraNoise,
    FileToSave,
    Grid,
    Hooks,
    MaskBlend,
    MaskedStart,
    Overlay,
    PassStart,
)
from modules.processing.request.request import GenerationRequest
from modules.scripts.acting import Acting, acting
from modules.scripts.callbacks import Callbacks, Moment
from modules.scripts.job import ImageJob, Job
from modules.scripts.library import LeftOutError, default_args
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

    from modules.processing.request.model_use import ModelUse
    from modules.sampling.types import StepInfo

FIRST_HOOKS = ("setup", "before_process", "process", "on_model")
"""Those that may say that the job cannot be made: before anything is computed, or before a pass is."""


class ScriptRunner:
    """All who take part in one job: always-on scripts with their arguments, and callbacks. One that fails is left out
    of the rest of the job, with a notice. A user script that the request does not name gets the defaults of
    its controls."""

    def __init__(
        self,
        scripts: list[Script],
        callbacks: Callbacks,
        request: GenerationRequest,
    ) -> None:
        given = {title.lower(): args for title, args in request.alwayson_args.items()}
        self._scripts: dict[str, tuple[Script, Sequence[Any] | None]] = {
            script.title(): (script, given.get(script.title().lower())) for script in scripts
        }
        self._callbacks = callbacks
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
            except LeftOutError:
                self._scripts.pop(title, None)  # its faults say why
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
            except LeftOutError:
                self._scripts.pop(script.title(), None)
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
        """Whether a user script has this hook, in which it may register callbacks."""
        scripts = [script for script, _ in self._scripts.values() if script.is_foreign]
        return any(getattr(type(script), hook) is not getattr(Script, hook) for script in scripts)

    def listens(self, *moments: Moment) -> bool:
        """Whether there is a callback for one of these moments."""
        return any(self._callbacks.at(moment) for moment in moments)


class JobHooks(Hooks):
    """The moments of one run, for the job `p`: hooks of scripts, then callbacks (`others`)."""

    def __init__(self, script_runner: ScriptRunner, p: Job, others: Hooks) -> None:
        self._script_runner = script_runner
        self._p = p
        self._others = others
        self.vae_tiles = p.vae_tiles
        self.wants_mask_blends = script_runner.overrides("on_mask_blend")
        self.wants_whole_batches = script_runner.overrides("postprocess_batch", "postprocess_batch_list")
        self._is_sampled = False  # the present batch, to its end

    @property
    def reads_uncond(self) -> bool:
        return self._others.reads_uncond

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
        self._others.step(info)

    def before_sampling(self, start: PassStart) -> None:
        self._p.is_hr_pass = start.is_hires
        facts = {"x": start.x, "noise": start.noise, "c": start.cond, "uc": start.uncond}
        self._script_runner.call("process_before_every_sampling", self._p, **facts)
        if self._p.before_sampling is not None:
            self._p.before_sampling(start)

    def on_model(self, use: ModelUse) -> None:
        self._p.is_hr_pass = use.facts.is_hires
        self._script_runner.call("on_model", self._p, use)
        self._others.on_model(use)

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
        self._others.extra_noise(noise)

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
        self._others.before_saving(file)

    def saved(self, file: FileToSave) -> None:
        self._others.saved(file)

    def sheet(self, sheet: Grid) -> None:
        self._others.sheet(sheet)

    def _take_lists(self, batch: BatchDraft) -> None:
        """Prompts and seeds that `process` wrote into `p.all_prompts` and the like, one for each image of the job."""
        size = len(batch.seeds)
        part = slice(batch.number * size, (batch.number + 1) * size)
        lists: tuple[list[Any], ...] = (batch.prompts, batch.negative_prompts, batch.seeds, batch.subseeds)
        for mine, theirs in zip(self._p.changed_lists(), lists, strict=True):
            if mine is not None:
                _take(mine[part], theirs)


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
