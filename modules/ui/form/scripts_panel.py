"""The Script dropdown with the chosen script's own fields, and the fields of scripts that take part in every job."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gradio as gr

from modules.processing.request.parameters import Tab
from modules.processing.request.request import GenerationRequest
from modules.scripts.library import build_ui
from modules.scripts.pasting import PastedFields
from modules.scripts.script import Script
from modules.services import Services
from modules.ui.form.filling import missing, takes
from modules.ui.form.form import TAB_NAMES

NO_SCRIPT = "None"
GROUPS = {"control": "Control", "guidance": "Guidance", "finishing": "Large images and finishing", "more": "More"}
"""Groups of the form by the name that an extension's about.toml gives; those that give none stand in the last."""
GROUP_HEAD = '<button type="button" class="fw-group-head" aria-expanded="false"><b>{}</b> <span></span></button>'

ON = "✓"
"""Stands in the head of a script's section while the script is on."""


class Switch(NamedTuple):
    """Switch of a script, for the head of its section."""

    section: int  # among those of the tab
    place: int  # among the components
    text: str  # what the head says while it is on


@dataclass(frozen=True)
class ScriptFields:
    """All components, the dropdown first, and which of them belong to which script."""

    components: list[gr.components.Component]
    places: tuple[tuple[Script, int, int], ...]  # script, first and last + 1 of its components
    pasting: tuple[PastedFields, ...] = ()
    is_img2img: bool = False
    switches: tuple[Switch, ...] = ()

    def chosen(self, request: GenerationRequest, values: Sequence[Any]) -> GenerationRequest:
        """The request with the chosen script and all arguments; `values` are the components' values."""
        title = values[0] if values else NO_SCRIPT
        alwayson = {}
        for script, begin, end in self.places:
            args = tuple(values[begin:end])
            if script.takes_part(self.is_img2img):
                alwayson[script.title()] = args
            elif script.title() == title:
                request = replace(request, script=title, script_args=args)
        return replace(request, alwayson_args=alwayson)

    @property
    def pasted_outputs(self) -> list[gr.components.Component]:
        """The components that a pasted infotext may fill."""
        return [fields.components[place] for fields in self.pasting for place in fields.places]

    def pasted(self, parsed: Mapping[str, Any]) -> list[Any]:
        """An update for each of `pasted_outputs`, from the fields of an infotext."""
        updates: list[Any] = []
        for fields in self.pasting:
            values = fields.values(parsed)
            updates += [_update(fields.components[place], values.get(place)) for place in fields.places]
        return updates

    def read(self, parsed: Mapping[str, Any]) -> tuple[frozenset[str], tuple[str, ...]]:
        """The fields of an infotext that any script looks at, and sentences about values that one refused, or that are
        no choice of its list."""
        keys: frozenset[str] = frozenset()
        sentences: list[str] = []
        for fields in self.pasting:
            found = fields.read(parsed)
            keys |= found.keys
            sentences += found.refused
            for place, value in found.values.items():
                component = fields.components[place]
                if not _is_choice(component, value):
                    choices = [str(choice[1]) for choice in component.choices]
                    word = f"{fields.title}: {component.label}"
                    sentences.append(
                        missing(word, str(value), choices, _instead(component) or "what was chosen before")
                    )
        return keys, tuple(sentences)


def build_scripts(services: Services, tab: Tab) -> ScriptFields:
    """Build those of a tab into the layout that is open now. A script whose fields cannot be built is left out, by name
    in the log."""
    with gr.Column(elem_id=f"{TAB_NAMES[tab]}_script_container", elem_classes=["fw-scripts"]):
        return _build_scripts(services, tab)


def _build_scripts(services: Services, tab: Tab) -> ScriptFields:
    places: list[tuple[Script, int, int]] = []
    components: list[Any] = []
    pasting: list[PastedFields] = []
    switches: list[Switch] = []
    is_img2img = tab is Tab.IMG2IMG
    selectable = services.scripts.selectable_of(is_img2img)
    titles = [script.title() for script in selectable]
    dropdown = gr.Dropdown(
        [NO_SCRIPT, *titles], value=NO_SCRIPT, label="Script", elem_id=f"{TAB_NAMES[tab]}_script_list"
    )
    groups = []
    for script in selectable:
        with gr.Column(visible=False, elem_classes=_classes(script)) as group:
            _add(script, is_img2img, components, places, pasting)
        groups.append(group)

    def show(title: str) -> Any:
        updates = [gr.update(visible=title == script) for script in titles]
        return updates if len(updates) > 1 else updates[0]  # Gradio wants no list for a single output

    if groups:
        dropdown.change(show, inputs=[dropdown], outputs=groups, queue=False, api_visibility="private")
    sections = itertools.count()
    for name, members in itertools.groupby(sorted(services.scripts.alwayson_of(is_img2img), key=_rank), _group):
        with gr.Column(elem_classes=["fw-group"], elem_id=f"{TAB_NAMES[tab]}_group_{name}"):
            gr.HTML(GROUP_HEAD.format(GROUPS[name]))
            for script in members:
                if type(script).ui is Script.ui:  # it has no fields
                    places.append((script, len(components) + 1, len(components) + 1))
                    continue
                fold_id = (script.fold_id if services.scripts.is_page_extended else "") or None
                with gr.Accordion(script.title(), open=False, elem_id=fold_id, elem_classes=_classes(script)) as fold:
                    built = _add(script, is_img2img, components, places, pasting)
                if built and not script.is_foreign and not any(map(_shows, fold.children)):
                    fold.visible = "hidden"  # calling programs alone use it
                switches += _switches(script.title(), next(sections), len(components) - len(built) + 1, built)
                if script.is_foreign:
                    _without_second_fold(fold)
    return ScriptFields([dropdown, *components], tuple(places), tuple(pasting), is_img2img, tuple(switches))


def _switches(title: str, section: int, begin: int, built: Sequence[Any]) -> Iterator[Switch]:
    """The checkboxes that a script's fields begin with, as far as they are off at first; one that enables the whole
    script stands alone. A hidden text, which a script's own form fills while something in it is on, is one as well."""
    for place, component in enumerate(built, begin):
        if isinstance(component, gr.Textbox) and component.visible == "hidden" and not component.value:
            yield Switch(section, place, ON)
        if not isinstance(component, gr.Checkbox):
            return
        label = str(component.label or "")
        is_whole = label.lower() == title.lower() or label.lower().startswith(("enable", "active"))
        if not component.value:
            yield Switch(section, place, ON if is_whole else label)
        if is_whole:
            return


def _group(script: Script) -> str:
    """Return the name of the group that a script's fold stands in."""
    name = script.acting.owner.about.get("group", "") if script.acting else ""
    return name if name in GROUPS else "more"


def _rank(script: Script) -> int:
    return list(GROUPS).index(_group(script))


def _classes(script: Script) -> list[str]:
    """The page's scripts open once what is "fw-foreign", so that scripts of extensions find what is in it."""
    return ["fw-script", "fw-foreign"] if script.is_foreign else ["fw-script"]


def _shows(block: Any) -> bool:
    """Whether something in a layout is to be seen."""
    children = getattr(block, "children", None)
    return any(map(_shows, children)) if children else block.visible is True


def _without_second_fold(fold: gr.Accordion) -> None:
    """Put a column in place of our accordion where a script brings accordions of its own, or shows nothing."""
    inside = fold.children
    while len(inside) == 1 and isinstance(inside[0], gr.Group | gr.Row | gr.Column):
        inside = inside[0].children
    if any(block.visible is True and not isinstance(block, gr.Accordion) for block in inside):
        return
    column = gr.Column(elem_classes=["fw-script", "fw-foreign"])
    for block in list(fold.children):
        column.add(block)
    fold.children = []
    fold.unrender()  # type: ignore[no-untyped-call]


def _update(component: gr.components.Component, value: Any) -> Any:
    """A function of a script may give a value or what `gr.update` made. A name that is not in a list would make every
    later Generate fail."""
    if value is None or not _is_choice(component, value):
        instead = None if value is None else _instead(component)
        return gr.update() if instead is None else gr.update(value=instead)
    return value if isinstance(value, dict) and "__type__" in value else gr.update(value=value)


def _is_choice(component: gr.components.Component, value: Any) -> bool:
    """Whether a list takes a value; every other component takes what its script gives."""
    is_list = isinstance(component, gr.Dropdown | gr.Radio) and not isinstance(value, dict)
    return not is_list or takes(component, value)


def _instead(component: gr.components.Component) -> str | None:
    """Return the choice of a list that stands for none."""
    choices = component.choices if isinstance(component, gr.Dropdown | gr.Radio) else ()
    return next((choice[1] for choice in choices if choice[1] == NO_SCRIPT), None)


def _add(
    script: Script,
    is_img2img: bool,
    components: list[Any],
    places: list[tuple[Script, int, int]],
    pasting: list[PastedFields],
) -> Sequence[Any]:
    """Build a script's fields and note them; gives its components, none where that failed."""
    try:
        built = build_ui(script, is_img2img)
        fields = PastedFields.of(script.title(), built, script.infotext_fields)
    except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
        script.failed("ui", error)
        return ()
    if script.is_foreign:
        script.built, script.pasted = list(built), fields
    begin = len(components) + 1  # behind the dropdown
    components.extend(built)
    places.append((script, begin, begin + len(built)))
    pasting.append(fields)
    return built
