"""The controls of postprocessing operations: each in an accordion with its switch in the head."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gradio as gr

from modules.postprocessing.operation import Field, ScriptPostprocessing
from modules.postprocessing.upscale import BY, TO, UpscaleOperation
from modules.processing.request.upscaling import PIXEL_UPSCALERS
from modules.scripts.form_operations import control_of
from modules.services import Services

log = logging.getLogger(__name__)

Components = dict[str, gr.components.Component]
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class OperationFields:
    """The components of all operations that are shown, by operation and argument, in order."""

    places: tuple[tuple[str, tuple[str, ...]], ...]
    components: tuple[gr.components.Component, ...]

    def arguments(self, values: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """The components' values by operation and argument."""
        rest = iter(values)
        return {name: {key: next(rest) for key in keys} for name, keys in self.places}


def build_operations(services: Services) -> OperationFields:
    """Build into the layout that is open now, in the order of the settings. An operation of an extension whose
    controls cannot be built is left out, by name in the log."""
    places: list[tuple[str, tuple[str, ...]]] = []
    components: list[gr.components.Component] = []
    for operation in services.operations.in_order(services.settings.current):
        try:
            built = _built(operation, services)
        except Exception:  # somebody else's code must not cost the page
            log.exception("The controls of %s (%s) could not be built.", operation.name, operation.filename)
            continue
        places.append((operation.name, tuple(built)))
        components += built.values()
    return OperationFields(tuple(places), tuple(components))


def upscaler_names(services: Services) -> list[str]:
    """All that the Upscale operation can choose."""
    return [*PIXEL_UPSCALERS, *services.engine.upscalers.catalogue.names]


def _built(operation: ScriptPostprocessing, services: Services) -> Mapping[str, gr.components.Component]:
    if isinstance(operation, UpscaleOperation):
        return _build_upscale(operation, services)
    if not operation.fields:
        return operation.ui()
    rows = operation.fields
    switch = next((row for row in rows if row.is_switch), None)
    others = [row for row in rows if not row.is_switch]
    if switch is None:
        with gr.Accordion(operation.name, open=False):
            return {row.name: component_of(row, services) for row in others}
    with switched(switch) as found:
        return {**found, **{row.name: component_of(row, services) for row in others}}


@contextmanager
def switched(row: Field) -> Iterator[Components]:
    """An accordion whose head has the checkbox of `row`; yields it by its name."""
    with gr.Column(elem_classes=["fw-switched"]):
        switch = gr.Checkbox(
            bool(row.default),
            label=f"Enable {row.label}",
            container=False,
            elem_id=f"{row.elem_id}-checkbox",
            elem_classes=["fw-switch"],
        )
        with gr.Accordion(row.label, open=bool(row.default), elem_id=row.elem_id) as head:
            yield {row.name: switch}
    switch.input(lambda is_on: gr.update(open=is_on), [switch], [head], **QUIET)


def component_of(row: Field, services: Services) -> gr.components.Component:
    """The control of one value."""
    found: gr.components.Component = control_of(row, upscaler_names(services))
    return found


def _build_upscale(operation: UpscaleOperation, services: Services) -> Components:
    rows = {row.name: row for row in operation.fields}

    def make(*names: str) -> Components:
        return {name: component_of(rows[name], services) for name in names}

    with switched(rows["upscale_enabled"]) as found:
        mode = gr.State(BY)
        with gr.Row(elem_classes=["fw-with-refresh"]):
            found |= make("upscaler_1_name")
            refresh = gr.Button("↻", elem_id="extras_refresh_upscalers", scale=0, min_width=44)
        with gr.Row():
            found |= make("upscaler_2_name", "upscaler_2_visibility")
        with gr.Tabs(elem_id="extras_resize_mode", overflow_behavior="wrap"):
            with gr.Tab("Scale by", elem_id="extras_scale_by_tab") as by, gr.Row():
                found |= make("upscale_by", "max_side_length")
            with gr.Tab("Scale to", elem_id="extras_scale_to_tab") as to:
                with gr.Row():
                    found |= make("upscale_to_width")
                    swap = gr.Button("⇅", elem_id="upscaling_res_switch_btn", scale=0, min_width=44)
                    found |= make("upscale_to_height")
                found |= make("upscale_crop")
    by.select(lambda: BY, outputs=[mode], **QUIET)
    to.select(lambda: TO, outputs=[mode], **QUIET)
    sides = [found["upscale_to_width"], found["upscale_to_height"]]
    swap.click(lambda width, height: (height, width), inputs=sides, outputs=sides, **QUIET)
    names = [found["upscaler_1_name"], found["upscaler_2_name"]]
    refresh.click(_refreshed(services), outputs=names, **QUIET)
    return {**found, "upscale_mode": mode}


def _refreshed(services: Services) -> Callable[[], list[Any]]:
    def look() -> list[Any]:
        services.engine.upscalers.catalogue.refresh()
        return [gr.update(choices=upscaler_names(services))] * 2

    return look
