"""`modules.sd_schedulers`: the schedule types by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compat.facades.refusal import refusing
from modules.sampling.catalog import SCHEDULES


@dataclass(frozen=True)
class Scheduler:
    """One schedule type; `function` is the program's own, or None."""

    name: str
    label: str
    function: Any = None
    default_rho: float = -1
    need_inner_model: bool = False
    aliases: list[str] | None = None


schedulers = [
    Scheduler(one.name, one.label, None, one.default_rho, one.need_inner_model, list(one.aliases))
    for _, one in SCHEDULES.items()
]
schedulers_map = {**{one.name: one for one in schedulers}, **{one.label: one for one in schedulers}}
__getattr__ = refusing(
    "sd_schedulers",
    dict.fromkeys(
        ("uniform", "sgm_uniform", "kl_optimal", "simple_scheduler", "normal_scheduler", "ddim_scheduler"),
        "p.scheduler names a schedule type, which the program computes.",
    ),
)
