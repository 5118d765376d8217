"""Start of the img2img form: the images of its sub tabs and its controls as a `FromImage`. No Gradio in here.

The page sends the images ahead (`modules.ui.common.uploads`) and names them by their keys with the form. What is
painted comes as an image of its own, transparent where nothing is painted; what it means depends on the sub tab.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from PIL import Image, ImageFilter

from modules.errors import InvalidValueError
from modules.processing.request.request import MAX_SIDE_PX, MIN_SIDE_PX
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.system.bounded import read_json
from modules.system.texts import page_text
from modules.ui.common.uploads import Uploads
from modules.ui.form.form import start_values

NO_IMAGE = page_text("There is no image to start from. Drop one into the field, or send one here from another tab.")
NO_MASK = page_text("Nothing is painted: paint the part of the image that should change.")
NO_UPLOADED_MASK = page_text(
    "There is no mask: put a black and white image into the field Mask; white is what should change."
)


class Mode(StrEnum):
    """The sub tabs of img2img."""

    IMG2IMG = "img2img"
    SKETCH = "sketch"
    INPAINT = "inpaint"
    INPAINT_SKETCH = "inpaint_sketch"
    INPAINT_UPLOAD = "inpaint_upload"
    BATCH = "batch"
    CANVAS = "canvas"

    @property
    def has_mask(self) -> bool:
        """Whether the sub tab repaints under a mask; a batch and the canvas may."""
        return self in (Mode.INPAINT, Mode.INPAINT_SKETCH, Mode.INPAINT_UPLOAD, Mode.BATCH, Mode.CANVAS)


@dataclass(frozen=True)
class SentFile:
    """A file for a batch: kept under `key`, or not taken with the sentence `error`."""

    name: str
    key: str = ""
    infotext: str = ""
    error: str = ""

    @classmethod
    def of(cls, sent: Mapping[str, Any]) -> "SentFile":
        """From JSON."""
        return cls(**{name: str(sent.get(name) or "") for name in ("name", "key", "infotext", "error")})


@dataclass(frozen=True)
class Pictures:
    """The images of the sub tab that is shown, by their keys in `Uploads`; empty: there is none."""

    image: str = ""
    paint: str = ""  # what is painted on it [RGBA]
    mask: str = ""  # uploaded as a file, or what the canvas's mask layers show
    files: tuple[SentFile, ...] = ()  # of a batch
    references: tuple[str, ...] = ()
    prompt_end: str = ""  # what regions of the canvas add behind the prompt
    scripts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Arguments of always-on scripts by title, as a caller of the API gives them: they go before those of the form."""

    @classmethod
    def of(cls, text: str) -> "Pictures":
        """From the JSON text that the page sends with the form, by the names of the fields. Where an image could not be
        sent there is {"error"}, which is raised as `InvalidValueError`."""
        try:
            sent = dict(read_json(text or "{}"))
            files = tuple(SentFile.of(file) for file in sent.get("files") or ())
            references = tuple(str(key) for key in sent.get("references") or ())
            scripts = {str(title): tuple(args) for title, args in dict(sent.get("scripts") or {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidValueError("The images of the form did not arrive; reload the page.") from error
        if sent.get("error"):
            raise InvalidValueError(str(sent["error"]))
        texts = {name: str(sent.get(name) or "") for name in ("image", "paint", "mask", "prompt_end")}
        return cls(**texts, files=files, references=references, scripts=scripts)


def mode_of(form: Mapping[str, Any]) -> Mode:
    """The sub tab that a form was sent from. Raises `InvalidValueError`."""
    try:
        return Mode(str(form["mode"] or Mode.IMG2IMG))
    except ValueError:
        raise InvalidValueError(f"img2img has no sub tab {form['mode']!r}; known: {', '.join(Mode)}.") from None


def start_of(form: Mapping[str, Any], pictures: Pictures, uploads: Uploads) -> FromImage:
    """The start of a filled form. Raises `InvalidValueError` with a sentence for what is missing."""
    return replace(_begun(form, pictures, uploads), references=references_of(pictures, uploads))


def references_of(pictures: Pictures, uploads: Uploads) -> tuple[SourceImage, ...]:
    """The reference images. Raises `InvalidValueError` for one that is no longer kept."""
    return tuple(SourceImage.of(uploads.image(key, "A reference image")) for key in pictures.references)


def _begun(form: Mapping[str, Any], pictures: Pictures, uploads: Uploads) -> FromImage:
    """Return the same without reference images."""
    mode = mode_of(form)
    image = uploads.image(pictures.image) if pictures.image else None
    if image is None:
        raise InvalidValueError(NO_IMAGE)
    paint = uploads.image(pictures.paint, "What is painted").convert("RGBA") if pictures.paint else None
    if paint is not None and paint.size != image.size:
        raise InvalidValueError("The painting and the image differ in size; reload the page.")
    if mode is Mode.SKETCH:
        return from_images(form, (image if paint is None else painted_over(image, paint),))
    if mode is Mode.INPAINT:
        if paint is None:
            raise InvalidValueError(NO_MASK)
        return from_images(form, (image,), paint.getchannel("A"))
    if mode is Mode.INPAINT_SKETCH:
        if paint is None:
            raise InvalidValueError(NO_MASK)
        return _from_colored_mask(form, image, paint)
    if mode is Mode.INPAINT_UPLOAD:
        if not pictures.mask:
            raise InvalidValueError(NO_UPLOADED_MASK)
        return from_images(form, (image,), uploads.image(pictures.mask, "The mask"))
    return from_images(form, (image,))


def from_images(form: Mapping[str, Any], images: tuple[Image.Image, ...], mask: Image.Image | None = None) -> FromImage:
    """The start from these images with what the form's controls say."""
    values, mask_values = start_values(form)
    asked = None if mask is None else Mask(image=SourceImage.of(mask), **mask_values)
    return FromImage(images=tuple(SourceImage.of(image) for image in images), mask=asked, **values)


def painted_over(image: Image.Image, paint: Image.Image) -> Image.Image:
    """The image with the paint [RGBA, same size] over it; its own transparency stays where nothing is painted."""
    under = image.convert("RGBA")
    made = Image.alpha_composite(under, paint)
    return made if under.getchannel("A").getextrema() != (255, 255) else made.convert("RGB")


def _from_colored_mask(form: Mapping[str, Any], image: Image.Image, paint: Image.Image) -> FromImage:
    """Take what is painted as both mask and new content, its edge blurred into the image as the mask's edge is.
    `mask_alpha` (percent) makes both transparent, as in the reference UI."""
    _, mask_values = start_values(form)
    share = 1.0 - min(max(float(form.get("mask_alpha") or 0), 0.0), 100.0) / 100.0
    mask = paint.getchannel("A").point(lambda alpha: round(255 * share) if alpha else 0)
    blur = ImageFilter.GaussianBlur(mask_values["blur_x"])
    painted = painted_over(image, paint).convert("RGB")
    content = Image.composite(painted.filter(blur), image.convert("RGB"), mask.filter(blur))
    return from_images(form, (content,), mask)


def sized(form: Mapping[str, Any], image_size_px: tuple[int, int] | None) -> dict[str, Any]:
    """The form with the size that it asks for: as given, or the image's by a factor, cut down to multiples of 8.

    Raises `InvalidValueError` for a size that no image may have.
    """
    if form.get("sizing") != "by" or image_size_px is None:
        return dict(form)
    factor = float(form.get("scale_by") or 1.0)
    width, height = (int(side * factor) // 8 * 8 for side in image_size_px)
    if not all(MIN_SIDE_PX <= side <= MAX_SIDE_PX for side in (width, height)):
        raise InvalidValueError(
            f"Resize by {factor:g} makes {width}x{height} of {image_size_px[0]}x{image_size_px[1]}; a side may have "
            f"{MIN_SIDE_PX} to {MAX_SIDE_PX} pixels. Choose another factor."
        )
    return {**form, "width": width, "height": height}


def stand_in(form: Mapping[str, Any], size_px: tuple[int, int], is_masked: bool) -> FromImage:
    """A start that needs as much memory as the real one, without its images: for the estimate next to Generate."""
    image = Image.new("RGB", size_px)
    return from_images(form, (image,), Image.new("L", size_px, 255) if is_masked else None)
