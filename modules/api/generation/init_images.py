"""The start of an img2img job, read from a body: images decoded with limits, mask and numbers checked before a job
begins."""

from collections.abc import Iterable, Mapping
from typing import Any

from modules.api.generation.fetching import fetch, is_url
from modules.api.schema.schemas import GenerationBody, ImageBody
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.encode import decode_image
from modules.images.reading import read_image
from modules.processing.request.parameters import Parameter
from modules.processing.request.pasting import images_begun_with, pasted_mask, pasted_start
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS, FromImage, Mask, SourceImage
from modules.settings.values import Settings


def start_from(body: ImageBody, settings: Settings, parsed: Mapping[str, Any] | None = None) -> FromImage:
    """The start of an img2img body; what it leaves out is as the infotext `parsed` says. The settings say whether
    images may be fetched from URLs.

    Raises `UnknownNameError` (404, as the reference UI) where there is no image, and `InvalidValueError` for anything
    that is none, or a value that is not allowed.
    """
    parsed = parsed or {}
    if not body.init_images:
        named = " ".join(
            f"The {word} {name} is not here: load it to make the same image again."
            for word, name in images_begun_with(parsed)
        )
        raise UnknownNameError(
            f"Init image not found: give at least one image as base64 text in init_images. {named}".strip()
        )
    if body.latent_mask and not body.mask:
        raise InvalidValueError("latent_mask says how a mask is used while sampling; give the mask itself in mask.")
    return FromImage(
        images=tuple(_source(text, f"init_images[{index}]", settings) for index, text in enumerate(body.init_images)),
        mask=_mask(body, settings, parsed) if body.mask else None,
        references=references_of(body, settings),
        **_values(body, IMAGE_ROWS, pasted_start(parsed)),
    )


def references_of(body: GenerationBody, settings: Settings) -> tuple[SourceImage, ...]:
    """The images that models which edit are shown. Raises `InvalidValueError` for what is no image."""
    texts = body.reference_images or ()
    return tuple(_source(text, f"reference_images[{index}]", settings) for index, text in enumerate(texts))


def _mask(body: ImageBody, settings: Settings, parsed: Mapping[str, Any]) -> Mask:
    assert body.mask is not None
    values = _values(body, MASK_ROWS, pasted_mask(parsed) if parsed else {})
    if body.mask_blur is not None:
        values |= {"blur_x": body.mask_blur, "blur_y": body.mask_blur}
    latent = _source(body.latent_mask, "latent_mask", settings) if body.latent_mask else None
    return Mask(image=_source(body.mask, "mask", settings), latent=latent, **values)


def _values(body: ImageBody, rows: Iterable[Parameter], pasted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these parameters, by the names of their fields: from the body, else from what was pasted."""
    given = body.given()
    return {
        row.name: pasted[row.name] if row.name in pasted and row.api not in given else row.from_api(body.value(row.api))
        for row in rows
    }


def _source(text: str, what: str, settings: Settings) -> SourceImage:
    if is_url(text):
        return SourceImage.of(read_image(fetch(text, what, settings), what))
    return SourceImage.of(decode_image(text, what))
