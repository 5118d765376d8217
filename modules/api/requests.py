"""From a body to a `GenerationRequest`: names of the API to ours, settings snapshot, styles, the `infotext` field."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from modules.api.schemas import Txt2ImgBody
from modules.errors import InvalidValueError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.processing.checking import check_names
from modules.processing.pasting import pasted_hires, pasted_values
from modules.processing.request import GenerationRequest, HiresRequest
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, EtaSource, split_legacy_name
from modules.scripts.callbacks import Moment
from modules.scripts.library import filled_args, pasted_args
from modules.services import Services
from modules.settings.values import Settings

PER_CALL_SETTINGS = ("s_min_uncond", "s_churn", "s_tmin", "s_tmax", "s_noise")
# our field -> the API's, where they differ
API_NAMES = {
    "batch_count": "n_iter",
    "seed_resize_from_width": "seed_resize_from_w",
    "seed_resize_from_height": "seed_resize_from_h",
}
HIRES_API_NAMES = {
    "upscaler": "hr_upscaler",
    "scale": "hr_scale",
    "steps": "hr_second_pass_steps",
    "resize_width": "hr_resize_x",
    "resize_height": "hr_resize_y",
    "sampler": "hr_sampler_name",
    "scheduler": "hr_scheduler",
    "checkpoint": "hr_checkpoint_name",
    "prompt": "hr_prompt",
    "negative_prompt": "hr_negative_prompt",
    "denoising_strength": "denoising_strength",
}
DEFAULT_HIRES_STRENGTH = 0.75
SAME_AS_FIRST = {"Use same sampler", "Use same scheduler", "Use same checkpoint", ""}


def request_from(body: Txt2ImgBody, services: Services) -> GenerationRequest:
    """The request of a body, all of its names checked.

    The `infotext` field fills only what the caller did not set. Raises `FeatherweightError` for values and names
    that are not there.
    """
    _refuse_unbuilt(body)
    current = services.settings.current
    overrides = dict(body.override_settings or {})
    values = {name: body.value(API_NAMES.get(name, name)) for name in _plain_fields()}
    values["sampler"], values["scheduler"] = _sampler(body)
    if (values["refiner_checkpoint"] or "None") == "None":
        values["refiner_checkpoint"] = None
    hires = _hires_values(body) if body.enable_hr else None
    parsed: Mapping[str, Any] = {}
    if body.infotext:
        parsed = parse_infotext(body.infotext, backward_compatible=current.flag("auto_backcompat"))
        services.scripts.callbacks.call(Moment.INFOTEXT_PASTED, body.infotext, parsed)
        given = body.given()
        for name, value in pasted_values(parsed).items():
            if not given & _names_of(name):
                values[name] = value
        pasted = pasted_hires(parsed)
        if pasted is not None and "enable_hr" not in given:
            kept = {name: v for name, v in _hires_values(body).items() if HIRES_API_NAMES[name] in given}
            hires = {**pasted, **kept}
        overrides = {**override_settings_from(parsed, current), **overrides}
    settings = _settings(body, current, overrides, values["sampler"])
    book = StyleBook.read(services.paths.styles_files)
    styles = tuple(body.styles or ())
    values["prompt"] = book.apply_to_prompt(values["prompt"], styles)
    values["negative_prompt"] = book.apply_to_negative(values["negative_prompt"], styles)
    for name in ("seed_resize_from_width", "seed_resize_from_height"):
        values[name] = max(values[name], 0)
    for name in ("seed", "subseed"):
        values[name] = max(values[name], -1)
    request = GenerationRequest(
        **values,
        styles=styles,
        hires=HiresRequest(**hires) if hires is not None else None,
        tiling=settings.flag("tiling") if body.tiling is None else body.tiling,
        checkpoint=str(overrides["sd_model_checkpoint"]) if overrides.get("sd_model_checkpoint") else None,
        save_images=bool(body.save_images) and not body.do_not_save_samples,
        # As in the reference UI: a caller who saves nothing gets no grid either, not even in the reply.
        save_grid=bool(body.save_images) and not body.do_not_save_grid,
        override_settings=overrides,
        settings=settings,
        **_scripts(body, services, parsed),
    )
    check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
    return request


def _scripts(body: Txt2ImgBody, services: Services, parsed: Mapping[str, Any]) -> dict[str, Any]:
    """The selected script and the arguments of always-on ones, defaults filled in; of those that the caller does not
    name, what the infotext `parsed` gives."""
    values: dict[str, Any] = {}
    if body.script_name:
        script = services.scripts.find(body.script_name)
        values = {"script": script.title(), "script_args": filled_args(script, body.script_args or [])}
    given = {}
    for title, entry in (body.alwayson_scripts or {}).items():
        args = entry.get("args") if isinstance(entry, dict) else entry
        if not args and title.lower() not in {script.title().lower() for script in services.scripts.scripts}:
            continue  # stable-diffusion-api sends an empty ControlNet with every request
        script = services.scripts.find_alwayson(title)
        given[script.title()] = filled_args(script, args or [])
    for script in services.scripts.alwayson if parsed else ():
        args = pasted_args(script, parsed) if script.title() not in given else None
        if args is not None:
            given[script.title()] = args
    return {**values, "alwayson_args": given} if given else values


def _plain_fields() -> tuple[str, ...]:
    known = set(Txt2ImgBody.model_fields)
    skipped = ("tiling", "styles", "save_images", "override_settings", "script_args")
    return tuple(
        f.name
        for f in fields(GenerationRequest)
        if API_NAMES.get(f.name, f.name) in known and f.name not in (*skipped, "scheduler")
    )


def _names_of(name: str) -> set[str]:
    """The API fields through which a caller may have set one of ours."""
    return {"sampler_name", "sampler_index"} if name == "sampler" else {API_NAMES.get(name, name)}


def _sampler(body: Txt2ImgBody) -> tuple[str, str]:
    """Sampler and schedule; the newer field wins, and old names carry the schedule as a suffix."""
    name, suffix = split_legacy_name(body.sampler_name or body.value("sampler_index"))
    return name, body.scheduler or suffix or "Automatic"


def _hires_values(body: Txt2ImgBody) -> dict[str, Any]:
    values = {name: body.value(api_name) for name, api_name in HIRES_API_NAMES.items()}
    if values["denoising_strength"] is None:
        values["denoising_strength"] = DEFAULT_HIRES_STRENGTH
    values["upscaler"] = values["upscaler"] or "Latent"
    for name in ("sampler", "scheduler", "checkpoint"):
        values[name] = None if (values[name] or "") in SAME_AS_FIRST else values[name]
    if values["sampler"]:
        values["sampler"], suffix = split_legacy_name(values["sampler"])
        values["scheduler"] = values["scheduler"] or suffix
    return values


def _settings(body: Txt2ImgBody, current: Settings, overrides: dict[str, Any], sampler: str) -> Settings:
    """The snapshot that the job keeps; the stored settings stay as they are."""
    settings = current.with_changes(overrides)
    changes: dict[str, object] = {
        key: getattr(body, key) for key in PER_CALL_SETTINGS if getattr(body, key) is not None
    }
    source = SAMPLERS.get(sampler).eta
    if body.eta is not None and source is not EtaSource.NONE:
        changes[source.value] = body.eta
    return settings.with_changes(changes)


def _refuse_unbuilt(body: Txt2ImgBody) -> None:
    """What would silently change the image if it were ignored."""
    if body.firstphase_width or body.firstphase_height:
        raise InvalidValueError("firstphase_width and firstphase_height are no longer used: set hr_scale instead.")
