"""`modules.lowvram`: which parts of a model lie on the device is decided by the settings of streaming and offload."""

from __future__ import annotations

from typing import Any

from compat.facades.devices import main_cpu
from compat.facades.refusal import lazy


def is_enabled(sd_model: Any) -> bool:
    """Never: the reference UI's way of moving parts of a model is not used."""
    return False


def is_needed(sd_model: Any) -> bool:
    """Never, as above."""
    return False


def send_everything_to_cpu() -> None:
    """The program moves parts of a model by itself."""


def setup_for_low_vram(sd_model: Any, use_medvram: bool) -> None:
    """The program moves parts of a model by itself."""


def apply(sd_model: Any) -> None:
    """The program moves parts of a model by itself."""


__getattr__ = lazy("lowvram", {"cpu": main_cpu, "module_in_gpu": lambda: None}, {})
