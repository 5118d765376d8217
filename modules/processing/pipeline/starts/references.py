"""Images that a model which edits by references is shown next to the one it makes, whatever a pass starts from."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from modules.errors import InvalidValueError
from modules.images.masks import flattened
from modules.models.families.denoiser_context import REFERENCE, stacked_references
from modules.models.loading.loaded import LoadedModel, why_blind
from modules.processing.engine.pixels import from_images
from modules.processing.request.pasting import REFERENCES_KEY
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import as_reference, fitted_into


@dataclass(frozen=True)
class References:
    """The images of a request that are only shown, without transparency. Passes keep the same ones."""

    images: tuple[Image.Image, ...] = ()
    hashes: tuple[str, ...] = ()  # of their pixels, for the infotext

    @classmethod
    def of(cls, request: GenerationRequest) -> References:
        """Transparent parts get the background color of the settings, as those of images to start from."""
        color = request.settings.img2img.img2img_background_color
        asked = request.start.references
        return cls(tuple(flattened(each.image, color) for each in asked), tuple(each.pixel_hash for each in asked))

    def check(self, model: LoadedModel) -> None:
        """Raises `InvalidValueError` where there are some, and the model is not shown any."""
        if self.images and not model.takes_references:
            raise InvalidValueError(
                f"{model.info.name} is shown no reference images, and {len(self.images)} are given. Leave them "
                f"out, or choose a model that edits by references. {why_blind(model)}".rstrip()
            )

    def shown(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        """Return what the denoiser sees of the references next to latents of this size, `stacked_references` of one
        row; None without any, and for a model that cannot see any."""
        if not (self.images and model.takes_references):
            return None
        if not model.family.denoiser.edits_by_adapter or model.shown_as != REFERENCE:
            return stacked_references(self._encoded(model))
        size_px = width * model.downscale, height * model.downscale
        return stacked_references([model.encode(from_images([fitted_into(each, size_px)])) for each in self.images])

    def shown_after(self, first: Tensor, model: LoadedModel) -> Tensor:
        """Return the references after `first` [1,C,h,w], the latents of the image that an editing model starts from."""
        return stacked_references([first, *self._encoded(model)])

    def _encoded(self, model: LoadedModel) -> list[Tensor]:
        """Scaled latents [1,C,h,w], each in its own shape: of at most `REFERENCE_PIXELS`, cut to sizes that the model
        takes."""
        found = []
        for image in self.images:
            found.append(model.encode(from_images([as_reference(image, model.size_multiple_px)])))
        return found

    def fields(self) -> dict[str, object]:
        """Return the infotext fields of the references."""
        return {REFERENCES_KEY: ", ".join(self.hashes)} if self.hashes else {}


def shows_start(model: LoadedModel) -> bool:
    """Whether a model is shown the image of img2img as a reference."""
    return model.takes_references and not model.family.denoiser.edits_by_adapter


NO_REFERENCES = References()
