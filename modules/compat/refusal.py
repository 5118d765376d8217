"""How a facade says that it has not a name."""

from collections.abc import Callable, Mapping
from typing import Any

TABLE = "docs/extensions.md has the table of supported names"


def refusing(module: str, reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: each name of the reference UI in `reasons` with what to use instead, any other with
    where the supported ones are listed."""

    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'modules.{module}' has no attribute {name!r}")
        reason = reasons.get(name, f"{TABLE}.")
        raise AttributeError(
            f"module 'modules.{module}' has no attribute {name!r}: it is not supported here; {reason}", name=name
        )

    return refuse


def lazy(module: str, makers: Mapping[str, Callable[[], Any]], reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names whose value is looked up each time, and `refusing` for the others."""
    refuse = refusing(module, reasons)
    return lambda name: makers[name]() if name in makers else refuse(name)


class Named:
    """A stand-in for an object of the reference UI that can be imported and passed around; whatever is asked of it is
    refused with `reason`."""

    def __init__(self, name: str, reason: str) -> None:
        self._name = name
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._name}.{name} is not supported here: {self._reason}", name=name)

    def __bool__(self) -> bool:
        return False
