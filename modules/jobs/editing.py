"""A job's parameters by the names of the API: to show them, and to have a waiting job ask for others."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from modules.errors import InvalidValueError, UnknownNameError
from modules.models.files.catalogue import CheckpointCatalogue
from modules.processing.request.checking import check_names
from modules.processing.request.parameters import Parameter, whole_number
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS, GenerationRequest
from modules.processing.request.source_images import IMAGE_ROWS, FromImage
from modules.sampling.catalog import SAMPLERS

CHECKPOINT_NAMES = ("checkpoint", "sd_model_checkpoint")
NUMBERS = (int, float)


def api_values(request: GenerationRequest) -> dict[str, Any]:
    """The parameters of a request by the names of the API, those of a start image or of the second pass only where
    there is one."""
    values = {row.api: _plain(getattr(request, row.name)) for row in REQUEST_ROWS if row.api}
    if isinstance(request.start, FromImage):
        values |= {row.api: _plain(getattr(request.start, row.name)) for row in IMAGE_ROWS if row.api}
    if request.hires is not None:
        values |= {row.api: _plain(getattr(request.hires, row.name)) for row in HIRES_ROWS if row.api}
    return {**values, "checkpoint": request.checkpoint, "enable_hr": request.hires is not None}


def with_api_values(
    request: GenerationRequest, values: Mapping[str, Any], catalogue: CheckpointCatalogue, upscalers: Iterable[str] = ()
) -> GenerationRequest:
    """The request with other values, by the names of the API; `checkpoint` names a checkpoint, null the one in the
    settings. Raises `UnknownNameError` for a name that is no parameter or no file, `InvalidValueError` for values."""
    left = dict(values)
    left.pop("enable_hr", None)
    named = [left.pop(name) for name in CHECKPOINT_NAMES if name in left]
    own = _taken(left, REQUEST_ROWS)
    if isinstance(request.start, FromImage):
        own["start"] = replace(request.start, **_taken(left, IMAGE_ROWS))
    hires = _taken(left, HIRES_ROWS)
    if left:
        known = [row.api for row in (*REQUEST_ROWS, *HIRES_ROWS, *IMAGE_ROWS) if row.api]
        raise UnknownNameError.of("parameter", next(iter(left)), known)
    changed = replace(request, **own)
    if hires:
        if request.hires is None:
            raise InvalidValueError("The job has no second pass; submit one with enable_hr to have it changed.")
        changed = replace(changed, hires=replace(request.hires, **hires))
    for name in named:
        title = catalogue.get(str(name)).title if name else None
        overrides = {key: value for key, value in changed.override_settings.items() if key != "sd_model_checkpoint"}
        changed = replace(
            changed,
            checkpoint=title,
            override_settings={**overrides, **({"sd_model_checkpoint": title} if title else {})},
            settings=changed.settings.with_changes({"sd_model_checkpoint": title}) if title else changed.settings,
        )
    check_names(changed, catalogue, upscalers)
    return changed


def request_infotext(request: GenerationRequest, catalogue: CheckpointCatalogue) -> str:
    """A request as the infotext that fills a form with it. Imports torch."""
    from modules.processing.record.describe import Facts, extra_fields, infotext, own_fields, schedule_label

    width, height = request.size_px
    fields = {
        **own_fields(request),
        "Seed": request.seed,
        "Sampler": SAMPLERS.get(request.sampler).name,
        "Schedule type": schedule_label(request.sampler, request.scheduler),
        "Size": f"{width}x{height}",
    }
    found = catalogue.find(request.checkpoint) if request.checkpoint else None
    if found is not None:
        fields["Model"] = found.model_name
        if found.shorthash:
            fields["Model hash"] = found.shorthash
    extra = extra_fields(request, request.prompt, request.negative_prompt, Facts())
    return infotext(request.prompt, request.negative_prompt, fields, extra)


def _taken(values: dict[str, Any], rows: Iterable[Parameter]) -> dict[str, Any]:
    """Take the values of these parameters out of `values`, by the names of the request's fields."""
    taken = {}
    for row in rows:
        if not row.api or row.api not in values:
            continue
        value = values.pop(row.api)
        try:
            taken[row.name] = row.from_api(_typed(row, value))
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"{row.message_name} is {value!r}, which is no value of it.") from error
    return taken


def _typed(row: Parameter, value: Any) -> Any:
    if value is None:
        return None
    if row.type is bool and not isinstance(value, bool):
        raise TypeError(value)
    if row.type is int and isinstance(value, str):  # seeds, which the page would round
        return whole_number(value)
    if row.type in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or (row.type is int and value != int(value)):
            raise TypeError(value)
        return row.type(value)
    if row.type is str and not isinstance(value, str):
        raise TypeError(value)
    if row.type is tuple and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise TypeError(value)
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
