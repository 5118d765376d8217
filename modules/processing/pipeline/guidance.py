"""Classifier-free guidance: from a model and a batch's conditionings to the one `Denoise` that samplers call.

Ho and Salimans 2022 (arXiv:2207.12598); several prompts joined by AND after Liu et al. 2022 (arXiv:2206.01714):
`uncond + cfg_scale * sum_i weight_i * (cond_i - uncond)`. A model that edits images is guided by the image as well
(Brooks et al. 2022, arXiv:2211.09800, section 3.2.1), with the image in both halves of that sum, and besides
`+ (image_cfg_scale - 1) * (uncond - neither)`, where `neither` is predicted without the image.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import NumericalError
from modules.models.families.denoiser_context import END, DenoiserContext, Extra
from modules.models.families.family import GuidanceType
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.request.model_use import (
    ConditionedDenoise,
    Denoised,
    DenoiserInputs,
    Guided,
    ModelCall,
    ModelUse,
)
from modules.processing.request.pass_settings import Used
from modules.prompting.conditioning import ComposedConditioning, Conditioning, ScheduledConditioning
from modules.prompting.padding import (
    CondPadding,
    pad_conditionings,
    pad_masked,
    stack_conditionings,
    stack_masks,
)
from modules.sampling.forecast import Forecast
from modules.sampling.step_cache import StepCache
from modules.sampling.types import Denoise

T = TypeVar("T")
NEARLY_EQUAL = 1e-4
"""The relative difference below which two noise levels are the same."""
# (x [N,C,h,w], timesteps [N], context of N rows) -> eps or v [N,C,h,w]
Predict = Callable[[Tensor, Tensor, DenoiserContext], Tensor]


class Recover(Protocol):
    """Gives the result of a call without side effects."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


def call_once(call: Callable[[], T], /) -> T:
    """The result; nothing is made again."""
    return call()


@dataclass(frozen=True)
class GuidedDenoiser:
    """A model with what it is to be given: one prompt and one negative prompt per image; `empty` gives the encoding
    [77,width] of the empty text, for padding; `image` [C,h,w] or one for each image [B,C,h,w] what an inpainting or
    editing model sees of the image; `image_cfg_scale` how strongly an editing model follows it (None: it is not guided
    by the image; its negative prompts are never left out); `level` what `GuidanceOptions.min_sigma_uncond` is compared
    with, of sigma [B] (None: sigma itself); `guidance` how the model is guided; `use` what was registered on the model
    for this pass; `recover` makes calls again for which memory did not last; `patch`: the sides, in latents, of what
    the model reads as one token; `reads_end`: whether the model receives the end of a step."""

    denoise: ConditionedDenoise
    prompts: Sequence[ComposedConditioning]
    negatives: Sequence[ScheduledConditioning]
    empty: Callable[[], Tensor]
    image: Tensor | None = None
    image_cfg_scale: float | None = None
    level: Callable[[Tensor], Tensor] | None = None
    guidance: GuidanceType = GuidanceType.CFG
    use: ModelUse = field(default_factory=ModelUse.unwatched)
    recover: Recover = call_once
    patch: int = 1
    reads_end: bool = False


@dataclass(frozen=True)
class RefinerSwitch:
    """Another model that takes over in the middle: `should_switch(call, total, sigma)` says when, `make`
    loads it; nothing here refers to the old one any longer then. `info`: its file, where that is known."""

    should_switch: Callable[[int, int, float], bool]
    make: Callable[[], GuidedDenoiser]
    info: CheckpointInfo | None = None


@dataclass(frozen=True, kw_only=True)
class GuidanceOptions:
    """When the negative prompt is left out, and how model calls are batched.

    At a `cfg_scale` of 1 it does not count and is left out of all steps, unless the sampler `needs_uncond` or a hook
    does; where nobody looks at it either, it is not even encoded. `distilled_cfg_scale` is for denoisers that take it
    as an input. `min_sigma_uncond` (NGMS): below this sigma every second step runs without it, or all with `all_steps`.
    `skip_early` is the fraction of model calls from the first that run without it. `sigmas`: those of the schedule, for
    models that receive the end of a step (empty: not known).
    """

    cfg_scale: float
    total_model_calls: int
    distilled_cfg_scale: float = 3.5
    needs_uncond: bool = False
    min_sigma_uncond: float = 0.0
    all_steps: bool = False
    skip_early: float = 0.0
    sigmas: tuple[float, ...] = ()
    batch_together: bool = True
    padding: CondPadding = CondPadding.NONE
    check_nan: bool = True


def _next_below(sigmas: Sequence[float], sigma: Tensor) -> Tensor:
    """The largest of `sigmas`, or 0, below each `sigma` [N]: where the step ends that it is in."""
    levels = torch.tensor(sorted({0.0, *sigmas}), device=sigma.device, dtype=sigma.dtype)
    return levels[(torch.searchsorted(levels, sigma * (1 - NEARLY_EQUAL)) - 1).clamp_min(0)]


class _Part(NamedTuple):
    """A part of the prompt of the image in `row`, joined to others by AND."""

    row: int
    weight: float
    conditioning: Conditioning


class Guidance:
    """A `GuidedDenoise` for one batch and one pass; counts its model calls, because prompts change with the step."""

    def __init__(
        self,
        denoiser: GuidedDenoiser,
        options: GuidanceOptions,
        before_model_call: Callable[[], None] = lambda: None,
        refiner_switch: RefinerSwitch | None = None,
        forecast: Forecast | StepCache | None = None,
    ) -> None:
        """`before_model_call` may raise to stop the job, `forecast` stands in for some of the calls."""
        self._options = options
        self._take(denoiser)
        self._before = before_model_call
        self._refiner_switch = refiner_switch
        self._forecast = forecast
        self._shown: tuple[object, ...] = ()  # the conditionings of the call before
        self._evaluation = 0
        self._uncond: Tensor | None = None
        self.used = Used.NOTHING

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
        self._before()
        self._switch(sigma)
        parts = [
            _Part(row, weight, conditioning)
            for row, prompt in enumerate(self._prompts)
            for conditioning, weight in prompt.at(self._evaluation)
        ]
        denoised = self._forecast_or(x, sigma, parts)
        self._evaluation += 1
        return denoised

    def _forecast_or(self, x: Tensor, sigma: Tensor, parts: Sequence[_Part]) -> Tensor:
        """Return the forecast for this step, or compute the step. Other prompts begin a new history."""
        if self._forecast is None:
            return self._step(x, sigma, parts)
        shown = (*(part.conditioning for part in parts), *self._negatives_now())
        if len(shown) != len(self._shown) or any(a is not b for a, b in zip(shown, self._shown, strict=True)):
            self._forecast.reset()
        self._shown = shown
        guess = self._forecast.denoised(self._evaluation, x, sigma)
        if guess is not None:
            self.used |= Used.FORECAST if isinstance(self._forecast, Forecast) else Used.STEP_CACHE
            return guess
        denoised = self._step(x, sigma, parts)
        self._forecast.take(x, sigma, denoised)
        return denoised

    def _step(self, x: Tensor, sigma: Tensor, parts: Sequence[_Part]) -> Tensor:
        """Compute a step: those who watch see and change what goes into the model, what comes out and the result."""
        inputs = self._recover(lambda: self._inputs(x, sigma, parts))
        for change in self._use.before_call:
            change(inputs)
        cond, uncond, cfg_scale = self._predict(inputs, sigma, parts)
        if self._use.after_call:
            both = self._shown_to(self._use.after_call, torch.cat([cond, uncond]))
            cond, uncond = both[: len(parts)], both[len(parts) :]
        count = len(self._prompts)
        self._uncond = uncond[-count:]
        denoised = self._guided(inputs, x, sigma, parts, (cond, uncond[:count]), cfg_scale)
        if self._image_cfg_scale is not None:
            denoised += (self._image_cfg_scale - 1.0) * (uncond[:count] - uncond[count:])
        return self._shown_to(self._use.after_step, denoised)

    def _predict(
        self, inputs: DenoiserInputs, sigma: Tensor, parts: Sequence[_Part]
    ) -> tuple[Tensor, Tensor, float | None]:
        """The predictions for parts of prompts and for negative prompts, and the scale of guidance; without negative
        prompts what stands for them, and no scale."""
        is_without = self._is_without_uncond
        if not is_without and not self._leaves_out_uncond(sigma[:1]):
            return (*self._evaluate_both(inputs, len(parts)), self._options.cfg_scale)
        cond = self._evaluate(inputs, slice(len(parts)), inputs.text_cond, inputs.mask_cond)
        count, rows = len(self._prompts), [part.row for part in parts]
        if is_without:
            return cond, _prompts_only(cond, parts, count), None
        return cond, torch.stack([cond[rows.index(row)] for row in range(count)]), None

    def _guided(
        self,
        inputs: DenoiserInputs,
        x: Tensor,
        sigma: Tensor,
        parts: Sequence[_Part],
        predicted: tuple[Tensor, Tensor],
        scale: float | None,
    ) -> Tensor:
        """Combine the predictions for prompts and negative prompts, by whoever guides or else as CFG does."""
        cond, uncond = predicted
        cfg_scale = 1.0 if scale is None else scale
        if self._use.guides:
            whole, another = _combine(cond, uncond, parts, 1.0), self._another(inputs, parts)
            step, total = self._evaluation, self._options.total_model_calls
            has_uncond = scale is not None
            return self._use.guided(
                Guided(x, sigma, whole, uncond, cfg_scale, step, total, another, has_uncond, rescale=self._rescale)
            )
        denoised = self._recover(partial(_combine, cond, uncond, parts, cfg_scale))
        if self._rescale is None or cfg_scale == 1.0:
            return denoised
        return self._rescale(x, _combine(cond, uncond, parts, 1.0), denoised)

    def uncond_denoised(self) -> Tensor:
        """Return what the last model call predicted for the negative prompt, [B,C,h,w]."""
        assert self._uncond is not None, "uncond_denoised before the first model call"
        return self._uncond

    def _take(self, denoiser: GuidedDenoiser) -> None:
        assert len(denoiser.prompts) == len(denoiser.negatives)
        self._use = denoiser.use
        self._denoise: ConditionedDenoise | None = self._use.around(denoiser.denoise)
        self._prompts = denoiser.prompts
        self._negatives = denoiser.negatives
        self._empty = denoiser.empty
        self._image = denoiser.image
        self._image_cfg_scale = denoiser.image_cfg_scale
        self._level = denoiser.level
        self._guidance, self._reads_end = denoiser.guidance, denoiser.reads_end
        is_rescaled = denoiser.guidance is GuidanceType.CFG_RESCALED
        self._rescale = partial(_rescaled, denoiser.patch) if is_rescaled else None
        self._recover = denoiser.recover
        if self._negatives and self._reads_negatives:
            self._negatives[0]  # encoded now, where they were not before, and not in the middle of a step

    def _switch(self, sigma: Tensor) -> None:
        """Let another model take over, if its time has come."""
        refiner_switch = self._refiner_switch
        total = self._options.total_model_calls
        if refiner_switch is None or not refiner_switch.should_switch(self._evaluation, total, float(sigma.max())):
            return
        self._refiner_switch = self._denoise = self._image = None
        self._use = ModelUse.unwatched()
        self._prompts = self._negatives = ()
        self._recover = call_once  # the old model's holds on to it
        self._take(refiner_switch.make())
        if self._forecast is not None:
            self._forecast.reset()

    @property
    def _is_without_uncond(self) -> bool:
        """Whether no step of this pass has a negative prompt, because it would not count."""
        if self._guidance is GuidanceType.NONE:
            return True
        if self._options.cfg_scale != 1.0 or self._options.needs_uncond or self._image_cfg_scale is not None:
            return False
        return not self._use.needs_uncond

    @property
    def _reads_negatives(self) -> bool:
        """Whether the negative prompts count in some step of this pass, or somebody may look at them."""
        return self._use.reads_uncond or self._use.guides or not self._is_without_uncond

    def _negatives_now(self) -> list[Conditioning]:
        """The negative prompt of each image at this call; where nobody reads them, the first part of its prompt, so
        that no text encoder runs for them."""
        if self._reads_negatives:
            return [negative.at(self._evaluation) for negative in self._negatives]
        return [prompt.at(self._evaluation)[0][0] for prompt in self._prompts]

    def _leaves_out_uncond(self, sigma: Tensor) -> bool:
        options = self._options
        if self._image_cfg_scale is not None:
            return False
        if options.skip_early > 0 and self._evaluation / options.total_model_calls <= options.skip_early:
            self.used |= Used.EARLY_WITHOUT_NEGATIVE
            return True
        if options.min_sigma_uncond <= 0 or not (options.all_steps or self._evaluation % 2 == 1):
            return False
        if float(sigma if self._level is None else self._level(sigma)) >= options.min_sigma_uncond:
            return False
        self.used |= Used.LATE_WITHOUT_NEGATIVE
        return True

    def _inputs(self, x: Tensor, sigma: Tensor, parts: Sequence[_Part]) -> DenoiserInputs:
        rows, prompts = [part.row for part in parts], [part.conditioning for part in parts]
        negatives = self._negatives_now()
        is_edit = self._image_cfg_scale is not None
        without_image = list(negatives) if is_edit else []
        vectors = [item.vector for item in (*prompts, *negatives, *without_image) if item.vector is not None]
        every = [*rows, *range(len(x)), *(range(len(x)) if is_edit else ())]
        return DenoiserInputs(
            x[every],
            sigma[every],
            stack_conditionings(prompts),
            stack_conditionings(negatives),
            self._evaluation,
            self._options.total_model_calls,
            torch.stack(vectors) if vectors else None,
            self._images(every, len(x)),
            stack_masks(prompts),
            stack_masks(negatives),
        )

    def _images(self, rows: Sequence[int], batch: int) -> Tensor | None:
        """Return what an inpainting or editing model sees in each row of a call; the last `batch` rows of an editing
        model, which is guided by the image, see none."""
        if self._image is None:
            return None
        images = self._image.expand(batch, *self._image.shape[-3:])[rows]
        if self._image_cfg_scale is not None:
            images[-batch:] = 0.0
        return images

    def _shown_to(self, watching: Sequence[Callable[[Denoised], None]], x: Tensor) -> Tensor:
        """Return `x` after all of these have seen it and may have replaced it."""
        outputs = Denoised(x, self._evaluation, self._options.total_model_calls)
        for watch in watching:
            watch(outputs)
        return outputs.x

    def _evaluate_both(self, inputs: DenoiserInputs, count: int) -> tuple[Tensor, Tensor]:
        """The `count` parts of prompts and the negative prompts: in one call where they have equally many tokens, else
        one after the other."""
        cond_mask, uncond_mask = inputs.mask_cond, inputs.mask_uncond
        if cond_mask is not None and uncond_mask is not None:
            return self._evaluate_masked(inputs, count, cond_mask, uncond_mask)
        cond_context, uncond_context, padded = pad_conditionings(
            inputs.text_cond, inputs.text_uncond, self._options.padding, self._empty()
        )
        if padded:
            self.used |= Used.PADDING
        if self._image_cfg_scale is not None:
            uncond_context = torch.cat([uncond_context, uncond_context])
        if cond_context.shape[1] == uncond_context.shape[1] and self._options.batch_together:
            both = self._evaluate(inputs, slice(None), torch.cat([cond_context, uncond_context]))
            return both[:count], both[count:]
        cond = self._evaluate(inputs, slice(count), cond_context)
        return cond, self._evaluate(inputs, slice(count, None), uncond_context)

    def _another(self, inputs: DenoiserInputs, parts: Sequence[_Part]) -> Callable[[Tensor, bool], Tensor]:
        """More calls of the model in this step, on other latents [B,C,h,w]: what the prompts, or the negative prompts,
        predict there; of parts joined by AND their mean, by their weights."""
        count = len(self._prompts)

        def predict(x: Tensor, is_negative: bool) -> Tensor:
            if is_negative:
                rows = slice(len(parts), len(parts) + count)
                there = replace(inputs, x=_put(inputs.x, rows, x))
                return self._evaluate(there, rows, inputs.text_uncond, inputs.mask_uncond)
            rows = slice(len(parts))
            there = replace(inputs, x=_put(inputs.x, rows, x[[part.row for part in parts]]))
            cond = self._evaluate(there, rows, inputs.text_cond, inputs.mask_cond)
            return _prompts_only(cond, parts, count)

        return predict

    def _evaluate_masked(
        self, inputs: DenoiserInputs, count: int, cond_mask: Tensor, uncond_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`_evaluate_both` of texts whose padding is left out by a mask: their length is no reason for two calls."""
        uncond, repeats = inputs.text_uncond, 2 if self._image_cfg_scale is not None else 1
        uncond, uncond_mask = torch.cat([uncond] * repeats), torch.cat([uncond_mask] * repeats)
        if not self._options.batch_together:
            cond = self._evaluate(inputs, slice(count), inputs.text_cond, cond_mask)
            return cond, self._evaluate(inputs, slice(count, None), uncond, uncond_mask)
        texts, mask = pad_masked(inputs.text_cond, cond_mask, uncond, uncond_mask)
        both = self._evaluate(inputs, slice(None), texts, mask)
        return both[:count], both[count:]

    def _evaluate(self, inputs: DenoiserInputs, rows: slice, crossattn: Tensor, mask: Tensor | None = None) -> Tensor:
        vector, image = inputs.vector, inputs.image
        extra: dict[str, Extra] = {name: _rows(value, rows) for name, value in inputs.extra.items()}
        if self._guidance is GuidanceType.DISTILLED:
            extra["guidance"] = torch.full_like(inputs.sigma[rows], self._options.distilled_cfg_scale)
            self.used |= Used.DISTILLED_GUIDANCE
        if self._reads_end and self._options.sigmas:
            extra[END] = _next_below(self._options.sigmas, inputs.sigma[rows])
        context = DenoiserContext(
            crossattn,
            None if vector is None else vector[rows],
            None if image is None else image[rows],
            extra,
            mask,
        )
        assert self._denoise is not None
        with self._calling(inputs, rows):
            output = self._denoise(inputs.x[rows], inputs.sigma[rows], context)
        if self._options.check_nan and not torch.isfinite(output).all():
            raise NumericalError(
                "The model produced NaN at this step. Start with --no-half to compute in 32 bit, or use another "
                "checkpoint; --disable-nan-check lets such images through."
            )
        return output

    def _calling(self, inputs: DenoiserInputs, rows: slice) -> AbstractContextManager[None]:
        """While open, those who put something around the model know which rows these are."""
        parts, images = len(inputs.text_cond), list(range(len(self._prompts)))
        every = [row for row, prompt in enumerate(self._prompts) for _ in prompt.at(self._evaluation)]
        every += images * ((len(inputs.x) - parts) // len(images))
        chosen = range(*rows.indices(len(inputs.x)))
        call = ModelCall(
            tuple(every[row] for row in chosen),
            tuple(row >= parts for row in chosen),
            self._evaluation,
            self._options.total_model_calls,
        )
        return self._use.calling(call)


def _rows(value: Extra, rows: slice) -> Extra:
    return value[rows] if isinstance(value, Tensor) else tuple(item[rows] for item in value)


def _put(x: Tensor, rows: slice, values: Tensor) -> Tensor:
    changed = x.clone()
    changed[rows] = values.to(x)
    return changed


def _prompts_only(cond: Tensor, parts: Sequence[_Part], count: int) -> Tensor:
    """Return what replaces the negative prompts' predictions if there are none, [count,C,h,w]: the mean of each image's
    parts, by their weights. Where these add up to 1, as that of a single part does, `_combine` at scale 1 does not
    depend on it; several parts are averaged. Parts with negative weights have no share in the mean."""
    means = []
    for own in range(count):
        shares = [(each, max(part.weight, 0.0)) for each, part in zip(cond, parts, strict=True) if part.row == own]
        total = sum(share for _, share in shares)
        mean = torch.stack([each * (share / total) for each, share in shares]).sum(0) if total > 0 else shares[0][0]
        means.append(mean)
    return torch.stack(means)


def _combine(cond: Tensor, uncond: Tensor, parts: Sequence[_Part], cfg_scale: float) -> Tensor:
    denoised = uncond.clone()
    for position, part in enumerate(parts):
        denoised[part.row] += (cond[position] - uncond[part.row]) * (part.weight * cfg_scale)
    return denoised


def _rescaled(patch: int, x: Tensor, cond: Tensor, denoised: Tensor) -> Tensor:
    """`denoised` with velocities as long as those of `cond`, in each token of `patch` x `patch` cells and all channels:
    what the program of Qwen-Image does after guidance. Velocities are `x - denoised`, up to a factor of both."""
    height, width = x.shape[-2:]
    wanted, found = (_token_lengths(x - each, patch) for each in (cond, denoised))
    ratio = (wanted / found.clamp_min(torch.finfo(torch.float32).tiny)).to(x)
    ratio = ratio.repeat_interleave(patch, -2).repeat_interleave(patch, -1)[..., :height, :width]
    return x - (x - denoised) * ratio


def _token_lengths(velocity: Tensor, patch: int) -> Tensor:
    """[B,1,rows,columns] in fp32. Sides that are no multiple of `patch` are continued as models continue them."""
    height, width = velocity.shape[-2:]
    squares = velocity.float().square().sum(1, keepdim=True)
    squares = F.pad(squares, (0, -width % patch, 0, -height % patch), mode="replicate")
    return (F.avg_pool2d(squares, patch) * patch**2).sqrt()


def conditioned(make: Callable[[Callable[[Tensor, Tensor], Tensor]], Denoise], predict: Predict) -> ConditionedDenoise:
    """Bind a context to a model: `make` is `denoise_for` with everything but the model filled in."""

    def denoise(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        return make(lambda scaled, t: predict(scaled, t, context))(x, sigma)

    return denoise
