"""Importing spandrel without torchvision.

spandrel asks for torchvision, of which only two architectures use anything: RestoreFormer one function, which is
here, and LaMa, which makes no image larger. A placeholder is in `sys.modules` while spandrel is imported and is missing
afterwards: other packages decide by its presence what they can do.
"""

import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from modules.errors import CheckpointError

_LOCK = threading.Lock()
_NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")


def import_spandrel() -> Any:
    """The package; raises `CheckpointError` that says how to get it where it is not installed."""
    with _LOCK:
        if "spandrel" in sys.modules:
            return sys.modules["spandrel"]
        if importlib.util.find_spec("spandrel") is None:
            raise CheckpointError(
                "Upscaler files need the package spandrel, which is not installed. "
                "Start with launch.py, which installs it, or: pip install --no-deps -r requirements-nodeps.txt"
            )
        of_extensions = {name: sys.modules[name] for name in _NAMES if _is_of_extensions(name)}
        if not of_extensions and importlib.util.find_spec("torchvision") is not None:
            return importlib.import_module("spandrel")
        sys.modules.update(_stand_in())
        try:
            return importlib.import_module("spandrel")
        finally:
            for name in _NAMES:
                del sys.modules[name]
            sys.modules.update(of_extensions)


def _is_of_extensions(name: str) -> bool:
    """Whether extensions imported this module of their own stand-in, which is none for spandrel."""
    return "torchvision" in sys.modules and name in sys.modules and hasattr(sys.modules["torchvision"], "IS_STAND_IN")


def _stand_in() -> dict[str, ModuleType]:
    modules = {name: ModuleType(name) for name in _NAMES}
    functional: Any = modules[_NAMES[2]]
    for name in ("InterpolationMode", "rotate"):
        setattr(functional, name, _missing(name))
    functional.normalize = _normalize
    return modules


def _normalize(images: Any, mean: Sequence[float], std: Sequence[float]) -> Any:
    """Images [B,C,H,W] less a mean, by a standard deviation, for each channel."""
    result = images.clone()
    for channel, (middle, spread) in enumerate(zip(mean, std, strict=True)):
        result[:, channel] = (images[:, channel] - middle) / spread
    return result


def _missing(name: str) -> type:
    def fail(self: object, *_: object) -> None:
        raise CheckpointError(f"This model needs torchvision ({name}), which is not installed. Choose another file.")

    return type(name, (), {"__init__": fail})
