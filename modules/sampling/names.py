"""Names of samplers and schedule types as images, styles of old versions and other programs write them, as those here.

Before version 1.9 the reference UI had one list in which a sampler and its schedule were one name, "DPM++ 2M Karras".
Everything that reads a name from outside asks here: API, pasted images, grids, prompts from files, imported defaults.
"""

from typing import Any

from modules.errors import UnknownNameError
from modules.sampling.catalog import SAMPLERS, SCHEDULES, ScheduleSpec

AUTOMATIC = "Automatic"
UNIFORM = "Uniform"
KARRAS_BEFORE_1_9 = frozenset({"Restart"})
"""Samplers whose plain name meant Karras sigmas already; that of all others meant the model's own, uniform ones."""

ELSEWHERE = {
    # k-diffusion, ComfyUI
    "euler_ancestral": "Euler a",
    "dpm_2": "DPM2",
    "dpm_2_ancestral": "DPM2 a",
    "dpm_fast": "DPM fast",
    "dpm_adaptive": "DPM adaptive",
    "dpmpp_2s_ancestral": "DPM++ 2S a",
    "dpmpp_sde": "DPM++ SDE",
    "dpmpp_2m": "DPM++ 2M",
    "dpmpp_2m_sde": "DPM++ 2M SDE",
    "dpmpp_2m_sde_heun": "DPM++ 2M SDE Heun",
    "dpmpp_3m_sde": "DPM++ 3M SDE",
    "uni_pc": "UniPC",
    "uni_pc_bh2": "UniPC",
    "unipcmultistep": "UniPC",
    "ddim_cfg_pp": "DDIM CFG++",
    # InvokeAI
    "euler_a": "Euler a",
    "kdpm_2": "DPM2",
    "kdpm_2_a": "DPM2 a",
    # InvokeAI 2
    "k_dpmpp_2": "DPM++ 2M",
    "k_dpmpp_2_a": "DPM++ 2S a",
    # NovelAI
    "ddim_v3": "DDIM",
    "k_dpm_2_ancestral": "DPM2 a",
    "k_dpm_adaptive": "DPM adaptive",
    "k_dpmpp_2s_ancestral": "DPM++ 2S a",
    # diffusers, SD.Next
    "dpm++ 2m edm": "DPM++ 2M",
    "dpm2++ 2m": "DPM++ 2M",
    "dpm sde": "DPM++ SDE",
    "euler ancestral": "Euler a",
    "eulerdiscrete": "Euler",
    "eulerancestraldiscrete": "Euler a",
    "flowmatcheulerdiscrete": "Euler",
    "dpmsolvermultistep": "DPM++ 2M",
    "dpmsolversde": "DPM++ SDE",
    "heundiscrete": "Heun",
    "lmsdiscrete": "LMS",
    "kdpm2discrete": "DPM2",
    "kdpm2ancestraldiscrete": "DPM2 a",
    "pndm": "PLMS",
    # stable-diffusion.cpp, Mochi Diffusion
    "dpm++2m": "DPM++ 2M",
    "dpm++2s_a": "DPM++ 2S a",
    "dpm-solver++": "DPM++ 2M",
}
"""Samplers by names of other programs, in lower case."""

SCHEDULES_ELSEWHERE = {
    "ddim_uniform": "DDIM",
    "native": AUTOMATIC,
    "trailing": "SGM Uniform",
    "ays": "Align Your Steps",
}
"""Schedule types by names of other programs, in lower case; "trailing" is the spacing of the timesteps."""

SHORT_ENDINGS = {"ka": "Karras", "exp": "Exponential", "k": "Karras", "karras": "Karras", "exponential": "Exponential"}
"""Of names with underscores: `k_dpmpp_2m_ka` of the reference UI, `dpmpp_2m_k` of InvokeAI, `dpmpp_2m_karras`."""


def split_legacy_name(name: str) -> tuple[str, str]:
    """Split an old combined name into sampler and schedule label: "DPM++ 2M Karras" -> ("DPM++ 2M", "Karras").

    A plain sampler name or alias gives (its registered name, "Automatic"). Raises `UnknownNameError` otherwise.
    """
    plain = sampler_named(name)
    if plain is not None:
        return plain, AUTOMATIC
    lowered = name.strip().lower()
    for ending, label in _endings():
        head = sampler_named(lowered[: -len(ending)]) if lowered.endswith(ending) else None
        if head is not None:
            return head, label
    return SAMPLERS.canonical(name), AUTOMATIC


def split_names(values: dict[str, Any]) -> dict[str, Any]:
    """Values with "sampler" and "scheduler", a combined sampler name split into both: what the name says wins.

    A sampler that is None, and one that there is not, stay: who checks the request names them.
    """
    name = values.get("sampler")
    if not isinstance(name, str) or name in SAMPLERS:
        return values
    try:
        sampler, schedule = split_legacy_name(name)
    except UnknownNameError:
        return values
    return {**values, "sampler": sampler, **({} if schedule == AUTOMATIC else {"scheduler": schedule})}


def sampler_named(name: str) -> str | None:
    """The registered name of the sampler that a name without a schedule means; None: there is none here."""
    text = name.strip().lower()
    if text in SAMPLERS:
        return SAMPLERS.canonical(text)
    # The same sampler: ComfyUI's with its noise from the GPU, k-diffusion's function of it, diffusers' class.
    text = text.removesuffix("_gpu").removeprefix("sample_").removesuffix("scheduler")
    return SAMPLERS.canonical(text) if text in SAMPLERS else ELSEWHERE.get(text)


def schedule_named(name: str) -> str | None:
    """The label of the schedule type that a name means; None: there is none here."""
    text = name.strip().lower()
    return SCHEDULES.get(text).label if text in SCHEDULES else SCHEDULES_ELSEWHERE.get(text)


def schedule_before_1_9(sampler: str) -> str:
    """The schedule label for what a plain sampler name of those versions did: Automatic would be Karras for many."""
    spec = SAMPLERS.get(sampler)
    return AUTOMATIC if spec.default_scheduler is None or spec.name in KARRAS_BEFORE_1_9 else UNIFORM


def is_usual(sampler: str, schedule: str) -> bool:
    """Whether a schedule is what Automatic means for the sampler."""
    default = SAMPLERS.get(sampler).default_scheduler
    return schedule == AUTOMATIC or (default is not None and SCHEDULES.get(default).label == schedule)


def _endings() -> list[tuple[str, str]]:
    """How combined names end, in lower case, with the schedule's label; the longest first, because "SGM Uniform" must
    be seen before "Uniform"."""
    specs: list[ScheduleSpec] = [spec for _, spec in SCHEDULES.items()]
    found = [(f" {one.lower()}", spec.label) for spec in specs for one in (spec.label, spec.name, *spec.aliases)]
    found += [(f" {name}", label) for name, label in SCHEDULES_ELSEWHERE.items()]
    found += [(f"_{ending}", label) for ending, label in SHORT_ENDINGS.items()]
    return sorted(found, key=lambda pair: -len(pair[0]))
