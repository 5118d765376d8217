"""The img2img tab: the form of all tabs that make images (`modules.ui.tabs.image_tab`), and what it starts from.

Images lie in canvases of the page's script (`assets/canvas.js`, `assets/img2img.js`), one for each sub tab, and survive
a reload in the browser. Other tabs put an image in with the script's `featherweight.tab('img2img').setImage(mode,
image)`: `mode` is a sub tab ("img2img", "sketch", "inpaint", "inpaint_sketch", "inpaint_upload", "canvas"), `image` a
Blob, a data URI or an address of this server; it gives a promise, and shows the sub tab. Generate sends what changed to
`internal/upload`, and names the images by their keys (`modules.ui.form.start_form`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from modules.access.roles import Identity, Role
from modules.errors import InvalidValueError
from modules.images.saving import output_folders
from modules.processing.request.parameters import Section, Tab
from modules.processing.request.request import GenerationRequest
from modules.scripts.library import read_args
from modules.services import Services
from modules.ui.common.uploads import Uploads
from modules.ui.form.batch_form import INFO_FIELDS, BatchForm
from modules.ui.form.canvas_start import canvas_sized, canvas_start
from modules.ui.form.controls import Components, Controls
from modules.ui.form.form import request_of
from modules.ui.form.scripts_panel import ScriptFields, build_scripts
from modules.ui.form.start_form import Mode, Pictures, mode_of, references_of, sized, start_of
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

SERVER_FOLDERS = ("batch_output_dir", "batch_mask_dir", "batch_png_info_dir")
SENT_TO = (Mode.IMG2IMG, Mode.SKETCH, Mode.INPAINT, Mode.INPAINT_SKETCH, Mode.CANVAS)
CANVAS = '<div class="fw-canvas-place" data-canvas="{name}" data-layer="{layer}"></div>'
LAYERED = '<div class="fw-layers-place"></div>'
"""Filled by `assets/layers_tab.js`."""
CANVASES = {
    Mode.IMG2IMG: ("img2img", "img2img_img2img_tab", "img2img_image"),
    Mode.SKETCH: ("Sketch", "img2img_img2img_sketch_tab", "img2img_sketch"),
    Mode.INPAINT: ("Inpaint", "img2img_inpaint_tab", "img2maskimg"),
    Mode.INPAINT_SKETCH: ("Inpaint sketch", "img2img_inpaint_sketch_tab", "inpaint_sketch"),
    Mode.INPAINT_UPLOAD: ("Inpaint upload", "img2img_inpaint_upload_tab", "img_inpaint_base"),
    Mode.CANVAS: ("Canvas", "img2img_canvas_tab", "img2img_canvas"),
}
"""Title, id of the tab and id of its canvas."""
SCRIPT_IDS = script_ids("img2img", takes={mode.value: CANVASES[mode][0] for mode in SENT_TO})
LAYERS = {Mode.SKETCH: "color", Mode.INPAINT: "mask", Mode.INPAINT_SKETCH: "color"}
"""What is painted in the canvas of a sub tab."""


def build_img2img_tab(services: Services) -> ImageTab:
    """Build the tab's contents inside of the tab that is open now."""
    controls = Controls(services, Tab.IMG2IMG)
    form, tab = controls.form, controls.prefix
    uploads = Uploads.of(services.paths)
    with gr.Row(elem_id="img2img_work", elem_classes=["fw-work"]):
        with gr.Column(elem_classes=["fw-left"]):
            top = build_top_row(controls, services, _build_interrogation)
            with (
                extra_networks_tabs(services, tab),
                gr.Row(elem_id="img2img_body", elem_classes=["fw-body"]),
                gr.Column(scale=1, elem_id="img2img_settings", elem_classes=["fw-parameters"]),
            ):
                sizings, heads, scripts = _build_parameters(services, controls)
        with gr.Column(scale=1, elem_id="img2img_source", elem_classes=["fw-source"]):
            pictures = gr.Textbox(visible="hidden", elem_id="img2img_pictures")
            modes = _build_modes(form)
            if services.foreign is not None and services.scripts.is_page_extended:
                services.foreign.build_sources()
        with gr.Column(scale=1, elem_id="img2img_results", elem_classes=["fw-results"]):
            build_output_panel(tab, services)

    def submit(
        values: Mapping[str, Any],
        images: str,
        completed: Callable[[GenerationRequest], GenerationRequest],
        task: str,
        identity: Identity,
    ) -> None:
        sent = Pictures.of(images)
        if mode_of(values) is Mode.BATCH:
            if values["batch_source"] == "directory" or any(values[name] for name in SERVER_FOLDERS):
                identity.require(Role.ADMIN, "A folder of the server's machine")
            references = references_of(sent, uploads)
            allowed = readable_folders(services)
            batch = BatchForm(values, sent.files, services, uploads, completed, allowed, references)
            services.batches.begin(
                task, batch.items, lambda made: services.queue.submit(made, None, preview_every(made)), identity.name
            )
            return
        if mode_of(values) is Mode.CANVAS:
            request = with_scripts(completed(_of_canvas(values, sent, uploads, services)), sent, services)
        else:
            start = start_of(values, sent, uploads)
            request = completed(request_of(sized(values, start.images[0].image.size), services, start))
        services.queue.submit(request, task_id=task, preview_every=preview_every(request))

    tabs = {"mode": modes, "sizing": sizings}
    image_tab = ImageTab(services, tab, form, scripts, heads, top.notice, tabs)
    wire_tab(image_tab, top, submit, pictures)
    return image_tab


def _of_canvas(values: Mapping[str, Any], sent: Pictures, uploads: Uploads, services: Services) -> GenerationRequest:
    """The request of what the canvas's frame shows. Raises `InvalidValueError`."""
    if not sent.image:
        raise InvalidValueError("The canvas is not ready yet; wait a moment, or reload the page.")
    image = uploads.image(sent.image)
    mask = uploads.image(sent.mask, "The mask").convert("L") if sent.mask else None
    if mask is not None and mask.size != image.size:
        raise InvalidValueError("The mask and the image differ in size; reload the page.")
    start, kept_px = canvas_start(values, image, mask)
    start = replace(start, references=references_of(sent, uploads))
    request = request_of(sized(canvas_sized(values, start, kept_px), image.size), services, start)
    return replace(request, prompt=request.prompt + sent.prompt_end)


def with_scripts(request: GenerationRequest, sent: Pictures, services: Services) -> GenerationRequest:
    """The request with the arguments that the page's script gave for always-on scripts, instead of the form's. Raises
    `FeatherweightError` for a script that is not here and for arguments that it refuses."""
    given = dict(request.alwayson_args)
    for title, args in sent.scripts.items():
        script = services.scripts.find_alwayson(title, is_img2img=True)
        given[script.title()] = read_args(script, args, title)
    return replace(request, alwayson_args=given)


def _build_parameters(services: Services, controls: Controls) -> tuple[gr.Tabs, dict[str, gr.Accordion], ScriptFields]:
    """Everything below the prompts: the tabs of the size, the heads of accordions, and the fields of scripts."""
    form, tab = controls.form, controls.prefix
    with gr.Column(elem_id="inpaint_controls"):
        controls.build_rest(Section.MASK, lines=(0,))
        form["mask_alpha"] = gr.Slider(
            0, 100, 0, step=1, label="Mask transparency", elem_id="img2img_mask_alpha", elem_classes=["fw-mask-alpha"]
        )
        controls.build_rest(Section.MASK)
    controls.build("resize_mode")
    controls.build_rest(Section.SAMPLING, lines=(0, 1))
    sizings = _build_sizing(services, controls)
    with gr.Row():
        controls.build("batch_count", "batch_size")
    controls.build_rest(Section.IMAGE)
    controls.build_rest(Section.SAMPLING)
    build_seed(controls)
    build_references(controls.prefix)
    with gr.Accordion("Outpaint", open=False, elem_id="img2img_outpaint"):
        controls.build_rest(Section.OUTPAINT)
    heads = {"refiner": build_refiner(services, controls)}
    build_overrides(form, tab)
    scripts = build_scripts(services, Tab.IMG2IMG)
    build_style_editor(services, form, tab)
    return sizings, heads, scripts


def readable_folders(services: Services) -> tuple[Path, ...] | None:
    """Folders that a batch may name; None: any, as where only this machine reaches the server."""
    if services.access.is_local:
        return None
    return output_folders(services.flags, services.paths, services.settings.current)


def _build_interrogation() -> None:
    """The page's script asks POST /sdapi/v1/interrogate about the image of the sub tab that is shown."""
    with gr.Row(elem_id="img2img_interrogation", elem_classes=["fw-form-tools"]):
        gr.Button("Interrogate CLIP", elem_id="interrogate", size="sm")
        gr.Button("Interrogate DeepBooru", elem_id="deepbooru", size="sm")
        gr.Button("Describe", elem_id="describe", size="sm")


def _build_modes(form: Components) -> gr.Tabs:
    form["mode"] = mode = gr.Textbox(Mode.IMG2IMG.value, visible="hidden", elem_id="img2img_mode")
    modes: gr.Tabs = gr.Tabs(elem_id="mode_img2img", overflow_behavior="wrap")
    with modes:
        for name, (title, tab_id, canvas_id) in CANVASES.items():
            if name is Mode.CANVAS:
                continue
            with gr.Tab(title, id=name.value, elem_id=tab_id, render_children=True) as sub_tab:
                gr.HTML(CANVAS.format(name=name.value, layer=LAYERS.get(name, "")), elem_id=canvas_id)
                if name is Mode.INPAINT_UPLOAD:
                    gr.HTML(CANVAS.format(name="mask_upload", layer=""), elem_id="img_inpaint_mask")
            _remembers(sub_tab, mode, name.value)
        with gr.Tab("Batch", id="batch", elem_id="img2img_batch_tab", render_children=True) as sub_tab:
            _build_batch(form)
        _remembers(sub_tab, mode, "batch")
        # Behind the sub tabs of the reference UI: scripts of extensions count those.
        title, tab_id, canvas_id = CANVASES[Mode.CANVAS]
        with gr.Tab(title, id=Mode.CANVAS.value, elem_id=tab_id, render_children=True) as sub_tab:
            gr.HTML(LAYERED, elem_id=canvas_id)
        _remembers(sub_tab, mode, Mode.CANVAS.value)
    return modes


def _build_batch(form: Components) -> None:
    form["batch_source"] = source = gr.Textbox("upload", visible="hidden", elem_id="img2img_batch_source_field")
    with gr.Tabs(elem_id="img2img_batch_source", overflow_behavior="wrap"):
        with gr.Tab("Upload", id="upload", elem_id="img2img_batch_upload_tab", render_children=True) as upload:
            gr.HTML('<div class="fw-batch-files"></div>', elem_id="img2img_batch_upload")
        with gr.Tab("From directory", id="directory", elem_id="img2img_batch_dir_tab", render_children=True) as folder:
            form["batch_input_dir"] = gr.Textbox(
                label="Input directory",
                info="A folder on the server's machine; all its images are used",
                elem_id="img2img_batch_input_dir",
            )
    _remembers(upload, source, "upload")
    _remembers(folder, source, "directory")
    form["batch_output_dir"] = gr.Textbox(
        label="Output directory",
        info="Results keep the names of their inputs. Empty: the usual folder and names",
        elem_id="img2img_batch_output_dir",
    )
    form["batch_mask_dir"] = gr.Textbox(
        label="Inpaint batch mask directory",
        info="For inpainting: masks named like their images, or one mask for all",
        elem_id="img2img_batch_inpaint_mask_dir",
    )
    with gr.Accordion("PNG info", open=False):
        form["batch_png_info"] = gr.Checkbox(
            False, label="Append png info to prompts", elem_id="img2img_batch_use_png_info"
        )
        form["batch_png_info_dir"] = gr.Textbox(
            label="PNG info directory",
            info="Images of the same names, whose info is used. Empty: the inputs themselves",
            elem_id="img2img_batch_png_info_dir",
        )
        form["batch_png_info_fields"] = gr.CheckboxGroup(
            list(INFO_FIELDS),
            value=["Prompt"],
            label="Parameters to take from png info",
            elem_id="img2img_batch_png_info_props",
        )
    gr.HTML('<div id="img2img_batch_state" class="fw-batch-state" aria-live="polite"></div>')


def _build_sizing(services: Services, controls: Controls) -> gr.Tabs:
    form = controls.form
    form["sizing"] = sizing = gr.Textbox("to", visible="hidden", elem_id="img2img_sizing")
    sizings: gr.Tabs = gr.Tabs(elem_id="img2img_tabs_resize", overflow_behavior="wrap")
    with sizings:
        to = gr.Tab("Resize to", id="to", elem_id="img2img_tab_resize_to", render_children=True)
        with to, gr.Row(elem_classes=["fw-centered", "fw-unbroken"]):
            build_size(controls, services)
            detect = "img2img_detect_image_size_btn"
            gr.Button("⇲", elem_id=detect, elem_classes=["fw-beside"], scale=0, min_width=44)
        with gr.Tab("Resize by", id="by", elem_id="img2img_tab_resize_by", render_children=True) as by:
            form["scale_by"] = gr.Slider(0.05, 4.0, 1.0, step=0.05, label="Scale", elem_id="img2img_scale")
            gr.HTML('<p id="img2img_scale_resolution_preview" class="fw-size" aria-live="polite"></p>')
    _remembers(to, sizing, "to")
    _remembers(by, sizing, "by")
    return sizings


def _remembers(tab: gr.Tab, field: gr.Textbox, name: str) -> None:
    """The form's field names the tab that is shown."""
    tab.select(None, outputs=[field], js=f"() => '{name}'", **HIDDEN_EVENT)
