"""The scripts of all extensions: found, loaded, and listed. A faulty one is left out and said so by name."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from modules.errors import InvalidValueError, UnknownNameError
from modules.postprocessing.operation import ScriptPostprocessing
from modules.scripts.adapters import ExtraNetworks
from modules.scripts.callbacks import Callbacks, Moment
from modules.scripts.form_operations import FormOperation
from modules.scripts.loading import Loading, while_loading
from modules.scripts.pasting import PastedFields
from modules.scripts.program import Program
from modules.scripts.script import OnComponent, Script

log = logging.getLogger(__name__)

C = TypeVar("C")
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
    page_scripts: list[Path] = field(default_factory=list)  # javascript/*.js, which run in the page after ours
    page_styles: list[Path] = field(default_factory=list)  # style.css

    @classmethod
    def load(
        cls, folders: Iterable[Path], disabled: Iterable[str] = (), program: Program | None = None
    ) -> ScriptLibrary:
        """Load `FOLDER/EXTENSION/scripts/*.py` for every extension that is not disabled, and note what it adds to the
        page."""
        library = cls(program=program or Program())
        off = set(disabled)
        for folder in folders:
            for extension in sorted(folder.iterdir()) if folder.is_dir() else ():
                if extension.name in off or not extension.is_dir():
                    continue
                library.page_scripts += sorted((extension / "javascript").glob("*.js"))
                library.page_styles += [extension / "style.css"] * (extension / "style.css").is_file()
                for file in sorted((extension / "scripts").glob("*.py")):
                    library._load_file(file, extension.name)
        return library

    @property
    def selectable(self) -> list[Script]:
        """Those for the dropdown of a tab."""
        return [script for script in self.scripts if not script.is_alwayson and _tabs_of(script)]

    @property
    def alwayson(self) -> list[Script]:
        """Those that take part in every job of a tab."""
        return [script for script in self.scripts if script.is_alwayson]

    def selectable_of(self, is_img2img: bool) -> list[Script]:
        """Those for the dropdown of img2img, or of txt2img."""
        return [script for script in self.scripts if script.is_on(is_img2img) and not script.takes_part(is_img2img)]

    def alwayson_of(self, is_img2img: bool) -> list[Script]:
        """Those that take part in every job of img2img, or of txt2img."""
        shown = [script for script in self.form_operations if script.takes_part(is_img2img)]
        found = [script for script in self.scripts if script.takes_part(is_img2img)]
        return [*found, *sorted(shown, key=FormOperation.rank)]

    def taking_part(self, is_img2img: bool, given: Iterable[str]) -> list[Script]:
        """Those of a job with arguments for the scripts `given`: also operations that have been taken off the form
        since it was sent."""
        titles = {title.lower() for title in given}
        here = self.alwayson_of(is_img2img)
        late = [one for one in self.form_operations if one not in here and one.title().lower() in titles]
        return [*here, *late]

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
            if script.title().lower() == title.lower():
                return script
        if any(script.title().lower() == title.lower() for script in self.selectable):
            raise InvalidValueError(f"{title!r} is a selectable script: name it in script_name.")
        known = [script.title() for script in self.alwayson_of(is_img2img)]
        raise UnknownNameError.of("always-on script", title, known)

    def component(self, component: Any, elem_id: str, label: str) -> None:
        """Tell scripts and callbacks of a control of a form: before it is built (`component` is None) and after."""
        after = component is not None
        facts = {"elem_id": elem_id, "label": label}
        self.callbacks.call(Moment.AFTER_COMPONENT if after else Moment.BEFORE_COMPONENT, component, **facts)
        for script in self.scripts:
            try:
                (script.after_component if after else script.before_component)(component, **facts)
                for callback in script.component_callbacks(elem_id, after):
                    callback(OnComponent(component))
            except Exception:  # somebody else's code must not cost the page
                log.exception("%s failed at the control %s.", script.title(), elem_id)

    def _load_file(self, file: Path, extension: str) -> None:
        label = f"{extension}/{file.name}"
        name = f"featherweight_scripts.{extension.replace('-', '_')}.{file.stem}"
        try:
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            with while_loading(Loading(label, self.callbacks, self.adapters, self.program)):
                spec.loader.exec_module(module)
            found = [made() for made in _classes_in(module, Script)]
            for script in found:
                script.filename = str(file)
                script.program = self.program
                script.title()
            operations = [made() for made in _classes_in(module, ScriptPostprocessing)]
            for operation in operations:
                operation.filename = str(file)
                operation.program = self.program
                if not operation.name:
                    raise InvalidValueError(f"{type(operation).__name__} sets no name.")
        except Exception as error:  # an extension may do anything; the program goes on without it
            sys.modules.pop(name, None)
            self.callbacks.forget(label)
            self.adapters.forget(label)
            log.exception("The script %s of the extension %s could not be loaded.", file.name, extension)
            self.faults.append(f"{label}: {type(error).__name__}: {error}")
            return
        self.scripts += found
        self.operations += operations


def _classes_in(module: ModuleType, base: type[C]) -> list[type[C]]:
    """The subclasses that a file defines itself."""
    return [
        item
        for item in vars(module).values()
        if inspect.isclass(item) and issubclass(item, base) and item.__module__ == module.__name__
    ]


def _tabs_of(script: Script) -> list[bool]:
    return [is_img2img for is_img2img in (False, True) if script.is_on(is_img2img)]


def components_of(script: Script) -> list[Any]:
    """The script's components, built once outside of any page: for their defaults and limits."""
    if script.built is None:
        with ThreadPoolExecutor(1) as thread:
            script.built = thread.submit(lambda: asyncio.run(_build(script))).result()
        script.pasted = PastedFields.of(script.title(), script.built, script.infotext_fields)
    return script.built


async def _build(script: Script) -> list[Any]:
    """A coroutine, because Gradio makes event loops, and leaves them open, where none is running."""
    import gradio as gr

    with gr.Blocks(analytics_enabled=False):
        return list(script.ui(not script.is_on(False)) or [])


def default_args(script: Script) -> list[Any]:
    """The values of a script's components as they stand at first."""
    return [_value_of(component) for component in components_of(script)]


def filled_args(script: Script, args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of a caller, defaults instead of those left out; raises `InvalidValueError` for too many."""
    defaults = default_args(script)
    if len(args) > len(defaults):
        raise InvalidValueError(f"{script.title()} takes {len(defaults)} arguments, {len(args)} were given.")
    return (*args, *defaults[len(args) :])


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
    """The script's arguments as an infotext has them, defaults instead of the others; None where it says nothing."""
    components = components_of(script)
    values = script.pasted.values(parsed) if script.pasted is not None else {}
    if not values:
        return None
    args = default_args(script)
    for place, value in values.items():
        if isinstance(value, dict) and "__type__" in value:  # what gr.update makes
            value = value.get("value", args[place])
        args[place] = _as_argument(components[place], value)
    return tuple(args)


def script_info(script: Script, is_img2img: bool = False) -> dict[str, Any]:
    """What `/sdapi/v1/script-info` says of a script on a tab."""
    return {
        "name": script.title().lower(),
        "is_alwayson": script.takes_part(is_img2img),
        "is_img2img": is_img2img,
        "args": [
            {
                "label": getattr(component, "label", "") or "",
                "value": _value_of(component),
                "minimum": getattr(component, "minimum", None),
                "maximum": getattr(component, "maximum", None),
                "step": getattr(component, "step", None),
                "choices": _choices_of(component),
            }
            for component in components_of(script)
        ],
    }


def _value_of(component: Any) -> Any:
    return _as_argument(component, getattr(component, "value", None))


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
