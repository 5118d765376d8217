"""A JPG copy next to an image that is too large for sites with limits (setting `export_for_4chan`)."""

from PIL import Image

from modules.images.encode import Quality, encode_image, format_of, holds
from modules.settings.values import Settings

_BYTES_PER_MB = 1024 * 1024


def large_copy(
    image: Image.Image, extension: str, size_bytes: int, infotext: str | None, settings: Settings
) -> bytes | None:
    """The bytes of the copy; None if none is wanted, or the image is small enough, or a JPG already.

    The copy keeps its aspect; its longer side is at most the setting `target_side_length` in pixels.
    """
    limit_px = settings.saving.target_side_length
    too_wide = max(image.size) > limit_px
    too_heavy = size_bytes > settings.saving.img_downscale_threshold * _BYTES_PER_MB
    if not settings.saving.export_for_4chan or not (too_wide or too_heavy) or format_of(extension) == "JPEG":
        return None
    if too_wide:
        scale = limit_px / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.LANCZOS)
    infotext = infotext if settings.infotext.enable_pnginfo and holds("jpg", image.size, infotext) else None
    return encode_image(image, "jpg", infotext, Quality.of(settings)) if holds("jpg", image.size, None) else None
