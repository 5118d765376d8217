"""Where code of an extension finds its own files: its folder on `sys.path`, and the packages `scripts` and
`extensions` that stand for the folders of all.

In the reference UI `scripts.helper` is a file beside the script that imports it, and `extensions.NAME.lib` one of
another extension. Of two extensions with a package of one name each gets its own while it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

SCRIPTS, EXTENSIONS, OURS = "scripts", "extensions", "compat"


def _package(name: str) -> ModuleType:
    """The package `name`, made of several folders; one that somebody else imported is taken as it is."""
    found = sys.modules.get(name)
    if found is None:
        found = ModuleType(name, "Folders of extensions.")
        found.__path__ = []
        found.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = found
    return found


def _put_first(paths: list[str], path: str) -> None:
    if path in paths:
        paths.remove(path)
    paths.insert(0, path)


def offer_folders(folders: Sequence[Path]) -> None:
    """`extensions.NAME` means the folder NAME in one of these."""
    paths: list[str] = list(getattr(_package(EXTENSIONS), "__path__", []))
    paths += [str(folder) for folder in folders if str(folder) not in paths]
    _package(EXTENSIONS).__path__ = paths


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """While open, this extension's folder comes first; afterwards it stays behind all others, for what it imports
    later, in its functions."""
    before = list(sys.path)
    make_room(folder)
    ours = _set_aside() if (folder / OURS).is_dir() or (folder / f"{OURS}.py").is_file() else None
    sys.path.insert(0, str(folder))
    places = list(_package(SCRIPTS).__path__)
    _put_first(places, str(folder / "scripts"))
    _package(SCRIPTS).__path__ = places
    try:
        yield
    finally:
        if ours is not None:
            sys.modules[OURS] = ours
        own = str(folder)
        added = [path for path in sys.path if path not in before and path != own]
        sys.path[:] = [*before, *added]
        if own not in sys.path:
            sys.path.append(own)


def _set_aside() -> ModuleType:
    """Take the package that this file is in out of Python's table, for an extension that has one of its name. All of it
    is imported before, so that nothing looks for the rest of it in the extension's. Returns the package."""
    package = import_module(OURS)
    for found in walk_packages(package.__path__, f"{OURS}."):
        if found.name not in sys.modules and not found.name.endswith("run_installer"):
            import_module(found.name)
    return sys.modules.pop(OURS)


def make_room(folder: Path) -> list[str]:
    """Take modules of other extensions whose names this folder has too out of Python's table, so that the next import
    finds this extension's own; who imported the others keeps them. Returns their names."""
    taken = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.startswith("featherweight_scripts."):
            continue
        is_beside = Path(file).is_relative_to(folder.parent) and not Path(file).is_relative_to(folder)
        own = folder.joinpath(*name.split("."))
        if is_beside and (own.with_suffix(".py").is_file() or own.is_dir()):
            taken.append(name)
    for name in taken:
        del sys.modules[name]
    return taken
