"""Where a pass of sampling starts from. A pass is always the same steps (see `run_pass`); a start is what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from PIL import Image
from torch import Tensor

from modules.models.loading.loaded import LoadedModel
from modules.processing.request.hooks import Hooks, MaskedStart
from modules.processing.request.pass_settings import PassSettings
from modules.processing.request.result import ImageRole
from modules.sampling.catalog import SamplerSpec
from modules.sampling.flow import NoiseLevels
from modules.sampling.plan import SamplingRun
from modules.sampling.types import Denoise


class Start(Protocol):
    """One start of one pass. It must not keep a model: another one may have to take its place during the pass.
    Subclasses without a mask need none of the methods from `masked` on: nothing is kept, and no image is changed."""

    @property
    def noise_multiplier(self) -> float:
        """The factor of the first noise; 1 except for img2img with a noise multiplier."""

    @property
    def encodes(self) -> bool:
        """Whether `latents` encodes images."""

    def seen(self, model: LoadedModel) -> tuple[tuple[Image.Image, ...], ...]:
        """The images that a model which edits by references is shown: a row for each image of the batch, or one for
        all of them."""

    @property
    def image_cfg_scale(self) -> float | None:
        """How strongly a model that edits images follows the one it is shown; None: it is not guided by it."""

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor | None:
        """The clean latents [B,C,h,w] that are noised; None: the pass starts from pure noise of this size."""

    def sampling_run(self, settings: PassSettings, levels: NoiseLevels) -> SamplingRun | None:
        """The whole schedule or its tail; None: there is nothing to sample, the latents are the result."""

    def image_conditioning(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        """Return what an inpainting or editing model sees besides the latents, [C,h,w] in latent units, or one for each
        image of the batch, [B,C,h,w]; else None."""

    def masked(self, latents: Tensor | None) -> MaskedStart | None:
        """Return what a mask keeps of its own `latents`; None if nothing is kept."""
        return None

    def constrain(self, denoise: Denoise, latents: Tensor | None, hooks: Hooks, sampler: SamplerSpec) -> Denoise:
        """Keeps what must not change, at every call of the denoiser by `sampler`; `latents` [B,C,h,w] are the start's
        own."""
        return denoise

    def keep(self, result: Tensor, latents: Tensor | None, hooks: Hooks) -> Tensor:
        """The sampled latents [B,C,h,w], with what must not change put back from the start's own."""
        return result

    def finish(self, image: Image.Image, index: int, hooks: Hooks) -> Image.Image:
        """The finished image `index` of the batch: pasted back, colors corrected; by default as it is."""
        return image

    def by_products(self, image: Image.Image, index: int) -> Iterator[tuple[ImageRole, Image.Image]]:
        """Yield the other images of image `index`, which `image` is as decoded: its mask, what was painted under it."""
        return iter(())

    def fields(self, model: LoadedModel) -> Mapping[str, object]:
        """Return the infotext fields of the start; `model` begins the pass."""
        return {}
