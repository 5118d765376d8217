"""A parsed infotext as values of a request: what pasting parameters, or the API's `infotext` field, fills in."""

from collections.abc import Mapping
from typing import Any

from modules.images.infotext import InfotextValue
from modules.processing.parameters import pasted_fields
from modules.processing.request import HIRES_ROWS, REQUEST_ROWS


def pasted_values(parsed: Mapping[str, InfotextValue]) -> dict[str, Any]:
    """Values by the names of `GenerationRequest`; a field that is no value of its type is left out."""
    return pasted_fields(parsed, REQUEST_ROWS)


def pasted_hires(parsed: Mapping[str, InfotextValue]) -> dict[str, Any] | None:
    """Values by the names of `HiresRequest`, or None for an image made without hires fix."""
    if "Hires upscaler" not in parsed and "Hires upscale" not in parsed:
        return None
    return pasted_fields(parsed, HIRES_ROWS)
