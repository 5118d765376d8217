"""The txt2img tab: what it has besides that of all tabs that make images (`modules.ui.tabs.image_tab`) is hires fix. It
starts from noise; the page sends the images that are only shown ahead (`modules.ui.common.uploads`)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gradio as gr

from modules.access.roles import Identity
from modules.processing.request.parameters import Section, Tab
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromNoise
from modules.services import Services
from modules.ui.common.uploads import Uploads
from modules.ui.form.controls import Components, Controls, choices_of
from modules.ui.form.form import ROWS, request_of
from modules.ui.form.scripts_panel import ScriptFields, build_scripts
from modules.ui.form.start_form import Pictures, references_of
from modules.ui.tabs.extra_networks import extra_networks_tabs
from modules.ui.tabs.image_tab import (
    HIDDEN_EVENT,
    ImageTab,
    build_overrides,
    build_references,
    build_refiner,
    build_seed,
    build_size,
    build_style_editor,
    build_top_row,
    preview_every,
    script_ids,
    wire_tab,
)
from modules.ui.tabs.output_panel import build_output_panel

SCRIPT_IDS = script_ids(
    "txt2img",
    takes={"txt2img": "txt2img"},
    paste="paste",
    hires_prompt="hires_prompt",
    hires_neg_prompt="hires_neg_prompt",
)


def build_txt2img_tab(services: Services) -> ImageTab:
    """Build the tab's contents inside of the tab that is open now."""
    controls = Controls(services, Tab.TXT2IMG)
    form, tab = controls.form, controls.prefix
    uploads = Uploads.of(services.paths)
    with gr.Row(elem_id="txt2img_work", elem_classes=["fw-work"]):
        with gr.Column(elem_classes=["fw-left"]):
            top = build_top_row(controls, services)
            pictures = gr.Textbox(visible="hidden", elem_id="txt2img_pictures")
            with (
                extra_networks_tabs(services, tab),
                gr.Row(elem_id="txt2img_body", elem_classes=["fw-body"]),
                gr.Column(scale=1, elem_id="txt2img_settings", elem_classes=["fw-parameters"]),
            ):
                heads, scripts = _build_parameters(services, controls)
        with gr.Column(scale=1, elem_id="txt2img_results", elem_classes=["fw-results"]):
            build_output_panel(tab, services)

    def submit(
        values: Mapping[str, Any],
        images: str,
        completed: Callable[[GenerationRequest], GenerationRequest],
        task: str,
        identity: Identity,
    ) -> None:
        start = FromNoise(references_of(Pictures.of(images), uploads))
        request = completed(request_of(values, services, start))
        services.queue.submit(request, task_id=task, preview_every=preview_every(request))

    image_tab = ImageTab(services, tab, form, scripts, heads, top.notice)
    wire_tab(image_tab, top, submit, pictures)
    return image_tab


def _build_parameters(services: Services, controls: Controls) -> tuple[dict[str, gr.Accordion], ScriptFields]:
    """Everything below the prompts; the heads of its accordions, and the fields of scripts."""
    form, tab = controls.form, controls.prefix
    controls.build_rest(Section.SAMPLING, lines=(0, 1))
    with gr.Row(elem_id="txt2img_dimensions", elem_classes=["fw-centered"]):
        build_size(controls, services)
        with gr.Column(scale=4):
            controls.build("batch_count", "batch_size")
    controls.build_rest(Section.SAMPLING)
    build_seed(controls)
    build_references(tab)
    heads = {"hires": _build_hires(services, controls), "refiner": build_refiner(services, controls)}
    build_overrides(form, tab)
    scripts = build_scripts(services, Tab.TXT2IMG)
    build_style_editor(services, form, tab)
    return heads, scripts


@contextmanager
def _switched_accordion(form: Components, name: str, label: str, elem_id: str) -> Iterator[gr.Accordion]:
    """An accordion whose head has a checkbox: it shows whether its part takes place, and opens it."""
    with gr.Column(elem_classes=["fw-switched"]):
        switch = form[name] = gr.Checkbox(
            False, label=f"Enable {label}", container=False, elem_id=elem_id, elem_classes=["fw-switch"]
        )
        with gr.Accordion(label, open=False, elem_id="txt2img_hr") as head:
            yield head
    switch.change(lambda is_on: gr.update(open=is_on), [switch], [head], **HIDDEN_EVENT)


def _build_hires(services: Services, controls: Controls) -> gr.Accordion:
    form = controls.form
    with _switched_accordion(form, "hires_enabled", "Hires. fix", "txt2img_enable_hr") as head:
        gr.HTML('<p id="txt2img_hr_size" class="fw-size" aria-live="polite"></p>')
        with gr.Row():
            controls.build("hires_upscaler")
            refresh = gr.Button("↻", elem_id="refresh_txt2img_hr_upscaler", scale=0, min_width=44)
            controls.build_rest(Section.HIRES, lines=(0,))
        controls.build_rest(Section.HIRES)

    def look() -> Any:
        services.engine.upscalers.catalogue.refresh()
        return gr.update(choices=choices_of(ROWS["hires_upscaler"], services))

    refresh.click(look, outputs=[form["hires_upscaler"]], **HIDDEN_EVENT)
    return head
