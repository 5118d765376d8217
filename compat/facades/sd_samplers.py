"""`modules.sd_samplers`: the samplers by name."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import refusing
from compat.facades.sd_samplers_common import REASONS, SamplerData
from modules.sampling.catalog import SAMPLERS, SamplerSpec
from modules.sampling.names import split_legacy_name

__all__ = [
    "SamplerData",
    "all_samplers",
    "all_samplers_map",
    "create_sampler",
    "find_sampler_config",
    "get_sampler_and_scheduler",
    "samplers",
    "samplers_for_img2img",
    "samplers_map",
    "visible_sampler_names",
]


def _refused(*args: Any, **keywords: Any) -> Any:
    raise AttributeError("Samplers are run by the program: set p.sampler_name and give p to process_images(p).")


def _data(spec: SamplerSpec) -> SamplerData:
    return SamplerData(spec.name, _refused, list(spec.aliases), dict(spec.options))


all_samplers = [_data(spec) for _, spec in SAMPLERS.items()]
all_samplers_map = {one.name: one for one in all_samplers}
samplers = list(all_samplers)
samplers_for_img2img = list(all_samplers)
samplers_map = {name.lower(): one.name for one in all_samplers for name in (one.name, *one.aliases)}
samplers_hidden: set[str] = set()


def find_sampler_config(name: str | None) -> SamplerData | None:
    """The sampler of a name or alias; the first one for None."""
    if name is None:
        return all_samplers[0]
    return all_samplers_map.get(SAMPLERS.canonical(name)) if name in SAMPLERS else None


def create_sampler(name: str, model: Any) -> Any:
    """Refused: samplers are run by the program."""
    return _refused()


def set_samplers() -> None:
    """All samplers are always there."""


def visible_sampler_names() -> list[str]:
    """The names of all samplers."""
    return [one.name for one in all_samplers]


def visible_samplers() -> list[SamplerData]:
    """All samplers."""
    return list(all_samplers)


def get_sampler_from_infotext(d: dict[str, Any]) -> str:
    """The sampler that an infotext's fields name."""
    return get_sampler_and_scheduler(d.get("Sampler"), d.get("Schedule type"))[0]


def get_scheduler_from_infotext(d: dict[str, Any]) -> str:
    """The schedule type that an infotext's fields name."""
    return get_sampler_and_scheduler(d.get("Sampler"), d.get("Schedule type"))[1]


def get_sampler_and_scheduler(
    sampler_name: str | None, scheduler_name: str | None, *, convert_automatic: bool = True
) -> tuple[str, str]:
    """Sampler and schedule type; an old name such as "DPM++ 2M Karras" names both."""
    name, schedule = split_legacy_name(sampler_name or all_samplers[0].name)
    return name, schedule if schedule != "Automatic" else scheduler_name or "Automatic"


def get_hr_sampler_and_scheduler(d: dict[str, Any]) -> tuple[str, str]:
    """Sampler and schedule type of the second pass that an infotext's fields name; those of the first are "Use same
    sampler" and "Use same scheduler"."""
    name, schedule = d.get("Hires sampler"), d.get("Hires schedule type")
    if name in (None, "Use same sampler"):
        return "Use same sampler", str(schedule or "Use same scheduler")
    return get_sampler_and_scheduler(str(name), schedule)


def get_hr_sampler_from_infotext(d: dict[str, Any]) -> str:
    """The sampler alone."""
    return get_hr_sampler_and_scheduler(d)[0]


def get_hr_scheduler_from_infotext(d: dict[str, Any]) -> str:
    """The schedule type alone."""
    return get_hr_sampler_and_scheduler(d)[1]


def fix_p_invalid_sampler_and_scheduler(p: Any) -> None:
    """Give a job the sampler and the schedule type that an old name such as "DPM++ 2M Karras" means."""
    p.sampler_name, p.scheduler = get_sampler_and_scheduler(p.sampler_name, p.scheduler)


__getattr__ = refusing("sd_samplers", REASONS)
