"""A parsed infotext as values of a request: what pasting parameters, or the API's `infotext` field, fills in."""

import re
from collections.abc import Mapping
from typing import Any

from modules.images.infotext import InfotextValue
from modules.processing.request.parameters import pasted_fields
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS
from modules.sampling.catalog import SAMPLERS
from modules.sampling.names import AUTOMATIC, schedule_before_1_9, split_names

INIT_IMAGE_KEY = "Init image sha256"
MASK_KEY = "Mask sha256"
REFERENCES_KEY = "Reference images"
_VERSION = re.compile(r"(?:f\d+\.\d+\.\d+)?v?(\d+)\.(\d+)\.\d+")


def pasted_values(parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Values by the names of `GenerationRequest`; a field that is no value of its type is left out.

    The size of an outpainted image is that of its canvas; the request's is that of the image which is kept.
    """
    values = with_schedule(pasted_fields(parsed, REQUEST_ROWS), parsed)
    grown = pasted_fields(parsed, IMAGE_ROWS)
    for side, margins in (("width", ("left", "right")), ("height", ("up", "down"))):
        if isinstance(values.get(side), int):
            values[side] -= sum(grown.get(f"outpaint_{margin}", 0) for margin in margins)
    return values


def pasted_hires(parsed: Mapping[str, InfotextValue]) -> dict[str, Any] | None:
    """Values by the names of `HiresRequest`, or None for an image made without hires fix."""
    if "Hires upscaler" not in parsed and "Hires upscale" not in parsed:
        return None
    values = pasted_fields(parsed, HIRES_ROWS)
    return with_schedule(values, parsed) if values.get("sampler") else values


def with_schedule(values: dict[str, Any], parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Sampler and schedule type as they are called here: the names before version 1.9 held both. A plain name of those
    versions meant the model's own schedule, where it now is the sampler's."""
    name = values.get("sampler")
    values = split_names(values)
    is_old = values.get("sampler") == name and _is_before_1_9(str(parsed.get("Version", "")))
    if is_old and name in SAMPLERS and values.get("scheduler") in (None, AUTOMATIC):
        values = {**values, "scheduler": schedule_before_1_9(str(name))}
    return values


def _is_before_1_9(version: str) -> bool:
    """Return whether a version is before 1.9: of A1111, or of Forge, whose versions hold that of A1111:
    "f0.0.17v1.8.0rc"."""
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) < (1, 9)


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
        (word, name)
        for key, word in ((INIT_IMAGE_KEY, "init image"), (MASK_KEY, "mask"))
        for name in _hashes(parsed, key)
    )


def references_shown(parsed: Mapping[str, InfotextValue]) -> tuple[str, ...]:
    """The pixel hashes of the reference images that an infotext was made with."""
    return _hashes(parsed, REFERENCES_KEY)


def _hashes(parsed: Mapping[str, InfotextValue], key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(parsed.get(key) or "").split(",") if name.strip())
