"""Operations of the Extras tab below the form of txt2img and img2img, on each image before it is saved: an always-on
script for each one that the setting `postprocessing_enable_in_main_ui` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from modules.postprocessing.operation import UPSCALERS, Field, PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operations import Operations
from modules.processing.request.result import ImageRole
from modules.scripts.job import Job, Processed
from modules.scripts.script import AlwaysVisible, PostprocessImageArgs, Script
from modules.settings.values import Settings

if TYPE_CHECKING:
    from PIL import Image

MODE, MODES = "upscale_mode", ("Scale by", "Scale to")
TO_SIZE = "Postprocess upscale to"
TO_FIELDS = {MODE: None, "upscale_to_width": 0, "upscale_to_height": 1}
"""What is read of `TO_SIZE`, which is WIDTHxHEIGHT."""


def control_of(row: Field, upscalers: Sequence[str], elem_id: str | None = None) -> Any:
    """The Gradio component of one value; `upscalers` are the names that can be chosen."""
    import gradio as gr

    common: dict[str, Any] = {"label": row.label, "elem_id": elem_id or row.elem_id, "value": row.default}
    if row.hint:
        common["info"] = row.hint
    if isinstance(row.default, bool):
        return gr.Checkbox(**common)
    if row.choices is not None:
        if row.choices == UPSCALERS or callable(row.choices):
            names = row.choices() if callable(row.choices) else upscalers
            return gr.Dropdown(list(names), allow_custom_value=True, **common)
        assert not isinstance(row.choices, str), f"{row.name} chooses from an unknown list"
        return gr.Radio(list(row.choices), **common)
    if isinstance(row.default, str):
        return gr.Textbox(**common)
    low = row.low if row.slider_low is None else row.slider_low
    high = row.high if row.slider_high is None else row.slider_high
    if low is not None and high is not None and row.step is not None:
        return gr.Slider(low, high, step=row.step, **common)
    return gr.Number(precision=0 if isinstance(row.default, int) else None, **common)


def form_operations(
    operations: Operations, upscalers: Callable[[], Sequence[str]], settings: Callable[[], Settings]
) -> list[FormOperation]:
    """A script for every operation; which of them are shown, and their order, is asked of `settings` each time."""
    shared = _Shared(operations, upscalers, settings)
    found = (operations.get(name) for name in operations.names)
    return [FormOperation(operation, shared) for operation in found if operation is not None]


@dataclass
class _Shared:
    """State that the operations of all jobs share. `plans`: of each job that runs, the operations by name with
    their arguments; `added` the images that they made besides, with the number of the image that each comes of."""

    operations: Operations
    upscalers: Callable[[], Sequence[str]]
    settings: Callable[[], Settings]
    plans: WeakKeyDictionary[Job, dict[str, dict[str, Any]]] = field(default_factory=WeakKeyDictionary)
    added: WeakKeyDictionary[Job, list[tuple[int, Image.Image]]] = field(default_factory=WeakKeyDictionary)


class FormOperation(Script):
    """One operation as a script. The first one of a job runs all of them, so that they know of each other."""

    takes_part_inside = False

    def __init__(self, operation: ScriptPostprocessing, shared: _Shared) -> None:
        self.operation = operation
        self._shared = shared
        self._rows = sorted(operation.fields, key=lambda row: not row.is_switch)  # the switch first
        self._names = [row.name for row in self._rows]  # of the arguments, in order

    def title(self) -> str:
        return self.operation.name

    def show(self, is_img2img: bool) -> object:
        shown = self._shared.settings().postprocessing.postprocessing_enable_in_main_ui
        return AlwaysVisible if self.operation.name in shown else False

    def rank(self) -> int:
        """Its place among those that are shown."""
        return self._shared.operations.in_form(self._shared.settings()).index(self.operation)

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        tab, rows = "img2img" if is_img2img else "txt2img", self._rows
        if not rows:
            controls = self.operation.ui()
            self._names = list(controls)
            return list(controls.values())
        found: dict[str, Any] = {}
        for row in rows:
            elem_id = f"{tab}_{row.elem_id}"
            if row.name == MODE:
                found[row.name] = gr.Radio(list(MODES), value=MODES[0], type="index", label=row.label, elem_id=elem_id)
            else:
                shown = replace(row, label=f"Enable {row.label}") if row.is_switch else row
                found[row.name] = control_of(shown, self._shared.upscalers(), elem_id)
        self.infotext_fields = [(found[row.name], _pasting(row, rows)) for row in rows if _is_pasted(row, rows)]
        return list(found.values())

    def process(self, p: Job, *args: Any) -> None:
        """Wrong arguments are said before anything is computed."""
        if args:
            given = dict(zip(self._names, args, strict=False))
            self._shared.plans.setdefault(p, {})[self.title()] = self.operation.checked(given)

    def postprocess_image_after_composite(self, p: Job, pp: PostprocessImageArgs, *args: Any) -> None:
        plan = self._shared.plans.get(p, {})
        if next(iter(plan), None) != self.title() or not pp.is_finished:
            return
        image = PostprocessedImage(pp.image, p.settings)
        made = self._shared.operations.run_in_form(image, plan)
        pp.image = made[0].image
        p.extra_generation_params |= made[0].info
        number = p.iteration * p.batch_size + pp.index
        self._shared.added.setdefault(p, []).extend((number, one.image) for one in made[1:])

    def postprocess(self, p: Job, processed: Processed, *args: Any) -> None:
        """Copies and parts that operations made stand behind the images."""
        if next(iter(self._shared.plans.get(p, {})), None) != self.title():
            return
        images = [image for image in processed.generated if image.role is ImageRole.SAMPLE]
        added = self._shared.added.pop(p, [])
        for number, image in added:
            if number < len(images):
                processed.generated.append(replace(images[number], image=image, path=None, key=""))
        if added and not p.do_not_save_samples:
            p.save_samples(processed)


def _is_pasted(row: Field, rows: Sequence[Field]) -> bool:
    return bool(row.infotext or row.name in TO_FIELDS or (row.is_switch and any(other.infotext for other in rows)))


def _pasting(row: Field, rows: Sequence[Field]) -> str | Callable[[Mapping[str, Any]], Any]:
    """The name of the infotext's field, or what makes the value of all fields: a switch is on where the image records
    anything of the operation."""
    if row.infotext:
        return row.infotext
    if row.is_switch:
        keys = {other.infotext for other in rows if other.infotext}
        return lambda parsed: True if keys & parsed.keys() else None
    place = TO_FIELDS[row.name]

    def of_size(parsed: Mapping[str, Any]) -> Any:
        sides = str(parsed.get(TO_SIZE, "")).split("x")
        if place is None:
            return MODES[1] if len(sides) == 2 else MODES[0] if "Postprocess upscale by" in parsed else None
        return int(sides[place]) if len(sides) == 2 and sides[place].isdecimal() else None

    return of_size
