"""The scripts of all extensions: found, loaded, and listed. A faulty one is left out and said so by name."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from modules.detection.detection import AllDetectors, Detectors
from modules.errors import InvalidValueError, UnknownNameError
from modules.flags.flags import Flags
from modules.postprocessing.operation import ScriptPostprocessing
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage
from modules.scripts.acting import Acting, acting
from modules.scripts.adapters import ExtraNetworks
from modules.scripts.callbacks import Callbacks, Moment
from modules.scripts.extension import Extension, Fault
from modules.scripts.foreign import PLAIN, ForeignLoading
from modules.scripts.form_operations import FormOperation
from modules.scripts.loading import Loading, mark_module, while_loading
from modules.scripts.pasting import PastedFields
from modules.scripts.program import Program
from modules.scripts.script import OnComponent, Script
from modules.settings.values import Settings
from modules.system.paths import Paths
from modules.system.texts import page_text

log = logging.getLogger(__name__)

C = TypeVar("C")
BUILT_IN = Path(__file__).resolve().parents[2] / "extensions-builtin"
IDS_OF_IMG2IMG = ("img2img", "img2mask", "img_inpaint", "inpaint_sketch")
"""How ids of components of the tab img2img begin."""
Compute = Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]
"""(name, values, user) -> values; see `Program.compute`."""
CUSTOM_CODE = "custom code"  # a script of the reference UI, in lower case


@dataclass
class ScriptLibrary:
    """All scripts, by file in the order of extensions and names. `faults` says which files could not be loaded;
    `operations` are those for the Extras tab."""

    scripts: list[Script] = field(default_factory=list)
    operations: list[ScriptPostprocessing] = field(default_factory=list)
    form_operations: list[FormOperation] = field(default_factory=list)  # of all operations; set by the program
    faults: list[str] = field(default_factory=list)
    callbacks: Callbacks = field(default_factory=Callbacks)
    program: Program = field(default_factory=Program)
    adapters: ExtraNetworks = field(default_factory=ExtraNetworks)
    foreign: ForeignLoading = PLAIN
    in_line: Compute | None = None  # does work of extensions in its turn; None: it is done at once
    page_scripts: list[Path] = field(default_factory=list)  # javascript/*.js, which run in the page after ours
    page_styles: list[Path] = field(default_factory=list)  # style.css
    extensions: dict[str, Extension] = field(default_factory=dict)  # by name, the disabled ones too
    flags: dict[str, Any] = field(default_factory=dict)  # of the command line, that extensions add
    controls: dict[str, Any] = field(default_factory=dict)  # of the page that was built last, by their element ids
    has_told_before_ui: bool = False  # whether `on_before_ui` was called in this process
    _detectors: Detectors | None = None  # of an extension, once they were asked for
    _telling: str = ""  # the id of the control of a form that is being built
    _is_img2img: bool = False  # the tab of what was announced last

    @classmethod
    def load(
        cls,
        folders: Iterable[Path],
        disabled: Iterable[str] = (),
        program: Program | None = None,
        foreign: ForeignLoading = PLAIN,
    ) -> ScriptLibrary:
        """A library with `FOLDER/EXTENSION/scripts/*.py` of every extension that is not disabled."""
        library = cls(program=program or Program(), foreign=foreign)
        library.add(folders, disabled)
        return library

    def add(self, folders: Iterable[Path], disabled: Iterable[str] = ()) -> None:
        """Load `FOLDER/EXTENSION/scripts/*.py` for every extension that is not disabled, and note what it adds to the
        page. Of two extensions with one name the first is loaded."""
        folders, off = list(folders), set(disabled)
        foreign = [folder for folder in folders if not is_built_in(folder)]
        if any(folder.is_dir() and any(folder.iterdir()) for folder in foreign):
            self.foreign.begin(foreign)
        for extension in self._find(folders, off):
            if extension.is_enabled and not extension.replaced_by:
                self._load_extension(extension)

    def add_enabled(self, flags: Flags, paths: Paths, settings: Settings) -> ScriptLibrary:
        """Load the extensions that are neither disabled one by one nor all at once. Returns the library."""
        mode = settings.hidden.disable_all_extensions
        if flags.disable_all_extensions or mode == "all":
            return self
        is_ours_alone = flags.disable_extra_extensions or mode == "extra"
        folders = (paths.builtin_extensions_dir,) if is_ours_alone else paths.extension_dirs
        self.add(folders, settings.hidden.disabled_extensions)
        return self

    def detectors(self) -> Detectors:
        """Return the detectors of all extensions."""
        if self._detectors is None:
            self._detectors = AllDetectors(list(self.callbacks.call(Moment.DETECTORS, self.program)))
        return self._detectors

    def _find(self, folders: Iterable[Path], off: set[str]) -> list[Extension]:
        """The extensions of some folders, those that are switched off too, and what their flags are."""
        for folder in folders:
            for place in sorted(folder.iterdir()) if folder.is_dir() else ():
                if not place.is_dir() or place.name.startswith((".", "__")):
                    continue
                extension = Extension(place.name, place, is_built_in(folder), place.name not in off)
                if place.name in self.extensions:
                    taken = f"There is an extension {place.name!r} already, in {self.extensions[place.name].folder}."
                    self.faults.append(f"{place}: {taken}")
                    self.extensions[place.name].notices.append(f"{place} has the same name and was left out.")
                    continue
                self.extensions[place.name] = extension
                if extension.is_enabled and not extension.is_built_in:
                    self._compare(extension)
        found = list(self.extensions.values())
        self.flags.update(self.foreign.read_flags(found))
        return found

    def _built_in(self) -> set[str]:
        return {one.name for one in self.extensions.values() if one.is_built_in and one.is_enabled}

    def _compare(self, extension: Extension) -> None:
        """Leave out what the program does itself."""
        twin = self.foreign.twin_of(extension.name, self._built_in())
        extension.replaced_by = twin
        if twin:
            extension.notices.append(
                f"The program does this itself, by its extension {twin!r}, so that this one is left out. "
                f"Switch {twin!r} off to have it loaded."
            )

    def _load_extension(self, extension: Extension) -> None:
        began = time.monotonic()
        for file in sorted((extension.folder / "scripts").glob("*.py")):
            self._load_file(file, extension)
        extension.start_s = time.monotonic() - began
        if extension.faults and not extension.files and not extension.is_built_in:
            extension.replaced_by = self.foreign.instead_of(extension.name, self._built_in())
            if extension.replaced_by:
                extension.notices.append(
                    f"It could not be loaded; the program's own extension {extension.replaced_by!r} does its work."
                )
        elif not extension.faults and not extension.is_built_in:
            self._step_aside(self.foreign.instead_of(extension.name, self._built_in()), extension)
        if not extension.faults:
            found = sorted((extension.folder / "javascript").glob("*"))
            self.page_scripts += [file for file in found if file.suffix in (".js", ".mjs")]
            self.page_styles += [extension.folder / "style.css"] * (extension.folder / "style.css").is_file()

    def _step_aside(self, ours: str, extension: Extension) -> None:
        """Leave out one of the program's own extensions, whose work the user's now does."""
        found = self.extensions.get(ours)
        if found is None or found.replaced_by:
            return
        found.replaced_by = extension.name
        self.scripts = [one for one in self.scripts if one.acting is None or one.acting.owner is not found]
        self.page_scripts = [file for file in self.page_scripts if not file.is_relative_to(found.folder)]
        extension.notices.append(f"The program's own extension {ours!r} steps aside for it.")

    def extension_of(self, file: Path) -> Extension:
        """The extension whose folder a file lies in. Raises `UnknownNameError`."""
        for extension in self.extensions.values():
            if file.is_relative_to(extension.folder):
                return extension
        raise UnknownNameError.of("file of an extension", str(file), [])

    @property
    def fault_notices(self) -> list[str]:
        """List what the user should know of extensions of which something failed: of one its reason, of more their
        names."""
        failed = [one for one in self.extensions.values() if one.faults and not one.is_built_in and not one.replaced_by]
        if len(failed) > 1:
            names = ", ".join(one.name for one in failed)
            return [page_text(f"{len(failed)} extensions failed; the Extensions tab says why: {names}.")]
        return [page_text(f"The extension {one.name} failed: {one.faults[0].reason}") for one in failed]

    @property
    def selectable(self) -> list[Script]:
        """List those for the dropdown of a tab."""
        return [script for script in self.scripts if not script.is_alwayson and _tabs_of(script)]

    @property
    def alwayson(self) -> list[Script]:
        """List those that take part in every job of a tab."""
        return [script for script in self.scripts if script.is_alwayson]

    def selectable_of(self, is_img2img: bool) -> list[Script]:
        """List those for the dropdown of img2img, or of txt2img."""
        return [script for script in self.scripts if script.is_on(is_img2img) and not script.takes_part(is_img2img)]

    def alwayson_of(self, is_img2img: bool) -> list[Script]:
        """List those that take part in every job of img2img, or of txt2img."""
        shown = [script for script in self.form_operations if script.takes_part(is_img2img)]
        found = [script for script in self.scripts if script.takes_part(is_img2img)]
        return [*found, *sorted(shown, key=FormOperation.rank)]

    def taking_part(self, is_img2img: bool, given: Iterable[str]) -> list[Script]:
        """List those of a job with arguments for the scripts `given`: also operations that have been taken off the form
        since it was sent."""
        titles = {title.lower() for title in given}
        here = self.alwayson_of(is_img2img)
        late = [one for one in self.form_operations if one not in here and one.title().lower() in titles]
        return [*here, *late]

    def auxiliary_files(self, request: GenerationRequest) -> list[Path]:
        """The files of models of extensions' own that a request will ask for; those of a script that cannot tell are
        left out of the memory estimate."""
        is_img2img = isinstance(request.start, FromImage)
        files: list[Path] = []
        for script in self.taking_part(is_img2img, request.alwayson_args):
            args = next((args for title, args in request.alwayson_args.items() if title == script.title()), None)
            if args is None or type(script).auxiliary_files is Script.auxiliary_files:
                continue
            try:
                files += script.auxiliary_files(args)
            except Exception:  # somebody else's code; a job with such arguments will say what is wrong
                log.warning("%s cannot tell its files.", script.title(), exc_info=True)
        return files

    def find(self, title: str, is_img2img: bool = False) -> Script:
        """The selectable script of this title, in any case; raises `UnknownNameError`, and `InvalidValueError` for one
        that is on the other tab."""
        here = self.selectable_of(is_img2img)
        for script in here:
            if script.title().lower() == title.lower():
                return script
        if any(script.title().lower() == title.lower() for script in self.selectable):
            tabs = ("img2img", "txt2img") if is_img2img else ("txt2img", "img2img")
            raise InvalidValueError(f"The script {title!r} is not for {tabs[0]}, only for {tabs[1]}.")
        if title.lower() == CUSTOM_CODE:
            raise InvalidValueError(
                "There is no script 'Custom code': it would run any Python that a request sends, with the rights of "
                "this program. Write the code as a script of an extension instead (docs/extensions.md)."
            )
        raise UnknownNameError.of("script", title, [script.title() for script in here])

    def find_alwayson(self, title: str, is_img2img: bool = False) -> Script:
        """The always-on script of this title, in any case; raises `UnknownNameError`, or says that it is selectable."""
        for script in self.alwayson_of(is_img2img):
            if title.lower() in (name.lower() for name in (script.title(), *script.other_titles)):
                return script
        if any(script.title().lower() == title.lower() for script in self.selectable):
            raise InvalidValueError(f"{title!r} is a selectable script: name it in script_name.")
        known = [script.title() for script in self.alwayson_of(is_img2img)]
        raise UnknownNameError.of("always-on script", title, known)

    def compute(self, name: str, values: Mapping[str, Any], user: str = "") -> Mapping[str, Any]:
        """Have the work of an extension done: in its turn where there is a line, else here. Raises `UnknownNameError`,
        and what the work raises."""
        if self.in_line is not None:
            return self.in_line(name, values, user)
        return self.callbacks.compute(name, values)

    def before_ui(self) -> None:
        """Call what extensions have done before a page is built: in the server for its page, in a worker before its
        first job with a selected script, because axes of grids are added there."""
        self.has_told_before_ui = True
        self.callbacks.call(Moment.BEFORE_UI)

    def component(self, component: Any, elem_id: str, label: str) -> None:
        """Tell scripts and callbacks of a control of a form: before it is built (`component` is None) and after."""
        after = component is not None
        self._telling = "" if after else elem_id
        if after:
            self.controls[elem_id] = component
        facts = {"elem_id": elem_id, "label": label}
        self._tell(component, after, {**facts, "value": getattr(component, "value", None)} if after else facts)

    @property
    def is_page_extended(self) -> bool:
        """Whether user extensions may listen to all components of the page, not to those of forms alone."""
        return any(script.is_foreign for script in self.scripts) or any(
            one.acting is not None and one.acting.is_foreign
            for moment in (Moment.BEFORE_COMPONENT, Moment.AFTER_COMPONENT)
            for one in self.callbacks.at(moment)
        )

    def page_component(self, component: Any, after: bool, facts: Mapping[str, Any]) -> None:
        """Tell the user's extensions of any component of the page, by the arguments that it is made of. Controls of a
        form are announced by `component`."""
        if not self._telling or facts.get("elem_id") != self._telling:
            self._tell(component, after, {**facts, "label": facts.get("label") or ""}, only_foreign=True)

    def _tell(self, component: Any, after: bool, facts: Mapping[str, Any], only_foreign: bool = False) -> None:
        moment, elem_id = Moment.AFTER_COMPONENT if after else Moment.BEFORE_COMPONENT, str(facts["elem_id"] or "")
        for entry in self.callbacks.at(moment):
            if only_foreign and (entry.acting is None or not entry.acting.is_foreign):
                continue
            if entry.acting is not None:
                entry.acting.owner.has_seen_form = True
            try:
                self.callbacks.run(entry, component, **facts)
            except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
                entry.failed(error)
        if elem_id.startswith(IDS_OF_IMG2IMG) or elem_id.startswith("txt2img"):
            self._is_img2img = elem_id.startswith(IDS_OF_IMG2IMG)  # as what comes next without an id
        is_img2img = elem_id.startswith(IDS_OF_IMG2IMG) or (not elem_id and self._is_img2img)
        for script in self.scripts:
            if (only_foreign and not script.is_foreign) or (
                script.own_tab is not None and script.own_tab != is_img2img
            ):
                continue
            if script.acting is not None:
                script.acting.owner.has_seen_form = True
            try:
                with acting(script.acting):
                    (script.after_component if after else script.before_component)(component, **facts)
                    for callback in script.component_callbacks(elem_id, after):
                        callback(OnComponent(component))
            except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
                script.failed(f"control {elem_id}", error)

    def _load_file(self, file: Path, extension: Extension) -> None:
        label = f"{extension.name}/{file.name}"
        name = f"featherweight_scripts.{extension.name.replace('-', '_')}.{file.stem}"
        loading = Loading(label, self.callbacks, self.adapters, self.program, self.foreign, owner=extension)

        def run() -> tuple[list[Script], list[ScriptPostprocessing]]:
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            mark_module(module, loading)
            if not extension.is_built_in:
                module.__package__ = file.stem  # as in the reference UI, where some ask for it
            sys.modules[name] = module
            with while_loading(loading):
                spec.loader.exec_module(module)
                classes = _classes_in(module, Script, extension)
                found = [script for made in classes for script in self._made(made, file, loading)]
                operations = [made() for made in _classes_in(module, ScriptPostprocessing, extension)]
            for operation in operations:
                operation.filename = str(file)
                operation.program = self.program
                if not operation.name:
                    raise InvalidValueError(f"{type(operation).__name__} sets no name.")
            return found, operations

        def patched(name: str) -> None:
            extension.faults.append(
                Fault(f"scripts/{file.name}", f"It replaced {name}, which all models use; that was put back.", name)
            )

        try:
            found, operations = run() if extension.is_built_in else self.foreign.load(extension, run, patched)
        except (Exception, SystemExit) as error:  # an extension may do anything; the program goes on without it
            loading.is_left_out = True
            sys.modules.pop(name, None)
            self.callbacks.forget(label)
            self.adapters.forget(label)
            fault = extension.note(f"scripts/{file.name}", error)
            log.error(
                "The script %s of the extension %s could not be loaded: %s",
                *(file.name, extension.name, fault.reason),
                exc_info=error,
            )
            self.faults.append(f"{label}: {type(error).__name__}: {error}")
            return
        extension.files.append(f"scripts/{file.name}")
        self.scripts += [script for script in found if self._makes_room(script, extension)]
        self.operations += operations

    def _makes_room(self, script: Script, extension: Extension) -> bool:
        """Whether a user script is taken. One of ours with its title steps aside; where another extension of
        the user's has that title, the first is kept."""
        title = script.title().lower()
        same = next((one for one in self.scripts if one.title().lower() == title), None)
        if extension.is_built_in or same is None or same.acting is None or same.acting.owner is extension:
            return True
        if same.is_foreign:
            owner = same.acting.owner.name
            notice = f"The script {script.title()!r} was left out: {owner} has one of this name."
            extension.notices += [notice] * (notice not in extension.notices)
            return False
        self.scripts.remove(same)
        extension.notices.append(f"The program's own script {same.title()!r} steps aside for it.")
        return True

    def _made(self, made: type[Script], file: Path, loading: Loading) -> list[Script]:
        """The objects of one class: of ours one for both tabs; for a user extension one for each of its tabs, as in the
        reference UI, because its scripts keep on `self` what belongs to a tab. A class without a title, from which
        others inherit, has none."""
        if not loading.is_foreign:
            return [self._placed(made(), file, loading)]
        if inspect.isabstract(made):
            return []
        found = []
        for is_img2img in (False, True):
            script = self._placed(made(), file, loading)
            script.stand_on(is_img2img)
            try:
                script.name = script.title().lower()
            except NotImplementedError:
                return []
            script.own_tab = is_img2img
            found.append(script)
        shown = {is_img2img: found[is_img2img].show(is_img2img) for is_img2img in (False, True)}
        for script in found:
            script.shown = shown
            script.alwayson = script.is_alwayson
        return [script for script in found if shown[script.is_img2img]] or found[:1]

    def _placed(self, script: Script, file: Path, loading: Loading) -> Script:
        script.filename = str(file)
        script.program = self.program
        script.acting = loading
        if loading.is_foreign:
            setattr(script, "ui", _entered_once(script))  # noqa: B010 - mypy allows no assignment to a method
        else:
            script.title()
        return script


def is_built_in(folder: Path) -> bool:
    """Whether this is the folder of the extensions that ship with the program."""
    return folder.resolve() == BUILT_IN


def _classes_in(module: ModuleType, base: type[C], extension: Extension) -> list[type[C]]:
    """The subclasses that a file defines itself; those of user extensions may import them from their folder."""
    found = []
    for item in dict.fromkeys(one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, base)):
        home = getattr(sys.modules.get(item.__module__), "__file__", None)
        is_own = not extension.is_built_in and home is not None and Path(home).is_relative_to(extension.folder)
        if item.__module__ == module.__name__ or is_own:
            found.append(item)
    return found


def _tabs_of(script: Script) -> list[bool]:
    return [is_img2img for is_img2img in (False, True) if script.is_on(is_img2img)]


class LeftOutError(InvalidValueError):
    """A script whose controls could not be built; it takes part in nothing."""


_BUILDING = threading.Lock()
"""Gradio has one context of what is being built for the whole process."""


def components_of(script: Script) -> list[Any]:
    """Return a script's components, for their defaults and limits: those of the page, else built once outside of any.
    Code that runs while controls are built gets those that are there already. Raises `LeftOutError` for a user's script
    whose `ui` fails, or failed before."""
    if script.built is not None:
        return script.built
    if script.ui_error:
        raise LeftOutError(f"{script.title()} is left out, because its ui failed: {script.ui_error}")
    if _INSIDE.get() or (script.is_foreign and _is_page_open()):
        return []
    with _BUILDING:
        if script.built is None:
            try:
                with ThreadPoolExecutor(1) as thread:
                    built = thread.submit(lambda: asyncio.run(_build(script))).result()
                script.pasted = PastedFields.of(script.title(), built, script.infotext_fields)
            except (Exception, SystemExit) as error:
                if not script.is_foreign:
                    raise
                script.failed("ui", error)
                raise LeftOutError(f"{script.title()} failed in ui and is left out: {script.ui_error}") from error
            script.built = built
    return script.built


def _is_page_open() -> bool:
    context = sys.modules.get("gradio.context")
    return context is not None and context.Context.root_block is not None


async def _build(script: Script) -> list[Any]:
    """A coroutine, because Gradio makes event loops, and leaves them open, where none is running."""
    from modules.scripts.sheet import Sheet

    _INSIDE.set((*_INSIDE.get(), None))
    with outside_of_the_page(), Sheet(analytics_enabled=False):
        if isinstance(script.acting, Loading):
            script.acting.limited(partial(script.acting.foreign.before_form, script))
        return build_ui(script, not script.is_on(False))


@contextmanager
def outside_of_the_page() -> Iterator[None]:
    """Blocks that are made inside stand by themselves, also while a page is being built. What an extension left open is
    closed at the end."""
    from gradio.context import Context

    before = Context.root_block, Context.block
    Context.root_block = Context.block = None
    try:
        yield
    finally:
        Context.root_block, Context.block = before


_INSIDE: ContextVar[tuple[Script | None, ...]] = ContextVar("inside", default=())
"""The user's scripts whose `ui` runs, the innermost last; None while controls are built outside of a page."""


def _entered_once(script: Script) -> Callable[[bool], Any]:
    """The `ui` of a user's script, which other extensions may call: it is not entered again from inside of itself, and
    takes only so much time."""
    method = script.ui

    def ui(is_img2img: bool) -> Any:
        if script in _INSIDE.get():
            raise InvalidValueError(f"ui of {script.title()!r} was called again from inside of itself.")
        token = _INSIDE.set((*_INSIDE.get(), script))
        try:
            with acting(script.acting):
                return script.acting.limited(lambda: method(is_img2img)) if script.acting else method(is_img2img)
        finally:
            _INSIDE.reset(token)

    return ui


def build_ui(script: Script, is_img2img: bool) -> list[Any]:
    """The components of a script for one of the tabs, in the layout that is open now. Raises what its `ui` raises."""
    if script.own_tab is None:
        script.stand_on(is_img2img)
    with acting(script.acting):
        built = script.ui(is_img2img)
    return list(built) if isinstance(built, list | tuple) else [built] if built is not None else []


def default_args(script: Script) -> list[Any]:
    """The values of a script's components as they stand at first."""
    return [_value_of(component, script.acting) for component in components_of(script)]


def filled_args(script: Script, args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of a caller, defaults instead of those left out; raises `InvalidValueError` for too many."""
    defaults = default_args(script)
    if len(args) > len(defaults):
        raise InvalidValueError(f"{script.title()} takes {len(defaults)} arguments, {len(args)} were given.")
    return (*args, *defaults[len(args) :])


def read_args(script: Script, args: Sequence[Any], title: str) -> tuple[Any, ...]:
    """Arguments of a calling program for the script that it named `title`; raises `InvalidValueError` for what they
    cannot be, and for too many."""
    if not isinstance(args, list | tuple):
        raise InvalidValueError(f"{title}: args is {type(args).__name__}; it takes a list.")
    return filled_args(script, script.read_args(args, title))


def named_args(script: Script, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments by their labels on the page, in any case, defaults instead of the others; of several components with
    one label the first is meant. Raises `UnknownNameError` for a label that there is not."""
    args = default_args(script)
    labels = [str(getattr(component, "label", "") or "") for component in components_of(script)]
    lowered = [label.lower() for label in labels]
    for label, value in given.items():
        if label.lower() not in lowered:
            raise UnknownNameError.of(f"argument of {script.title()}", label, dict.fromkeys(labels))
        args[lowered.index(label.lower())] = value
    return tuple(args)


def pasted_args(script: Script, parsed: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The script's arguments as an infotext has them, defaults instead of the others; None where it says nothing, or
    nothing but what they are without it."""
    try:
        components = components_of(script)
    except LeftOutError:
        return None
    values = script.pasted.values(parsed) if script.pasted is not None else {}
    if not values:
        return None
    args = default_args(script)
    for place, value in values.items():
        if isinstance(value, dict) and "__type__" in value:  # what gr.update makes
            value = value.get("value", args[place])
        args[place] = _as_argument(components[place], value)
    return tuple(args) if args != default_args(script) else None


def script_info(script: Script, is_img2img: bool = False) -> dict[str, Any] | None:
    """Return what `/sdapi/v1/script-info` says of a script on a tab; None for one whose `ui` fails."""
    try:
        components = components_of(script)
    except LeftOutError:
        return None
    return {
        "name": script.title().lower(),
        "is_alwayson": script.takes_part(is_img2img),
        "is_img2img": is_img2img,
        "args": [
            {
                "label": getattr(component, "label", "") or "",
                "value": _as_json(_value_of(component, script.acting)),
                "minimum": getattr(component, "minimum", None),
                "maximum": getattr(component, "maximum", None),
                "step": getattr(component, "step", None),
                "choices": _choices_of(component),
            }
            for component in components
        ],
    }


def _as_json(value: Any) -> Any:
    """Return a value, as a text where it is an object of an extension's own that JSON cannot hold."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _value_of(component: Any, author: Acting | None = None) -> Any:
    """A component's value at first; a function is called for it, as the page does when it is opened."""
    value = getattr(component, "value", None)
    if callable(value):
        with acting(author):
            value = value()
    return _as_argument(component, value)


def _as_argument(component: Any, value: Any) -> Any:
    """A component's value as scripts get it: the place of a choice where they want that."""
    choices = getattr(component, "choices", None)
    if getattr(component, "type", None) == "index" and choices:
        values = [choice[1] if isinstance(choice, tuple) else choice for choice in choices]
        return values.index(value) if value in values else value
    return value


def _choices_of(component: Any) -> list[str] | None:
    choices = getattr(component, "choices", None)
    if choices is None:
        return None
    return [str(choice[0] if isinstance(choice, tuple) else choice) for choice in choices]
