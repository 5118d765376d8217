"""`modules.patches`: one attribute of an object replaced and put back. What extensions replace among names of the
reference UI is theirs alone: other extensions see it, the program does not ask there."""

from collections.abc import Hashable
from typing import Any

from modules.errors import InvalidValueError

originals: dict[Hashable, dict[tuple[Any, str], Any]] = {}
"""Originals by key, and there by object and attribute."""


def patch(key: Hashable, obj: Any, field: str, replacement: Any) -> Any:
    """Replace an attribute and return what stood there. Raises RuntimeError where this key has replaced it already, and
    `InvalidValueError` for classes of PyTorch, of which all models are made."""
    if getattr(obj, "__module__", "").partition(".")[0] == "torch":
        raise InvalidValueError(
            f"{obj.__name__}.{field} is not replaced: all models are made of it. on_cfg_denoiser and its like change "
            "each step."
        )
    own = originals.setdefault(key, {})
    if (obj, field) in own:
        raise RuntimeError(f"{field} was replaced under the key {key!r} already.")
    own[obj, field] = found = getattr(obj, field)
    setattr(obj, field, replacement)
    return found


def undo(key: Hashable, obj: Any, field: str) -> None:
    """Put back what stood there. Raises RuntimeError where nothing was replaced under this key."""
    if (obj, field) not in originals.get(key, {}):
        raise RuntimeError(f"{field} was not replaced under the key {key!r}.")
    setattr(obj, field, originals[key].pop((obj, field)))


def original(key: Hashable, obj: Any, field: str) -> Any:
    """Return what stood there; None where nothing was replaced under this key."""
    return originals.get(key, {}).get((obj, field))
