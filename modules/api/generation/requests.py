"""From a body to a `GenerationRequest`: names of the API to ours, settings snapshot, styles, the `infotext` field."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from modules.api.generation.init_images import references_of, start_from
from modules.api.schema.schemas import GenerationBody, ImageBody
from modules.errors import InvalidValueError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.images.other_programs import usual_infotext
from modules.processing.request.checking import check_names
from modules.processing.request.parameters import Parameter
from modules.processing.request.pasting import pasted_hires, pasted_values
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS, GenerationRequest, HiresRequest
from modules.processing.request.source_images import FromImage, FromNoise, RequestStart, check_start
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, EtaSource
from modules.sampling.names import split_legacy_name
from modules.scripts.callbacks import Moment
from modules.scripts.library import pasted_args, read_args
from modules.services import Services
from modules.settings.values import Settings

PER_CALL_SETTINGS = ("s_min_uncond", "s_churn", "s_tmin", "s_tmax", "s_noise")


def request_from(body: GenerationBody, services: Services) -> GenerationRequest:
    """The request of a body, all of its names checked.

    The `infotext` field fills only what the caller did not set. Raises `FeatherweightError` for values and names
    that are not there.
    """
    current = services.settings.current
    overrides = dict(body.override_settings or {})
    values = _values(body, REQUEST_ROWS)
    values["sampler"], values["scheduler"] = _sampler(body)
    has_hires = not isinstance(body, ImageBody)
    values |= _first_pass_size(body)
    hires = _hires_values(body) if body.enable_hr and has_hires else None
    parsed: Mapping[str, Any] = {}
    if body.infotext:
        written = usual_infotext(body.infotext)
        parsed = parse_infotext(written, backward_compatible=current.compatibility.auto_backcompat)
        services.scripts.callbacks.call(Moment.INFOTEXT_PASTED, body.infotext, parsed)
        given = body.given()
        values |= _pasted(pasted_values(parsed), _left_out(REQUEST_ROWS, given))
        pasted_pass = pasted_hires(parsed)
        if pasted_pass is not None and has_hires and "enable_hr" not in given:
            left_out = {row.name for row in _left_out(HIRES_ROWS, given)}
            stated = {name: value for name, value in _hires_values(body).items() if name not in left_out}
            hires = _pasted(pasted_pass, HIRES_ROWS) | stated
        overrides = {**override_settings_from(parsed, current), **overrides}
    start: RequestStart = FromNoise(references_of(body, current))
    if isinstance(body, ImageBody):
        start = start_from(body, current, parsed)
    settings = _settings(body, current, overrides, values["sampler"])
    book = StyleBook.read(services.paths.styles_files)
    values["prompt"] = book.apply_to_prompt(values["prompt"], values["styles"])
    values["negative_prompt"] = book.apply_to_negative(values["negative_prompt"], values["styles"])
    if body.value("tiling") is None:
        values["tiling"] = settings.stable_diffusion.tiling
    request = GenerationRequest(
        **values,
        start=start,
        hires=HiresRequest(**hires) if hires is not None else None,
        checkpoint=str(overrides["sd_model_checkpoint"]) if overrides.get("sd_model_checkpoint") else None,
        save_images=bool(body.save_images) and not body.do_not_save_samples,
        # As in the reference UI: a caller who saves nothing gets no grid either, not even in the reply.
        save_grid=bool(body.save_images) and not body.do_not_save_grid,
        override_settings=overrides,
        settings=settings,
        **_scripts(body, services, parsed),
    )
    if isinstance(start, FromImage):
        check_start(start, request.batch_size)
    check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
    return request


def _scripts(body: GenerationBody, services: Services, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The selected script and the arguments of always-on ones, defaults filled in; of those that the caller does not
    name, what the infotext `parsed` gives."""
    is_img2img = isinstance(body, ImageBody)
    values: dict[str, Any] = {}
    if body.script_name:
        script = services.scripts.find(body.script_name, is_img2img)
        values = {
            "script": script.title(),
            "script_args": read_args(script, body.script_args or [], body.script_name),
        }
    given = {}
    for title, entry in (body.alwayson_scripts or {}).items():
        args = entry.get("args") if isinstance(entry, dict) else entry
        if not args and title.lower() not in {script.title().lower() for script in services.scripts.scripts}:
            continue  # stable-diffusion-api sends an empty ControlNet with every request
        script = services.scripts.find_alwayson(title, is_img2img)
        if script.title() in given:
            raise InvalidValueError(f"{title} is given twice: it is another name of {script.title()}. Give it once.")
        given[script.title()] = read_args(script, args or [], title)
    for script in services.scripts.alwayson_of(is_img2img) if parsed else ():
        args = pasted_args(script, parsed) if script.title() not in given else None
        if args is not None:
            given[script.title()] = args
    return {**values, "alwayson_args": given} if given else values


def _values(body: GenerationBody, rows: Iterable[Parameter]) -> dict[str, Any]:
    """Return the body's values of these parameters, by the names of the request's fields."""
    return {row.name: row.from_api(body.value(row.api)) for row in rows if row.api}


def _left_out(rows: Iterable[Parameter], given: Collection[str]) -> list[Parameter]:
    """The parameters that the caller did not set; an old client names the sampler in `sampler_index`."""
    names = {*given, *(["sampler_name"] if "sampler_index" in given else [])}
    return [row for row in rows if row.api not in names]


def _pasted(values: Mapping[str, Any], rows: Iterable[Parameter]) -> dict[str, Any]:
    """Return an infotext's values for these parameters, with numbers as in a body: 5 is 5.0 where the API takes a
    fraction."""
    kept = {row.name: row for row in rows if row.name in values}
    return {
        name: float(values[name]) if row.type is float and values[name] is not None else values[name]
        for name, row in kept.items()
    }


def _sampler(body: GenerationBody) -> tuple[str, str]:
    """Sampler and schedule; the newer field wins, and old names carry the schedule as a suffix."""
    name, suffix = split_legacy_name(body.value("sampler_name") or body.value("sampler_index"))
    return name, body.value("scheduler") or suffix or "Automatic"


def _hires_values(body: GenerationBody) -> dict[str, Any]:
    values = _values(body, HIRES_ROWS)
    values["upscaler"] = values["upscaler"] or "Latent"
    if values["sampler"]:
        values["sampler"], suffix = split_legacy_name(values["sampler"])
        values["scheduler"] = values["scheduler"] or suffix
    return values


def _settings(body: GenerationBody, current: Settings, overrides: dict[str, Any], sampler: str) -> Settings:
    """The snapshot that the job keeps; the stored settings stay as they are."""
    settings = current.with_changes(overrides)
    changes: dict[str, object] = {
        key: getattr(body, key) for key in PER_CALL_SETTINGS if getattr(body, key) is not None
    }
    if body.restore_faces is not None:
        changes["face_restoration"] = body.restore_faces
    source = SAMPLERS.get(sampler).eta
    if body.eta is not None and source is not EtaSource.NONE:
        changes[source.value] = body.eta
    return settings.with_changes(changes)


def _first_pass_size(body: GenerationBody) -> dict[str, Any]:
    """The size of the first pass where an old client names it by itself; hires fix enlarges it by `hr_scale`."""
    width, height = body.firstphase_width or 0, body.firstphase_height or 0
    if not width and not height:
        return {}
    if width <= 0 or height <= 0:
        raise InvalidValueError(
            f"firstphase_width and firstphase_height are {width} and {height}: both are the size of the first pass in "
            "pixels. Set both, or neither and hr_scale instead."
        )
    return {"width": width, "height": height}
