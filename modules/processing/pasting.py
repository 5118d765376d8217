"""A parsed infotext as values of a request: what pasting parameters, or the API's `infotext` field, fills in."""

from collections.abc import Mapping
from typing import Any

from modules.images.infotext import InfotextValue
from modules.processing.parameters import pasted_fields
from modules.processing.request import HIRES_ROWS, REQUEST_ROWS
from modules.processing.start import IMAGE_ROWS, MASK_ROWS

INIT_IMAGE_KEY = "Init image sha256"
MASK_KEY = "Mask sha256"


def pasted_values(parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Values by the names of `GenerationRequest`; a field that is no value of its type is left out.

    The size of an outpainted image is that of its canvas; the request's is that of the image which is kept.
    """
    values = pasted_fields(parsed, REQUEST_ROWS)
    grown = pasted_fields(parsed, IMAGE_ROWS)
    for side, margins in (("width", ("left", "right")), ("height", ("up", "down"))):
        if isinstance(values.get(side), int):
            values[side] -= sum(grown.get(f"outpaint_{margin}", 0) for margin in margins)
    return values


def pasted_hires(parsed: Mapping[str, InfotextValue]) -> dict[str, Any] | None:
    """Values by the names of `HiresRequest`, or None for an image made without hires fix."""
    if "Hires upscaler" not in parsed and "Hires upscale" not in parsed:
        return None
    return pasted_fields(parsed, HIRES_ROWS)


def pasted_start(parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Values by the names of `FromImage`. Of an image that says what it began with, all that it can leave unsaid."""
    values = pasted_fields(parsed, IMAGE_ROWS)
    if INIT_IMAGE_KEY not in parsed:
        return values
    unsaid = {row.name: row.default for row in IMAGE_ROWS if row.infotext and row.infotext.written}
    return unsaid | values


def pasted_mask(parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Values by the names of `Mask`, as above; "Mask blur" stands for both directions."""
    values = pasted_fields(parsed, MASK_ROWS)
    if "Mask blur" in parsed:
        (row,) = (row for row in MASK_ROWS if row.name == "blur_x")
        both = pasted_fields({"Mask blur x": parsed["Mask blur"]}, (row,))
        values |= {name: value for value in both.values() for name in ("blur_x", "blur_y")}
    if MASK_KEY not in parsed:
        return values
    return {"round": True, "blur_x": 0, "blur_y": 0} | values


def images_begun_with(parsed: Mapping[str, InfotextValue]) -> tuple[tuple[str, str], ...]:
    """The images that an infotext was made from: ("init image" or "mask", pixel hash) of each."""
    return tuple(
        (word, name.strip())
        for key, word in ((INIT_IMAGE_KEY, "init image"), (MASK_KEY, "mask"))
        for name in str(parsed.get(key) or "").split(",")
        if name.strip()
    )
