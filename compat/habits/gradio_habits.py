"""Habits of Gradio 3 and 4, understood while code of a user extension runs, and only then.

Gradio's own classes are wrapped once; each wrapper looks whose code runs (`modules.scripts.acting`) and does nothing
for the program's own, so that mistakes of our page stay errors.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from compat.habits.old_packages import offer_old_names
from modules.sampling.names import split_legacy_name
from modules.scripts.acting import acting, acting_now, is_foreign_code
from modules.ui.common.gradio_scripts import is_gradios, write_no_interface_files

log = logging.getLogger(__name__)

_FUNCTION = re.compile(r"\s*(async\b|function\b|\(|\w+\s*=>)")
RENAMED = {"_js": "js", "default": "value"}  # the second of `gr.inputs`
FILE_TYPES = {"file": "filepath", "bytes": "binary"}
REMOVED_CLASSES = {"Box": "Group", "Variable": "State", "TabbedInterface": "Tabs", "StatusTracker": "Group"}
"""Classes of old versions, with the one that does their work."""
BASES = ("IOComponent", "FormComponent")
TEXTS = ("Text", "TextArea", "Textbox")
"""Fields whose value was an empty text where none was given; now it is None."""
HIDDEN = "hidden"
"""What old versions did with `visible=False`: a component stayed on the page, where scripts and events find it."""
AWAY = "fw-away"
"""The class of a row, column, group or fold of an extension that is not shown: it stays on the page as well."""
LAYOUTS = ("Row", "Column", "Group", "Accordion")
MIXINS: tuple[str, ...] = (
    "Changeable",
    "Clickable",
    "Submittable",
    "Blurrable",
    "Streamable",
    "Clearable",
    "Playable",
    "Editable",
)
MIXINS += ("Uploadable", "Selectable", "Releaseable", "Inputable", "Focusable", "EventListenerMethod")


def install() -> None:
    """Wrap Gradio's classes; once is enough."""
    import gradio as gr
    from gradio import blocks, component_meta, components, events

    if "__getattr__" in vars(component_meta.ComponentMeta):
        return
    write_no_interface_files()
    setattr(blocks.Block, "__getattr__", _old_method)  # noqa: B010 - mypy knows no such method
    setattr(component_meta.ComponentMeta, "__getattr__", _old_class_method)  # noqa: B010
    _tell_of_components(component_meta.ComponentMeta)
    for made in _classes(blocks.Block):
        if "__init__" in vars(made):
            setattr(made, "__init__", _constructor(made, vars(made)["__init__"]))  # noqa: B010
        for name in {str(event) for event in vars(made).get("EVENTS", ())}:
            if callable(vars(made).get(name)):
                setattr(made, name, _event(vars(made)[name]))
    for name in ("load", "unload"):
        if callable(getattr(blocks.Blocks, name, None)):
            setattr(blocks.Blocks, name, _event(getattr(blocks.Blocks, name)))
    describe_block = blocks.Block.get_config

    def get_config(self: Any, cls: type | None = None) -> Any:
        """Return what the page receives of a component: its arguments, by the signature of Gradio's own class."""
        made = type(self)
        return describe_block(self, cls or (None if is_gradios(made) else next(filter(is_gradios, made.__mro__))))

    setattr(blocks.Block, "get_config", get_config)  # noqa: B010 - mypy allows no assignment to a method
    setup = events.EventListener._setup

    def understanding(*args: Any, **keywords: Any) -> Any:
        return _event(setup(*args, **keywords))

    setattr(events.EventListener, "_setup", staticmethod(understanding))  # noqa: B010
    for painted in (gr.Image, gr.ImageMask):
        setattr(painted, "__new__", staticmethod(_new_image))  # noqa: B010
    _offer(gr, {name: partial(getattr, gr, other) for name, other in REMOVED_CLASSES.items()})
    _offer(gr, dict.fromkeys(("inputs", "outputs"), _all_components))
    _offer(components, dict.fromkeys(BASES, lambda: components.Component))
    _offer(components, {name: partial(getattr, gr, REMOVED_CLASSES[name]) for name in ("Box", "Variable")})
    _offer(events, {name: partial(_mixin, name) for name in MIXINS})
    offer_old_names(_offer)


Told = Callable[[Any, bool, Mapping[str, Any]], None]
_TOLD: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def telling_of_components(told: Told) -> Iterator[None]:
    """While open, `told(component, after, arguments)` is called before (with None) and after each component is made in
    this thread."""
    install()
    token = _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.reset(token)


def _tell_of_components(meta: type) -> None:
    make: Callable[..., Any] = meta.__call__

    def making(made: type, *args: Any, **keywords: Any) -> Any:
        told = _TOLD.get()
        if told is None:
            return make(made, *args, **keywords)
        facts = {"elem_id": None, **dict(zip(_arguments_of(made), args, strict=False)), **keywords}
        told(None, False, facts)
        component = make(made, *args, **keywords)
        facts["elem_id"] = component.elem_id
        told(component, True, facts)
        for elem_id in layouts_of(component.elem_id):
            around = component if elem_id == "script_list" else component.parent or component
            told(around, True, {**facts, "elem_id": elem_id})
        return component

    setattr(meta, "__call__", making)  # noqa: B010 - mypy allows no assignment to a method


ROWS = {
    "prompt": ("prompt_container", "prompt_row"),
    "neg_prompt": ("neg_prompt_row",),
    "styles": ("styles_row",),
    "width": ("column_size",),
    "res_switch_btn": ("dimensions_row",),
    "batch_count": ("column_batch",),
    "cfg_scale": ("cfg_row",),
    "refiner": ("accordions",),
    "hr_upscaler": ("hires_fix_row1",),
    "hr_resize_x": ("hires_fix_row2",),
    "override_settings": ("override_settings_row",),
    "seed_extras": ("subseed_row",),
    "gallery": ("gallery_container", "results_panel"),
}
"""Rows and columns of the reference UI's tabs that this page has not, by the control that stands in them; ids without
the name of the tab."""
ROWS_BY_ID = {
    "txt2img_script_list": "script_list",
    "img2img_script_list": "script_list",
    "hr_checkpoint": "txt2img_hires_fix_row3",
    "hires_prompt": "txt2img_hires_fix_row4",
    "txt2img_sampling": "sampler_selection_txt2img",
    "img2img_sampling": "sampler_selection_img2img",
    "txt2img_send_to_img2img": "image_buttons_txt2img",
    "img2img_send_to_img2img": "image_buttons_img2img",
}


def layouts_of(elem_id: str | None) -> list[str]:
    """The ids of the reference UI's rows and columns that stand around a control; extensions build what is theirs where
    they receive one."""
    tab, _, name = str(elem_id or "").partition("_")
    found = [f"{tab}_{row}" for row in ROWS.get(name, ())] if tab in ("txt2img", "img2img") else []
    return [*found, *([ROWS_BY_ID[elem_id]] if elem_id in ROWS_BY_ID else [])]


@cache
def _arguments_of(made: type) -> tuple[str, ...]:
    """The names of what a class is made of, in their order."""
    return tuple(inspect.signature(made.__init__).parameters)[1:]  # type: ignore[misc] # of a class, not of an object


def _classes(base: type) -> list[type]:
    found: list[type] = [base]
    made: type
    for made in base.__subclasses__():
        found += _classes(made)
    return list(dict.fromkeys(found))


def _all_components() -> Any:
    """`gr.inputs` and `gr.outputs`: the components under their names."""
    import gradio as gr

    names: tuple[str, ...] = (
        "Textbox",
        "Number",
        "Slider",
        "Checkbox",
        "CheckboxGroup",
        "Radio",
        "Dropdown",
        "Image",
        "Video",
        "Audio",
    )
    names += ("File", "Dataframe", "JSON", "HTML", "Label", "Gallery", "State", "HighlightedText", "Plot")
    return SimpleNamespace(**{name: getattr(gr, name) for name in names})


@cache
def _mixin(name: str) -> type:
    """A base class that only says which events a component had."""
    return type(name, (), {})


def _old_method(self: Any, name: str) -> Any:
    """`Block.__getattr__`: `.style(...)` for extensions, which changes nothing, and `.update(...)`."""
    if name == "style" and is_foreign_code():
        return lambda *args, **keywords: self
    if name == "update" and is_foreign_code():
        return lambda *args, **keywords: _update(type(self), args, keywords)
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _old_class_method(made: type, name: str) -> Any:
    """The metaclass's `__getattr__`: `gr.Dropdown.update(...)` for extensions."""
    if name == "update" and is_foreign_code():
        return lambda *args, **keywords: _update(made, args, keywords)
    raise AttributeError(f"type object {made.__name__!r} has no attribute {name!r}")


class _OldNames(ModuleType):
    """A module that has names of old versions for extensions."""

    def __getattr__(self, name: str) -> Any:
        old: Mapping[str, Callable[[], Any]] = self.__dict__.get("__old_names__", {})
        if name in old and is_foreign_code():
            return old[name]()
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _offer(module: ModuleType, names: Mapping[str, Callable[[], Any]]) -> None:
    """Have a module offer these names to extensions, where it has none of its own."""
    module.__dict__.setdefault("__old_names__", {}).update(names)
    own = module.__dict__.get("__getattr__")
    if own is not None:
        kept = own

        def both(name: str) -> Any:
            try:
                return kept(name)
            except AttributeError:
                return _OldNames.__getattr__(module, name)  # type: ignore[arg-type]

        if getattr(own, "__name__", "") != "both":
            module.__dict__["__getattr__"] = both
    elif not isinstance(module, _OldNames):
        module.__class__ = _OldNames


@cache
def _accepted(made: type) -> frozenset[str]:
    """The arguments of a class's constructor, those of its bases where it passes on what it does not know."""
    found: set[str] = set()
    for one in made.__mro__:
        init = vars(one).get("__init__")
        if init is None:
            continue
        parameters = inspect.signature(init).parameters.values()
        found |= {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
        passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        if not passes_on or one.__module__.startswith("gradio."):
            break
    return frozenset(found)


def _constructor(made: type, init: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(init)
    def wrapped(self: Any, *args: Any, **keywords: Any) -> Any:
        if is_foreign_code():
            _import_home(type(self))
            keywords = _translated(made, keywords)
            if made.__name__ in TEXTS and not args and keywords.get("value") is None:
                keywords["value"] = ""
        init(self, *args, **keywords)
        if is_foreign_code() and type(vars(self).get("choices")) is list:
            self.choices = _Choices(self.choices)

    return wrapped


def _import_home(made: type) -> None:
    """Import the module that a class of an extension says it is of: Gradio asks for its file, and in the reference UI
    all modules have been imported by then."""
    if made.__module__.startswith("modules.") and made.__module__ not in sys.modules:
        with suppress(ImportError):
            import_module(made.__module__)


class _Choices(list[Any]):
    """The choices of a component, pairs of what is shown and its value, in which a value is found as well."""

    def __contains__(self, wanted: object) -> bool:
        return super().__contains__(wanted) or any(value == wanted for _, value in self)


def _translated(made: type, keywords: dict[str, Any]) -> dict[str, Any]:
    """Arguments of old versions as this version has them; what it does not know is left out."""
    given = {RENAMED.get(name, name): value for name, value in keywords.items()}
    accepted = _accepted(made)
    if given.get("visible") is False and "value" in accepted:
        given["visible"] = HIDDEN
    elif given.get("visible") is False and _is_layout(made):
        given |= {"visible": True, "elem_classes": [*_listed(given.get("elem_classes")), AWAY]}
    if "source" in given and "sources" in accepted:
        source = given.pop("source")
        given.setdefault("sources", [source if source in ("upload", "webcam", "clipboard", "microphone") else "upload"])
    if given.get("type") in FILE_TYPES and made.__name__ in ("File", "UploadButton", "Files"):
        given["type"] = FILE_TYPES[given["type"]]
    if isinstance(given.get("scale"), float):
        given["scale"] = max(int(given["scale"]), 1) if given["scale"] else 0
    if isinstance(given.get("min_width"), float):
        given["min_width"] = int(given["min_width"])
    if given.pop("show_copy_button", False) and "buttons" in accepted:
        given.setdefault("buttons", ["copy"])
    if given.get("value") is None and "DefaultValue" in given:
        given.pop("DefaultValue")
    if made.__name__ == "Blocks":
        return {name: value for name, value in given.items() if name in ("analytics_enabled", "mode", "title")}
    dropped = [name for name in given if name not in accepted]
    if dropped:
        log.debug("%s takes no %s any more; left out for %s.", made.__name__, ", ".join(dropped), acting_now())
    return {name: value for name, value in given.items() if name in accepted}


def _is_layout(made: type) -> bool:
    return any(one.__name__ in LAYOUTS for one in made.__mro__)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _update(made: type, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """`gr.Dropdown.update(choices=[...])`: an update of what is given; None means "as it is" for all but the value."""
    import gradio as gr

    given = dict(keywords)
    if args:
        given["value"] = args[0]
    accepted = _accepted(made)
    kept = {name: value for name, value in given.items() if name == "value" or value is not None}
    return gr.update(
        **{name: value for name, value in kept.items() if name in accepted or name in ("value", "visible")}
    )


def _event(listener: Any) -> Any:
    """An event's method (`click`) that understands old arguments, and runs the extension's function as its code."""
    if getattr(listener, "understands_old", False):
        return listener
    names = {one.name for one in inspect.signature(listener).parameters.values()}

    @wraps(listener)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        author = acting_now()
        if author is None or not author.is_foreign:
            return listener(*args, **keywords)
        given = {RENAMED.get(name, name): value for name, value in keywords.items()}
        if isinstance(given.get("js"), str):
            given["js"] = as_function(given["js"])
        inputs = given.get("inputs", args[2] if len(args) > 2 else None)
        if given.get("fn") is not None or given.get("js") or len(args) > 1:
            given |= _given_by_the_page(inputs, given.get("js"))
        given = {name: value for name, value in given.items() if name in names}
        places = [place for place, value in enumerate(args) if callable(value) and not hasattr(value, "events")]
        outputs = given.get("outputs", args[3] if len(args) > 3 else None)
        if callable(given.get("fn")):
            given["fn"] = fitting(as_code_of(author, given["fn"]), outputs)
        elif len(args) > 1 and 1 in places:
            args = (args[0], fitting(as_code_of(author, args[1]), outputs), *args[2:])
        return _shown_by_the_page(listener(*args, **given), outputs)

    wrapped.understands_old = True  # type: ignore[attr-defined]
    return wrapped


def _given_by_the_page(inputs: Any, script: str | None) -> dict[str, Any]:
    """The script of an event whose inputs the page draws by itself (`compat.page.stand_ins`): it asks the page for them
    first. Empty where there are none."""
    listed = inputs if isinstance(inputs, list | tuple) else [] if inputs is None else [inputs]
    places = {place: value for place, one in enumerate(listed) if (value := getattr(one, "page_value", ""))}
    if not places:
        return {}
    values = f"pageValues({json.dumps(places)}, {len(listed)}, args)"
    if script is None:
        return {"js": f"async (...args) => (await {values}).slice(0, {len(listed)})"}
    return {"js": f"async (...args) => ({script})(...(await {values}))"}


def _shown_by_the_page(event: Any, outputs: Any) -> Any:
    """The event, after which the page shows what it gave to parts that it draws by itself."""
    for one in outputs if isinstance(outputs, list | tuple) else [outputs]:
        value = getattr(one, "page_value", "")
        if value:
            script = f"(value) => {{ showPageValue({value!r}, value); }}"
            with acting(None):
                event.then(fn=None, inputs=[one], js=script, queue=False, api_visibility="private")
    return event


def fitting(function: Callable[..., Any], outputs: Any) -> Callable[..., Any]:
    """The function with what it gives as this version has it: names of samplers of old versions ("DPM++ 2M Karras")
    as the list of samplers has them; what it takes from view stays on the page, unseen."""
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or inspect.iscoroutinefunction(function):
        return function
    if inspect.isasyncgenfunction(function):
        return function

    def fit(found: Any) -> Any:
        if len(listed) == 1:
            return _fitted(listed[0], found)
        if not isinstance(found, list | tuple):
            return found
        return [*map(_fitted, listed, found), *found[len(listed) :]]

    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def each(*args: Any, **keywords: Any) -> Any:
            yield from map(fit, function(*args, **keywords))

        return each

    @wraps(function)
    def fitted(*args: Any, **keywords: Any) -> Any:
        return fit(function(*args, **keywords))

    return fitted


def _fitted(output: Any, value: Any) -> Any:
    """Return what a function gives for one output."""
    if isinstance(value, str) and str(getattr(output, "elem_id", "")).endswith("_sampling"):
        choices = {choice for _, choice in getattr(output, "choices", None) or ()}
        sampler, _ = split_legacy_name(value)
        return sampler if value not in choices and sampler in choices else value
    if not isinstance(value, dict) or value.get("__type__") != "update" or "visible" not in value:
        return value
    if _is_layout(type(output)):
        classes = [one for one in _listed(output.elem_classes) if one != AWAY]
        return value | {"visible": True, "elem_classes": classes if value["visible"] else [*classes, AWAY]}
    if value["visible"] is False and hasattr(output, "value"):
        return value | {"visible": HIDDEN}
    return value


def as_function(script: str) -> str:
    """The script of an event as a function: old versions took the name of one as well."""
    return script if _FUNCTION.match(script) else f"(...args) => ({script})(...args)"


def as_code_of(author: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which runs as code of its extension whenever Gradio calls it."""
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def async_generated(*args: Any, **keywords: Any) -> Any:
            with acting(author):
                async for value in function(*args, **keywords):
                    yield value

        return async_generated
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generated(*args: Any, **keywords: Any) -> Any:
            with acting(author):
                values = function(*args, **keywords)
            while True:
                with acting(author):
                    try:
                        value = next(values)
                    except StopIteration:
                        return
                yield value

        return generated
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **keywords: Any) -> Any:
            with acting(author):
                return await function(*args, **keywords)

        return awaited

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        with acting(author):
            return function(*args, **keywords)

    return called


def _new_image(made: type, *args: Any, **keywords: Any) -> Any:
    """`gr.Image(tool="sketch")` of old versions is an editor, which gives a dict of image and mask."""
    tool = keywords.get("tool")
    if made is sys.modules["gradio"].ImageMask and is_foreign_code():
        return _sketch()(*args, **keywords)
    if made.__name__ == "Image" and is_foreign_code() and tool in ("sketch", "color-sketch", "editor"):
        keywords.pop("source", None)
        return _sketch()(*args, **keywords)
    return object.__new__(made)


@cache
def _sketch() -> type:
    import gradio as gr
    from PIL import Image as Pil

    class Sketch(gr.ImageEditor):
        """An editor whose value is {"image": ..., "mask": ...}, and what `gr.ImageMask` gives now; with `tool`
        "color-sketch" or "editor" the image as it was painted."""

        def __init__(self, value: Any = None, *, tool: str = "sketch", **keywords: Any) -> None:
            self.tool = tool
            super().__init__(value, **keywords)

        def get_block_name(self) -> str:
            return "imageeditor"

        def preprocess(self, payload: Any) -> Any:
            found = super().preprocess(payload)
            if found is None:
                return None
            if self.tool != "sketch":
                return found["composite"]
            background, layers = found["background"], found["layers"] or []
            if background is None or not layers:
                mask: Any = None if background is None else _blank(background)
            else:
                mask = layers[0]
            return {**found, "image": background, "mask": _as_mask(mask)}

        def postprocess(self, value: Any) -> Any:
            given = value.get("image") if isinstance(value, dict) and "background" not in value else value
            return super().postprocess(given)

    def _blank(image: Any) -> Any:
        return Pil.new("RGBA", image.size) if isinstance(image, Pil.Image) else image * 0

    def _as_mask(layer: Any) -> Any:
        """The painted part in white."""
        if isinstance(layer, Pil.Image):
            alpha = layer.convert("RGBA").getchannel("A").point(lambda value: 255 if value else 0)
            return Pil.merge("RGBA", (alpha, alpha, alpha, Pil.new("L", alpha.size, 255)))
        if layer is not None and getattr(layer, "ndim", 0) == 3 and layer.shape[2] == 4:
            return ((layer[..., 3:4] > 0) * 255).astype(layer.dtype).repeat(3, axis=2)
        return layer

    return Sketch


def understand() -> None:
    """Wrap Gradio once it is imported: now, or by the import that an extension's file does."""
    if "gradio" in sys.modules:
        install()
        return
    if not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """Finds nothing; at the first import of gradio it steps aside and has it wrapped when it is there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "gradio":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec("gradio")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                install()

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010
        return spec
