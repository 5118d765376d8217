"""Live previews: what an image looks like halfway, by the method that the settings name."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from modules.errors import CheckpointError, MemoryShortageError, NumericalError
from modules.models.autoencoders.approx_vae import ENLARGES, ApproxDecoder, read_approx
from modules.models.autoencoders.tiny_vae import TinyHalf
from modules.models.autoencoders.tiny_vae_files import DECODER, TinyVaeFolders
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.pixels import cheap_images, side_by_side, to_images
from modules.processing.engine.tiny_vae import read_half
from modules.settings.sections.interface import APPROX
from modules.settings.sections.stable_diffusion import FULL, TINY
from modules.settings.values import Settings
from modules.system.texts import page_text

log = logging.getLogger(__name__)


@dataclass
class Previews:
    """The previews of one job. `notices` says what was not as wished, each thing once."""

    settings: Settings
    folders: TinyVaeFolders
    notices: list[str] = field(default_factory=list)
    _tiny: TinyHalf | None = field(default=None, init=False)
    _tiny_of: LoadedModel | None = field(default=None, init=False)
    _approx: ApproxDecoder | None = field(default=None, init=False)
    _approx_of: Path | None = field(default=None, init=False)

    def image(self, model: LoadedModel, latents: Tensor) -> Image.Image | None:
        """The images of denoised latents [B,C,h,w] side by side; None where the model has no way to show them.

        What goes wrong with a preview never ends the job: it is said, and the cheap method takes over.
        """
        try:
            images = self._decoded(model, latents)
        except NumericalError as error:
            log.warning("No preview of this step: %s", error)
            return None
        except (CheckpointError, MemoryShortageError) as error:
            self._note(page_text(f"Previews are made by 'Approx cheap': {error}"))
            images = None
        if images is not None:
            return side_by_side(images)
        preview = model.autoencoder.preview
        return None if preview is None else side_by_side(cheap_images(latents, preview, model.downscale))

    def _decoded(self, model: LoadedModel, latents: Tensor) -> list[Image.Image] | None:
        """Images by a decoder; None: by the cheap method."""
        method = self.settings.previews.show_progress_type
        if self.notices:  # it failed before in this job
            return None
        if method == TINY:
            tiny = self._tiny_for(model)
            return [to_images(model.run_tiny(tiny, latent[None]))[0] for latent in latents]
        if method == APPROX:
            return self._approximated(model, latents)
        if method == FULL and (model.streaming is None or self.settings.previews.live_preview_allow_lowvram_full):
            return [to_images(model.decode_full(latent[None]))[0] for latent in latents]
        return None

    def _tiny_for(self, model: LoadedModel) -> TinyHalf:
        """The job's own tiny decoder, else one that is read once for each model."""
        if model.tiny_vae.decoder is not None:
            return model.tiny_vae.decoder
        if self._tiny is None or self._tiny_of is not model:
            self._tiny, self._tiny_of = read_half(model, DECODER, self.folders), model
        return self._tiny

    def _approximated(self, model: LoadedModel, latents: Tensor) -> list[Image.Image] | None:
        """Decode latents with the VAE-approx model of the model's family; None if there is none."""
        path = self.folders.find_approx(model.info, model.family.latents.approx_vae)
        if path is None:
            return None
        if self._approx is None or self._approx_of != path:
            self._approx, self._approx_of = read_approx(path, model.latent_channels), path
        scale = model.downscale // ENLARGES
        small = to_images(self._approx.run(torch.nan_to_num(latents)))
        return [image.resize((image.width * scale, image.height * scale), Image.Resampling.BICUBIC) for image in small]

    def _note(self, notice: str) -> None:
        log.warning("%s", notice)
        self.notices.append(notice)
