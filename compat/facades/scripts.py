"""Names that extensions import from `modules.scripts` besides our own names: lists of scripts, and their folders."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, overload

from compat.facades import paths_internal
from compat.facades.refusal import lazy
from compat.host import host_now
from compat.job_scripts import JobScripts
from compat.processing import making_of_run
from modules.scripts.acting import acting_now
from modules.scripts.loading import calling_file

__all__ = ["JobScripts", "ScriptClassData", "ScriptFile", "ScriptRunner", "basedir", "list_scripts", "scripts_data"]

ScriptRunner = JobScripts


class ScriptClassData(NamedTuple):
    """A script's class with its file, the folder of its extension, and the module that it stands in."""

    script_class: type
    path: str
    basedir: str
    module: ModuleType


class ScriptFile(NamedTuple):
    """A file of an extension."""

    basedir: str
    filename: str
    path: str


class PostprocessImageArgsList(list[Any]):
    """Unused; kept so that the name can be imported."""


def basedir() -> str:
    """The folder of the extension whose code runs; the program's own folder elsewhere."""
    author = acting_now() or calling_file()
    return str(author.owner.folder) if author is not None else paths_internal.script_path


def current_basedir() -> str:
    """Return the same."""
    return basedir()


def list_scripts(scriptdirname: str, extension: str, *, include_extensions: bool = True) -> list[ScriptFile]:
    """The files of this suffix in a folder ("scripts", "javascript") of each extension."""
    found = []
    for one in host_now().scripts.extensions.values():
        if one.is_enabled:
            files = sorted((one.folder / scriptdirname).glob(f"*{extension}"))
            found += [ScriptFile(str(one.folder), file.name, str(file)) for file in files]
    return found


def wrap_call(func: Any, filename: str, funcname: str, *args: Any, default: Any = None, **kwargs: Any) -> Any:
    """Call a function; what it raises is written into the log, and `default` is given."""
    from compat.facades.scripts_postprocessing import wrap_call as call

    return call(func, filename, funcname, *args, default=default, **kwargs)


def list_files_with_name(filename: str) -> list[str]:
    """The files of this name in the folders of extensions."""
    folders = [one.folder for one in host_now().scripts.extensions.values() if one.is_enabled]
    return [str(folder / filename) for folder in folders if (folder / filename).is_file()]


class _ScriptsData(Sequence[ScriptClassData]):
    """All scripts that were loaded, and the module of X/Y/Z plots under the name that extensions look for."""

    def _now(self) -> list[ScriptClassData]:
        found = []
        for script in {type(one): one for one in host_now().scripts.scripts}.values():  # one for each class
            file = Path(script.filename)
            made = type(script)
            module = sys.modules.get(made.__module__) or ModuleType(file.stem)
            if file.name == XYZ_GRID:
                made, module = type(made.__name__, (made,), {"__module__": XYZ_GRID}), _xyz_module()
            found.append(ScriptClassData(made, script.filename, str(file.parents[1]), module))
        return found

    @overload
    def __getitem__(self, index: int) -> ScriptClassData: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ScriptClassData]: ...
    def __getitem__(self, index: int | slice) -> ScriptClassData | Sequence[ScriptClassData]:
        return self._now()[index]

    def __iter__(self) -> Iterator[ScriptClassData]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


XYZ_GRID = "xyz_grid.py"


def _xyz_module() -> ModuleType:
    from compat.facades import xyz_grid

    return xyz_grid


scripts_data = _ScriptsData()
postprocessing_scripts_data: list[Any] = []


def _runner(is_img2img: bool) -> JobScripts:
    """The scripts of a tab, each with the place of its arguments. Asked for outside of a job, these are the defaults of
    their controls."""
    library = host_now().scripts
    if making_of_run() is None:
        return JobScripts.with_defaults(library, is_img2img)
    alwayson = [(one, ()) for one in library.alwayson_of(is_img2img)]
    return JobScripts.of(alwayson, library.selectable_of(is_img2img), is_img2img)


_REASONS = {
    "scripts_current": "p.scripts is the same.",
    "reload_scripts": "the page is built again by Reload UI; scripts are loaded at a start.",
    "load_scripts": "scripts are loaded at a start.",
    "reload_script_body_only": "scripts are loaded at a start.",
    "add_classes_to_gradio_component": "give elem_classes to a component.",
    "IOComponent_init": "script_callbacks.on_after_component sees each component.",
    "ScriptBuiltinUI": "a script of an extension subclasses Script.",
}
_LAZY: dict[str, Any] = {
    "scripts_txt2img": lambda: _runner(False),
    "scripts_img2img": lambda: _runner(True),
    "scripts_current": lambda: _runner(False),
    "scripts_postproc": lambda: host_now().scripts.operations,
    "topological_sort": lambda: list,
    "callback_map": lambda: {},
}
__getattr__ = lazy("scripts", _LAZY, _REASONS)
