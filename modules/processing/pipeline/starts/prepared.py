"""The user's images as img2img prepares them for the model: sizes, mask, overlays, colors. Pixels only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from PIL import Image

from modules.images.color_correction import Levels, color_target, corrected
from modules.images.masks import (
    Box,
    fill_masked,
    flattened,
    grown_to_aspect,
    masked_area,
    overlay_of,
    painted_part,
    paste_back,
    placed,
)
from modules.images.outpaint import Margins, grown, joined, on_canvas, painted_mask
from modules.images.resize import ResizeMode, Scaler, resize_image, scale_lanczos
from modules.processing.request.hooks import NO_HOOKS, Hooks, Overlay
from modules.processing.request.result import ImageRole
from modules.processing.request.source_images import FromImage, Mask, MaskedContent, whole_mask
from modules.settings.values import Settings


@dataclass(frozen=True)
class PreparedImages:
    """`images` (RGB) are what is encoded. The rest is for the end, with an entry for each of them where it is used:
    `overlays` (RGBA) hold what the mask keeps, of the whole image where `area` says that only a part is made; `targets`
    are the colors that results are corrected to. `mask` ("L", 255 is repainted) has the size of the request,
    `overlay_mask` made the overlays; with `margins` all are those of a larger canvas."""

    images: tuple[Image.Image, ...]
    overlays: tuple[Image.Image, ...] = ()
    targets: tuple[Levels, ...] = ()
    mask: Image.Image | None = None
    area: Box | None = None
    overlay_mask: Image.Image | None = None
    scale: Scaler = scale_lanczos
    margins: Margins | None = None

    def finish(self, image: Image.Image, index: int, hooks: Hooks) -> Image.Image:
        """A result with the colors of the image it began with, and with what the mask keeps over it."""
        kept = self.overlays[index % len(self.overlays)] if self.overlays else None
        overlay = Overlay(index, self.overlay_mask, kept)
        hooks.overlay(overlay)
        if self.targets:
            image = corrected(image, self.targets[index % len(self.targets)])
        if overlay.image is not None and self.margins is not None:
            image = joined(image, overlay.image, self.margins)
        elif overlay.image is not None:
            image = paste_back(image, overlay.image, self.area, self.scale)
        return image

    def by_products(self, image: Image.Image, index: int) -> Iterator[tuple[ImageRole, Image.Image]]:
        """The mask, what was painted under it, and the image with the colors it had; `image` is as decoded."""
        if self.targets:
            yield ImageRole.BEFORE_COLOR_CORRECTION, replace(self, targets=()).finish(image, index, NO_HOOKS)
        if self.overlay_mask is None:
            return
        yield ImageRole.MASK, self.overlay_mask.convert("RGB")
        if self.targets:
            image = corrected(image, self.targets[index % len(self.targets)])
        if self.area is not None:
            image = placed(image, self.overlay_mask.size, self.area, self.scale)
        yield ImageRole.MASK_COMPOSITE, painted_part(image, self.overlay_mask)


def prepare(
    asked: FromImage, size_px: tuple[int, int], settings: Settings, scale: Scaler = scale_lanczos, seed: int = 0
) -> PreparedImages:
    """Bring images and mask to the size of the request (width, height), images by `scale`; where the canvas grows, the
    size is that of the canvas, and `seed` is of the noise around the images. Raises `InvalidValueError` for a mask that
    paints nothing."""
    if not asked.grows:
        return _fitted(asked, size_px, settings, scale)
    margins, more = asked.margins, asked.grown_px
    fitted = _fitted(asked, (size_px[0] - more[0], size_px[1] - more[1]), settings, scale)
    overlays = fitted.overlays or tuple(image.convert("RGBA") for image in fitted.images)
    return replace(
        fitted,
        images=tuple(grown(image, margins, seed + index) for index, image in enumerate(fitted.images)),
        overlays=tuple(on_canvas(overlay, margins) for overlay in overlays),
        mask=painted_mask(size_px, margins, fitted.mask),
        margins=margins,
        overlay_mask=painted_mask(size_px, margins, fitted.overlay_mask),
    )


def _fitted(asked: FromImage, size_px: tuple[int, int], settings: Settings, scale: Scaler) -> PreparedImages:
    options = settings.img2img
    sources = [flattened(source.image, options.img2img_background_color) for source in asked.images]
    whole = whole_mask(asked.mask, sources[0].size) if asked.mask is not None else None
    area = _area(asked.mask, whole, size_px) if asked.mask is not None and whole is not None else None
    # As in the reference UI: where latents are resized, masks are fitted with their aspect ratio kept.
    is_latent = asked.resize_mode is ResizeMode.LATENT_UPSCALE
    mask_mode = ResizeMode.RESIZE_AND_FILL if is_latent else asked.resize_mode
    mask, kept_by = _sized_masks(whole, area, size_px, mask_mode)
    images, overlays = [], []
    for source in sources:
        image = source
        if area is None and not is_latent:
            image = resize_image(image, *size_px, asked.resize_mode, scale)
        if kept_by is not None:
            fitting = kept_by if kept_by.size == image.size else resize_image(kept_by, *image.size, mask_mode)
            overlays.append(overlay_of(image, fitting.convert("L")))
        if area is not None:
            image = resize_image(image.crop(area), *size_px, ResizeMode.RESIZE_AND_FILL, scale)
        if mask is not None and asked.mask is not None and asked.mask.fill is not MaskedContent.ORIGINAL:
            image = fill_masked(image, mask if mask.size == image.size else mask.resize(image.size))
        images.append(image)
    return PreparedImages(
        tuple(images),
        tuple(overlays) if options.overlay_inpaint or asked.grows else (),
        tuple(color_target(image) for image in images) if options.img2img_color_correction else (),
        mask,
        area,
        kept_by,
        scale,
    )


def _area(mask: Mask, whole: Image.Image, size_px: tuple[int, int]) -> Box | None:
    if not mask.full_resolution:
        return None
    found = masked_area(whole, mask.padding)
    return None if found is None else grown_to_aspect(found, size_px, whole.size)


def _sized_masks(
    whole: Image.Image | None, area: Box | None, size_px: tuple[int, int], mode: ResizeMode
) -> tuple[Image.Image | None, Image.Image | None]:
    """The mask in the size of the request, and the one that says what is kept of the image at the end."""
    if whole is None:
        return None, None
    if area is not None:
        return resize_image(whole.crop(area), *size_px, ResizeMode.RESIZE_AND_FILL).convert("L"), whole
    mask = resize_image(whole, *size_px, mode).convert("L")
    return mask, mask.point(lambda value: min(2 * value, 255))  # half painted counts as painted, so no edge shows
