"""Importing large packages with less: no search for garbage meanwhile, and none of what is not asked of them.

Standard library only.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """For imports: what they make stays, and looking through it again and again takes a fifth of their time. If a
    module was imported, what there is at the end is not looked through later either; else it would be what a job has
    made, a model that is let go later too, and stay for good. Where collection is off already, nothing is changed."""
    if not gc.isenabled():
        yield
        return
    known = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        gc.enable()


class _Awaited(ModuleType):
    """A package that is not imported yet. The first use of something in it does that, and makes it a usual module; so
    does the import of a part of it, for which Python asks for `__path__`. (`importlib.util.LazyLoader` imports at the
    next import statement already, which looks at `__spec__`.)"""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and not hasattr(vars(self).get("_found"), "__path__"):
            raise AttributeError(name)  # each `from module import name` asks for it
        whole = _whole(self)
        there = sys.modules.get(whole.__name__, whole)  # packages may put something else in their place
        return object.__getattribute__(whole, name) if there is whole else getattr(there, name)


class _AwaitedPath(list[str]):
    """The folders of an awaited package, present for `from package import name`; who searches them for a part of it
    imports the whole."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self._module = module

    def __iter__(self) -> Iterator[str]:
        return iter(_whole(self._module).__path__)


_IMPORTING = RLock()
"""Held while an awaited package is imported: others wait until it is whole."""


def _whole(module: ModuleType) -> ModuleType:
    """The package, imported where it was awaited."""
    own = vars(module)
    with _IMPORTING:
        if type(module) is _Awaited and "_found" in own:
            found, later = own.pop("_found"), own.pop("_later")
            for name in later:
                del own[name]
            own.update(vars(found))
            try:
                found.__spec__.loader.exec_module(module)
            except BaseException:
                own.pop("__path__", None)
                own.update(later, _found=found, _later=later)
                raise
            module.__class__ = ModuleType  # type: ignore[assignment]
    return module


def _called_later(module: ModuleType, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(_whole(module), name)(*args, **kwargs)

    return call


def import_when_used(package: str, *functions: str, parts_alone: bool = False) -> None:
    """Have `package` imported by the first use of something in it, not where it is named. For packages that others
    import for what is hardly ever called. `functions` of it may be imported from it by name, and import it when they
    are called. With `parts_alone` its modules are imported without it. Without effect where it is not installed, or
    imported already."""
    spec = find_spec(package) if package not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    module, found = _Awaited(package), module_from_spec(spec)
    # Many look at the file of every module there is, `inspect` for one, and use nothing in it.
    vars(module).update({name: value for name, value in vars(found).items() if name not in ("__path__", "__doc__")})
    if parts_alone and hasattr(found, "__path__"):
        vars(module)["__path__"] = found.__path__
    later: dict[str, Any] = {name: _called_later(module, name) for name in functions}
    if later:
        later["__path__"] = _AwaitedPath(module)
    vars(module).update(later, _found=found, _later=later)
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)


def unchanged_until_used(package: str, *functions: str, parts: Sequence[str] = ()) -> None:
    """Have these functions of an awaited package return what they are given, until something else in it is used: what
    they decorate or check. `parts`: modules of it that are imported without it, now."""
    module = sys.modules.get(package)
    if type(module) is not _Awaited:
        return
    own, found = vars(module), dict.fromkeys(functions, _unchanged)
    own.update(found)
    own["_later"].update(found)
    if parts:
        own["__path__"] = own["_found"].__path__
        for part in parts:
            import_module(f"{package}.{part}")
        own["__path__"] = own["_later"]["__path__"] = _AwaitedPath(module)


def _unchanged(given: Any = None, *_: object, **__: object) -> Any:
    return _unchanged if given is None else given
