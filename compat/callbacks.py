"""The callbacks of user extensions at the moments of a job (`on_cfg_denoiser` and its like), on the program's own
`Hooks` and `ModelUse`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compat.step_sampler import KDiffusionSampler, is_watched
from modules.processing.request.hooks import ExtraNoise, FileToSave, Grid, Hooks
from modules.scripts.callbacks import Moment
from modules.scripts.foreign import Told
from modules.scripts.job import Job

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from modules.processing.request.model_use import Denoised, DenoiserInputs, ModelUse
    from modules.sampling.types import StepInfo


@dataclass
class CFGDenoiserParams:
    """Before a model call; tensors may be replaced by others of their shapes.

    `image_cond` is what an inpainting model sees besides the latents, `vector` what is added to the time embedding;
    None for other models. `extra`, with a row for each of `x`, is passed to the denoiser by the names of its arguments.
    """

    x: Tensor
    image_cond: Tensor | None
    sigma: Tensor
    sampling_step: int
    total_sampling_steps: int
    text_cond: Tensor
    text_uncond: Tensor
    denoiser: Any = None
    vector: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class CFGDenoisedParams:
    """After a model call, before guidance; `x` may be replaced."""

    x: Tensor
    sampling_step: int
    total_sampling_steps: int
    inner_model: Any = None


@dataclass
class AfterCFGCallbackParams:
    """After guidance; `x` may be replaced."""

    x: Tensor
    sampling_step: int
    total_sampling_steps: int


@dataclass
class ExtraNoiseParams:
    """Extra noise of a second pass; `noise` may be replaced. `x` is noised, `xi` clean."""

    noise: Tensor
    x: Tensor
    xi: Tensor


@dataclass
class ImageSaveParams:
    """An image that is written: `image` and `pnginfo` may be replaced before. Before, `filename` is where it
    would be written now: another image may take its number."""

    image: Image.Image
    p: Any
    filename: str
    pnginfo: dict[str, str]


@dataclass
class ImageGridLoopParams:
    """A grid about to be put together."""

    imgs: list[Image.Image]
    cols: int
    rows: int


@dataclass
class Denoiser:
    """Object behind `params.denoiser` of `on_cfg_denoiser`: the job, and how far its pass is."""

    p: Job
    steps: int
    step: int = 0
    total_steps: int = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"params.denoiser.{name} is not supported here: a denoiser offers p, step, steps and total_steps; the "
            "tensors are attributes of params."
        )


class CallbackHooks(Hooks):
    """The callbacks in one run of the job `p`."""

    def __init__(self, told: Told, p: Job) -> None:
        self._told = told
        self._p = p

    @property
    def reads_uncond(self) -> bool:
        """Asked for each pass, because extensions register callbacks in their hooks too, the last one included."""
        listens = self._told.listens(Moment.CFG_DENOISER, Moment.CFG_DENOISED, Moment.CFG_AFTER_CFG)
        return listens or self._told.may_listen("process_before_every_sampling")

    def on_model(self, use: ModelUse) -> None:
        if self.reads_uncond:
            _GuidanceCallbacks(self._told, use, Denoiser(self._p, self._p.steps)).listen()

    def step(self, info: StepInfo) -> None:
        if is_watched():
            KDiffusionSampler(self._p).tell(info.index, info.total, info.x, info.denoised, info.sigma)

    def extra_noise(self, noise: ExtraNoise) -> None:
        params = ExtraNoiseParams(noise.noise, noise.x, noise.xi)
        self._told.tell(Moment.EXTRA_NOISE, params)
        noise.noise = params.noise

    def before_saving(self, file: FileToSave) -> None:
        if not self._told.listens(Moment.BEFORE_IMAGE_SAVED):
            return
        path = file.expected()
        with contextlib.suppress(OSError):  # saving says what is wrong with the folder
            path.parent.mkdir(parents=True, exist_ok=True)
        params = ImageSaveParams(file.image, self._p, str(path), file.infos)
        self._told.tell(Moment.BEFORE_IMAGE_SAVED, params)
        file.image, file.infos = params.image, {str(key): str(value) for key, value in params.pnginfo.items()}

    def saved(self, file: FileToSave) -> None:
        self._told.tell(Moment.IMAGE_SAVED, ImageSaveParams(file.image, self._p, str(file.path), file.infos))

    def sheet(self, sheet: Grid) -> None:
        columns = -(-len(sheet.images) // sheet.rows)
        params = ImageGridLoopParams(sheet.images, columns, sheet.rows)
        self._told.tell(Moment.IMAGE_GRID, params)
        sheet.images = list(params.imgs)
        if params.rows != sheet.rows or params.cols != columns:
            sheet.rows = max(1, min(params.rows, len(sheet.images)))


@dataclass(frozen=True)
class _GuidanceCallbacks:
    """The callbacks at every call of a model."""

    told: Told
    use: ModelUse
    denoiser: Denoiser

    def listen(self) -> None:
        """Take part in the calls of this pass, before the program's own extensions."""
        self.use.reads_uncond = True
        self.use.before_call.insert(0, self._before_call)
        self.use.after_call.append(self._after_call)
        self.use.after_step.append(self._after_step)

    def _before_call(self, inputs: DenoiserInputs) -> None:
        self.denoiser.step, self.denoiser.total_steps = inputs.step, inputs.total_steps
        params = CFGDenoiserParams(
            x=inputs.x,
            image_cond=inputs.image,
            sigma=inputs.sigma,
            sampling_step=inputs.step,
            total_sampling_steps=inputs.total_steps,
            text_cond=inputs.text_cond,
            text_uncond=inputs.text_uncond,
            denoiser=self.denoiser,
            vector=inputs.vector,
            extra=inputs.extra,
        )
        self.told.tell(Moment.CFG_DENOISER, params)
        inputs.x, inputs.sigma, inputs.image, inputs.vector = params.x, params.sigma, params.image_cond, params.vector
        inputs.text_cond, inputs.text_uncond = params.text_cond, params.text_uncond
        if self.told.listens(Moment.CFG_DENOISED):  # what came out of a call is reported with its negative half
            self.use.needs_uncond = True

    def _after_call(self, outputs: Denoised) -> None:
        params = CFGDenoisedParams(outputs.x, outputs.step, outputs.total_steps)
        self.told.tell(Moment.CFG_DENOISED, params)
        outputs.x = params.x

    def _after_step(self, outputs: Denoised) -> None:
        params = AfterCFGCallbackParams(outputs.x, outputs.step, outputs.total_steps)
        self.told.tell(Moment.CFG_AFTER_CFG, params)
        outputs.x = params.x
