"""The txt2img tab: prompt on top, parameters left, images right; ids as users' scripts know them.

The form only submits. The job lives in the queue; the page's script watches it by its task id and draws progress and
images, so that closing or reloading the page loses nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gradio as gr

from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.parameters import Section
from modules.prompting.styles import Style, StyleBook
from modules.services import Services
from modules.ui.controls import Components, Controls, choices_of
from modules.ui.defaults import EXAMPLES, default_size, is_shipped, wanted_checkpoint
from modules.ui.extra_networks import extra_networks_tabs
from modules.ui.form import FIELDS, ROWS, form_values, pasted_fields, request_of
from modules.ui.messages import error_box, note_box
from modules.ui.output_panel import build_output_panel
from modules.ui.scripts_panel import ScriptFields, build_scripts

HIDDEN_EVENT: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


def build_txt2img_tab(services: Services, page: gr.Blocks) -> tuple[Components, ScriptFields]:
    """Build the tab's contents inside of the tab that is open now; returns the form's fields by name, and those of the
    scripts."""
    controls = Controls(services, "txt2img")
    form = controls.form
    with gr.Row(elem_id="txt2img_toprow"):
        with gr.Column(scale=6, elem_classes=["fw-prompts"]):
            controls.build("prompt", "negative_prompt")
            examples = _build_examples(services)
        with gr.Column(scale=2, min_width=240, elem_id="txt2img_actions_column"):
            task = gr.Textbox(visible="hidden", elem_id="txt2img_task")
            with gr.Row(elem_id="txt2img_generate_box"):
                interrupt = gr.Button("Interrupt", elem_id="txt2img_interrupt", variant="stop")
                skip = gr.Button("Skip", elem_id="txt2img_skip")
                generate = gr.Button("Generate", elem_id="txt2img_generate", variant="primary")
            gr.HTML('<div id="txt2img_plan_line" aria-live="polite"></div>', elem_id="txt2img_plan")
            with gr.Row(elem_id="txt2img_tools"):
                paste = gr.Button("Paste", elem_id="paste", size="sm")
                clear = gr.Button("Clear", elem_id="txt2img_clear_prompt", size="sm")
                gr.Button("Last job", elem_id="txt2img_restore_progress", size="sm")
            controls.build("styles")
    notice = gr.HTML(elem_id="txt2img_notice")
    with extra_networks_tabs(services), gr.Row(elem_id="txt2img_body"):
        with gr.Column(scale=1, elem_id="txt2img_settings"):
            _build_parameters(services, controls)
            _build_hires(services, controls)
            _build_refiner(services, controls)
            form["overrides"] = overrides = gr.Dropdown(
                choices=[],
                multiselect=True,
                allow_custom_value=True,
                visible=False,
                label="Override settings",
                info="From the pasted image; they hold for this form only. Remove what you do not want.",
                elem_id="txt2img_override_settings",
            )
            scripts = build_scripts(services)
            _build_style_editor(services, form)
        with gr.Column(scale=1, elem_id="txt2img_results"):
            build_output_panel()
    overrides.change(lambda chosen: gr.update(visible=bool(chosen)), [overrides], [overrides], **HIDDEN_EVENT)
    fields = [form[name] for name in FIELDS]
    _wire_jobs(services, scripts, fields, task, notice, (generate, interrupt, skip))
    outputs = [*fields, *scripts.pasted_outputs, notice]
    paste.click(_pasting(services, scripts), inputs=[form["prompt"]], outputs=outputs, **HIDDEN_EVENT)
    clear.click(lambda: ("", ""), outputs=[form["prompt"], form["negative_prompt"]], **HIDDEN_EVENT)
    for button, text in examples:
        button.click(lambda text=text: text, outputs=[form["prompt"]], **HIDDEN_EVENT)
    page.load(
        lambda: (*_sizes(services), gr.update(choices=_style_names(services)), *_samplers(services)),
        outputs=[*(form[name] for name in ("width", "height", "styles", "sampler", "hires_sampler"))],
        **HIDDEN_EVENT,
    )
    return form, scripts


def _wire_jobs(
    services: Services,
    scripts: ScriptFields,
    fields: list[gr.components.Component],
    task: gr.Textbox,
    notice: gr.HTML,
    buttons: tuple[gr.Button, gr.Button, gr.Button],
) -> None:
    generate, interrupt, skip = buttons

    def submit(sent: gr.Request, task_id: str, *values: Any) -> str:
        try:
            request = request_of(dict(zip(FIELDS, values[: len(FIELDS)], strict=True)), services)
            request = replace(request, user=sent.username or "")
            request = scripts.chosen(request, values[len(FIELDS) :])
            settings = request.settings
            every = settings.whole("show_progress_every_n_steps") if settings.flag("live_previews_enable") else 0
            services.queue.submit(request, task_id=task_id, preview_every=max(every, 0))
        except FeatherweightError as error:
            return error_box(str(error))
        except (TypeError, ValueError, OverflowError) as error:
            return error_box(str(InvalidValueError(f"A number in the form cannot be used: {error}.")))
        return ""

    generate.click(
        submit,
        inputs=[task, *fields, *scripts.components],
        outputs=[notice],
        js="(task, ...values) => [featherweight.start(), ...values]",
        **HIDDEN_EVENT,
    ).then(None, js="() => featherweight.submitted()", api_visibility="private")

    def stop(task_id: str) -> None:
        services.queue.interrupt(task_id or None, services.settings.current.flag("interrupt_after_current"))

    interrupt.click(stop, inputs=[task], js="() => featherweight.task()", **HIDDEN_EVENT)
    skip.click(services.queue.skip, **HIDDEN_EVENT)


def _build_examples(services: Services) -> list[tuple[gr.Button, str]]:
    """Prompts to try, shown while the bundled model is the chosen one."""
    shown = is_shipped(wanted_checkpoint(services))
    with gr.Row(elem_id="txt2img_examples", visible=shown):
        return [(gr.Button(text, size="sm", elem_classes=["fw-example"]), text) for text in EXAMPLES]


def _build_parameters(services: Services, controls: Controls) -> None:
    form = controls.form
    controls.build_rest(Section.SAMPLING, lines=(0, 1))
    with gr.Row(elem_id="txt2img_dimensions"):
        with gr.Column(scale=6):
            controls.build("width", "height")
        swap = gr.Button("⇅", elem_id="txt2img_res_switch_btn", scale=0, min_width=44)
        with gr.Column(scale=4):
            controls.build("batch_count", "batch_size")
    form["width"].value = form["height"].value = default_size(services, wanted_checkpoint(services))
    controls.build_rest(Section.SAMPLING)
    swap.click(
        lambda w, h: (h, w),
        inputs=[form["width"], form["height"]],
        outputs=[form["width"], form["height"]],
        **HIDDEN_EVENT,
    )
    with gr.Row(elem_id="txt2img_seed_row"):
        controls.build("seed")
        dice = gr.Button("⚄", elem_id="txt2img_random_seed", scale=0, min_width=44)
        gr.Button("♻", elem_id="txt2img_reuse_seed", scale=0, min_width=44)
    dice.click(lambda: -1, outputs=[form["seed"]], **HIDDEN_EVENT)
    with gr.Accordion("Extra seed settings", open=False, elem_id="txt2img_seed_extras"):
        controls.build_rest(Section.SEED_EXTRAS)


def _build_hires(services: Services, controls: Controls) -> None:
    form = controls.form
    with gr.Accordion("Hires. fix", open=False, elem_id="txt2img_hr"):
        form["hires_enabled"] = gr.Checkbox(False, label="Make it larger in a second pass", elem_id="txt2img_enable_hr")
        gr.HTML('<p id="txt2img_hr_size" aria-live="polite"></p>')
        with gr.Row():
            controls.build("hires_upscaler")
            refresh = gr.Button("↻", elem_id="refresh_txt2img_hr_upscaler", scale=0, min_width=44)
            controls.build_rest(Section.HIRES, lines=(0,))
        controls.build_rest(Section.HIRES)

    def look() -> Any:
        services.engine.upscalers.catalogue.refresh()
        return gr.update(choices=choices_of(ROWS["hires_upscaler"], services))

    refresh.click(look, outputs=[form["hires_upscaler"]], **HIDDEN_EVENT)


def _build_refiner(services: Services, controls: Controls) -> None:
    def look() -> Any:
        services.catalogue.refresh()
        return gr.update(choices=choices_of(ROWS["refiner_checkpoint"], services))

    with gr.Accordion("Refiner", open=False, elem_id="txt2img_refiner"), gr.Row():
        controls.build("refiner_checkpoint")
        refresh = gr.Button("↻", elem_id="txt2img_checkpoint_refresh", scale=0, min_width=44)
        controls.build_rest(Section.REFINER)
    refresh.click(look, outputs=[controls.form["refiner_checkpoint"]], **HIDDEN_EVENT)


def _build_style_editor(services: Services, form: Components) -> None:
    with gr.Accordion("Edit styles", open=False, elem_id="txt2img_styles_edit"):
        name = gr.Dropdown(
            _style_names(services),
            label="Name",
            allow_custom_value=True,
            value=None,
            elem_id="txt2img_styles_edit_name",
        )
        prompt = gr.Textbox(
            label="Prompt of the style", lines=2, info="{prompt} stands for what you typed; without it, text is added"
        )
        negative = gr.Textbox(label="Negative prompt of the style", lines=2)
        with gr.Row():
            save = gr.Button("Save style", size="sm", elem_id="txt2img_styles_edit_save")
            delete = gr.Button("Delete style", size="sm", elem_id="txt2img_styles_edit_delete")
        message = gr.HTML(elem_id="txt2img_styles_message")

    def show(chosen: str | None) -> tuple[str, str]:
        style = _book(services).styles.get(chosen or "")
        return (style.prompt, style.negative_prompt) if style else ("", "")

    def change(edit: Callable[[StyleBook], StyleBook], done: str) -> tuple[Any, Any, str]:
        try:
            edit(_book(services)).save()
        except FeatherweightError as error:
            return gr.update(), gr.update(), error_box(str(error))
        names = _style_names(services)
        return gr.update(choices=names), gr.update(choices=names), note_box(done)

    def store(chosen: str | None, text: str, negative_text: str) -> tuple[Any, Any, str]:
        if not (chosen or "").strip():
            return gr.update(), gr.update(), error_box("A style needs a name: type one into the first field.")
        style = Style(str(chosen), text or "", negative_text or "")
        return change(lambda book: book.with_style(style), f"The style {chosen} is stored.")

    def remove(chosen: str | None) -> tuple[Any, Any, str]:
        return change(lambda book: book.without_style(chosen or ""), f"The style {chosen} is missing.")

    outputs = [name, form["styles"], message]
    name.change(show, inputs=[name], outputs=[prompt, negative], **HIDDEN_EVENT)
    save.click(store, inputs=[name, prompt, negative], outputs=outputs, **HIDDEN_EVENT)
    delete.click(remove, inputs=[name], outputs=outputs, **HIDDEN_EVENT)


def _book(services: Services) -> StyleBook:
    return StyleBook.read(services.paths.styles_files)


def _style_names(services: Services) -> list[str]:
    return list(_book(services).styles)


def _sizes(services: Services) -> tuple[int, int]:
    side = default_size(services, wanted_checkpoint(services))
    return side, side


def _samplers(services: Services) -> tuple[Any, Any]:
    """The two lists of samplers as the settings now are."""
    first, second = (gr.update(choices=choices_of(ROWS[key], services)) for key in ("sampler", "hires_sampler"))
    return first, second


def _pasting(services: Services, scripts: ScriptFields) -> Callable[[str], list[Any]]:
    """The handler of the paste button: parameters in the prompt box, or the last job's where it is empty."""

    def paste(text: str) -> list[Any]:
        text = (text or "").strip() or _last_infotext(services)
        parsed = pasted_fields(text, services) if text else {}
        values = form_values(parsed, services)
        if not values:
            note = note_box("No parameters found: paste an image's infotext into the prompt, then press this button.")
            return [*(gr.update() for _ in (*FIELDS, *scripts.pasted_outputs)), note]
        updates = [gr.update(value=values[name]) if name in values else gr.update() for name in FIELDS]
        overrides = values.get("overrides", [])
        updates[FIELDS.index("overrides")] = gr.update(value=overrides, choices=overrides, visible=bool(overrides))
        return [*updates, *scripts.pasted(parsed), note_box("The parameters were filled in.")]

    return paste


def _last_infotext(services: Services) -> str:
    for record in services.queue.store.recent(20):
        images = (record.outcome or {}).get("images", [])
        if images:
            return str(images[0]["infotext"])
    return ""
