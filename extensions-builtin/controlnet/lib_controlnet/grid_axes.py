"""Axes of X/Y/Z plots: a field of the first unit, or of all where there are several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lib_controlnet.files import list_models
from lib_controlnet.preprocessors import MODULES
from lib_controlnet.resize_mode import ResizeMode
from lib_controlnet.units import NO_MODEL, ControlMode
from modules.scripts.axes import Axis, add_axis
from modules.scripts.program import Program

NUMBERS = {
    "Weight": "weight",
    "Guidance start": "guidance_start",
    "Guidance end": "guidance_end",
    "Resolution": "processor_res",
    "Threshold A": "threshold_a",
    "Threshold B": "threshold_b",
}
NAMES: dict[str, tuple[str, Callable[[Program], list[str]]]] = {
    "Model": ("model", lambda program: [NO_MODEL, *(model.title for model in list_models(program))]),
    "Preprocessor": ("module", lambda program: [module.label for module in MODULES.values()]),
    "Control mode": ("control_mode", lambda program: [mode.value for mode in ControlMode]),
    "Resize mode": ("resize_mode", lambda program: [mode.value for mode in ResizeMode]),
}


def add_axes(title: str) -> None:
    """Add them. While the extension's file is loaded."""

    def applying(key: str) -> Callable[[Any, Any, Sequence[Any]], None]:
        def apply(p: Any, value: Any, values: Sequence[Any]) -> None:
            p.script_values = {**p.script_values, title: {**p.script_values.get(title, {}), key: value}}

        return apply

    for label, key in NUMBERS.items():
        add_axis(Axis(f"[{title}] {label}", float, applying(key), is_number=True))
    for label, (key, choices) in NAMES.items():
        add_axis(Axis(f"[{title}] {label}", str, applying(key), choices=choices))
