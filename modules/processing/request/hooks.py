"""The hooks of a running job: at which moments they are called, and with what. Processing calls them; the scripts of
extensions implement them (`modules.scripts.hooks`). Nothing here knows of scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.autoencoders.separate_tiles import SeparateTiles
    from modules.processing.request.model_use import ModelUse
    from modules.sampling.types import Denoise, StepInfo


@dataclass
class BatchDraft:
    """One batch as it is about to be made; the lists have an entry for each image and may be changed. Of a second pass
    an empty text means the image's own."""

    number: int
    prompts: list[str]
    negative_prompts: list[str]
    seeds: list[int]
    subseeds: list[int]
    hires_prompts: list[str] = field(default_factory=list)
    hires_negative_prompts: list[str] = field(default_factory=list)


class PassComputing(Protocol):
    """The tools of a pass, for those who compute with the model themselves before its first step."""

    @property
    def sigmas(self) -> Tensor:
        """The noise levels that the pass walks along, falling, [steps + 1]."""

    def schedule(self, steps: int) -> Tensor:
        """The model's own noise levels for so many steps of Euler from pure noise, falling to 0, [steps + 1]."""

    def denoiser(self, prompts: Sequence[str], negatives: Sequence[str], cfg_scale: float, steps: int) -> Denoise:
        """(x [B,C,h,w], sigma [B]) -> denoised, with guidance by these texts, one for each image of the batch; the
        adapters are those of the job's prompt. Counts its calls, of which there may be `steps`, for prompts that
        change with the step. It raises `Interrupted` and `Skipped` where the user stops the job."""

    def noise_for(self, x: Tensor) -> Tensor:
        """The first noise [B,C,h,w] with which the sampler begins with `x`, which is at the level `sigmas[0]`."""


@dataclass
class PassStart:
    """A pass of sampling before its first step. `x` and `noise` [B,C,h,w] may be changed in place; in a first pass
    they are the same tensor, in a second `x` is the enlarged latents. `cond` and `uncond` are the encoded prompts;
    where guidance does not use the negative prompts, they are encoded when `uncond` is read."""

    x: Tensor
    noise: Tensor
    cond: Any
    uncond: Any
    is_hires: bool = False
    computing: PassComputing | None = None


@dataclass
class ExtraNoise:
    """Noise that is added to the latents of a second pass; `noise` may be replaced. `x` is noised, `xi` is clean."""

    noise: Tensor
    x: Tensor
    xi: Tensor


@dataclass
class MaskedStart:
    """A start of which a mask keeps a part. `latents` [B,C,h,w] are clean, `painted` [C,h,w] is 1 where they are
    repainted. `overlays` (RGBA, for each image, or one for all) hold the kept pixels of the whole image;
    `overlay_mask` ("L", 255 is repainted) made them. `area` (left, top, right, bottom) is the part of the image that
    is made, where it is not all of it."""

    latents: Tensor
    painted: Tensor
    overlays: list[Image.Image]
    overlay_mask: Image.Image | None
    area: tuple[int, int, int, int] | None


@dataclass
class MaskBlend:
    """The kept part is about to be put back: into a denoised latent or a sampler's input at each model call, with
    `sigma` [B], or into the result, where that is None. `blended` may be replaced; `current`, `initial` and `blended`
    are [B,C,h,w], `painted` [C,h,w] is 1 where `current` counts."""

    current: Tensor
    initial: Tensor
    painted: Tensor
    blended: Tensor
    sigma: Tensor | None = None


@dataclass
class Overlay:
    """The kept pixels (RGBA) on their way over the image `index` of a batch; both may be replaced."""

    index: int
    mask: Image.Image | None
    image: Image.Image | None


@dataclass
class FileToSave:
    """An image on its way into a file. Before saving, image and infos may be replaced, and `expected` says where it
    would be written now; after it `path` is set.

    `infos` are the text entries: "parameters" is the infotext, others become text chunks of a PNG.
    """

    image: Image.Image
    infos: dict[str, str]
    is_grid: bool = False
    path: Path | None = None
    expected: Callable[[], Path] = Path


@dataclass
class Grid:
    """The images of a grid; the list and the number of rows may be changed."""

    images: list[Image.Image]
    rows: int


class Hooks:
    """The moments of a job, in their order. Here nobody takes part in any; what overrides one must not raise for faults
    of its own. What happens at a call of the model is in the `ModelUse` that `on_model` receives."""

    vae_tiles: SeparateTiles | None = None
    """How the VAE runs in this job, where that is not for the settings to say."""
    wants_mask_blends: bool = False
    """Whether `mask_blend` does something."""
    wants_whole_batches: bool = False
    """Whether `decoded` does something; else each image is finished as soon as it is decoded."""

    @property
    def reads_uncond(self) -> bool:
        """Whether somebody looks at the negative prompts even where they do not count."""
        return False

    def before_batch(self, batch: BatchDraft) -> None:
        """Before anything of a batch is computed."""

    def adapters_active(self, batch: BatchDraft, adapters: Mapping[str, Any]) -> None:
        """The adapters of the prompt (by type) are on the model."""

    def batch(self, batch: BatchDraft) -> None:
        """Before the prompts are encoded."""

    def before_hires(self) -> None:
        """The first pass is over, a second comes."""

    def step(self, info: StepInfo) -> None:
        """A step of a pass was predicted; its tensors may be changed in place before the sampler goes on."""

    def before_sampling(self, start: PassStart) -> None:
        """Before the first step of a pass."""

    def on_model(self, use: ModelUse) -> None:
        """A pass is about to compute with a model: what is registered on it now holds for the pass. May raise a
        `FeatherweightError`, which ends the job."""

    def masked(self, start: MaskedStart) -> None:
        """The latents of a masked start are there; before the first step."""

    def mask_blend(self, blend: MaskBlend) -> None:
        """At each model call of a masked start, and once for the result."""

    def extra_noise(self, noise: ExtraNoise) -> None:
        """Before extra noise is added to the start of a second pass."""

    def sampled(self, latents: Tensor) -> Tensor:
        """Return the latents [B,C,h,w] to be decoded, from those of the last pass."""
        return latents

    def decoded(self, batch: BatchDraft, images: list[Tensor]) -> list[Tensor]:
        """Return the images [3,H,W] in 0 to 1 that go on, from those of a batch; their number may differ."""
        return images

    def image(self, image: Image.Image, index: int) -> Image.Image:
        """Return an image instead of a finished one; `index` counts within the batch."""
        return image

    def overlay(self, overlay: Overlay) -> None:
        """Before the kept pixels are put over a finished image."""

    def composited(self, image: Image.Image, index: int) -> Image.Image:
        """Return an image instead of one that lies under its overlay."""
        return image

    def extra_params(self) -> Mapping[str, Any]:
        """Return what belongs into the infotext by now."""
        return {}

    def before_saving(self, file: FileToSave) -> None:
        """Before an image is written."""

    def saved(self, file: FileToSave) -> None:
        """An image was written to `file.path`."""

    def sheet(self, sheet: Grid) -> None:
        """Before a grid is put together."""


NO_HOOKS = Hooks()
