"""The txt2img tab: prompt on top, parameters left, images right; ids as users' scripts know them.

The form only submits. The job lives in the queue; the page's script watches it by its task id and draws progress and
images, so that closing or reloading the page loses nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.parameters import Section
from modules.prompting.styles import Style, StyleBook
from modules.services import Services
from modules.ui.controls import Components, Controls, choices_of
from modules.ui.defaults import EXAMPLES, default_size, is_shipped, wanted_checkpoint
from modules.ui.extra_networks import extra_networks_tabs
from modules.ui.filling import bounded, choices_of_names, known_only, restored
from modules.ui.form import FIELDS, NO_REFINER, ROWS, form_values, pasted_fields, request_of, sent_values
from modules.ui.messages import error_box, note_box
from modules.ui.output_panel import build_output_panel
from modules.ui.scripts_panel import ScriptFields, build_scripts

HIDDEN_EVENT: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
SCRIPT_IDS: dict[str, Any] = {
    "prefix": "txt2img",
    "ids": {"paste": "paste", "hires_prompt": "hires_prompt", "hires_neg_prompt": "hires_neg_prompt"},
    "fields": list(FIELDS),
}
"""What the page's scripts have to know of this tab: how its elements are named, and what its form holds."""
SCRIPT_TAB = f"featherweight.tab('{SCRIPT_IDS['prefix']}')"


@dataclass(frozen=True)
class ImageTab:
    """A form that makes images, as other tabs and pasted parameters fill it."""

    services: Services
    form: Components
    scripts: ScriptFields
    heads: tuple[gr.Accordion, gr.Accordion]  # of hires fix and of the refiner
    notice: gr.HTML

    @property
    def fields(self) -> list[gr.components.Component]:
        """In the order of `FIELDS`."""
        return [self.form[name] for name in FIELDS]

    @property
    def outputs(self) -> list[Any]:
        """What `filled` gives updates for."""
        return [*self.fields, *self.scripts.pasted_outputs, *self.heads, self.notice]

    def filled(self, parsed: Mapping[str, Any], values: Mapping[str, Any]) -> list[Any]:
        """Updates that put the values of an infotext into the form, without what is not here; the notice names it.
        `parsed` are the infotext's fields."""
        if not values:
            note = note_box("No parameters found: paste an image's infotext into the prompt, then press this button.")
            return [*(gr.update() for _ in self.outputs[:-1]), note]
        known = known_only(values, parsed, self.services)
        fitting = bounded(known.values, self.form)
        found, left_out = fitting.values, (*known.left_out, *fitting.left_out)
        updates = {name: gr.update(value=value) for name, value in found.items()}
        for name, (_, choices) in choices_of_names(self.services).items():
            if name in found:
                updates[name] = gr.update(value=found[name], choices=choices)
        updates["overrides"] = _overrides(found.get("overrides", []))
        heads = [gr.update(open=is_on) for is_on in _are_on(found)]
        note = note_box(" ".join(("The parameters were filled in.", *left_out)))
        fields = [updates.get(name, gr.update()) for name in FIELDS]
        return [*fields, *self.scripts.pasted(parsed), *heads, note]

    def opened(self, kept: str) -> list[Any]:
        """Updates for `fields`, the scripts' fields and `heads` when the page is opened: the lists as they now are, and
        the values that an earlier page kept."""
        side = default_size(self.services, wanted_checkpoint(self.services))
        lists = {name: choices for name, (_, choices) in choices_of_names(self.services).items()}
        lists["styles"] = _style_names(self.services)
        found = restored(kept, self.form, self.scripts.components)
        names = {field: name for name, field in self.form.items()}
        updates: dict[str, dict[str, Any]] = {name: {"choices": choices} for name, choices in lists.items()}
        updates |= {"width": {"value": side}, "height": {"value": side}}
        values: dict[str, Any] = {}
        for field, value in found.items():
            name = names.get(field, "")
            chosen = value if isinstance(value, list) else [value]
            if name and all(one in lists.get(name, chosen) for one in chosen):
                values[name] = value
                updates[name] = {**updates.get(name, {}), "value": value}
        fields = [gr.update(**updates.get(name, {})) for name in FIELDS]
        fields[FIELDS.index("overrides")] = _overrides(values.get("overrides", []))
        others = [gr.update(value=found[field]) if field in found else gr.update() for field in self.scripts.components]
        return [*fields, *others, *(gr.update(open=True) if is_on else gr.update() for is_on in _are_on(values))]

    def keep_after(self, event: Any) -> None:
        """Tell the page's script what the form holds when an event has filled it; fields that are not shown say
        nothing themselves."""
        everything = [*self.fields, *self.scripts.components]
        event.then(
            None, inputs=everything, js=f"(...values) => {SCRIPT_TAB}.keepForm(values)", api_visibility="private"
        )


def _overrides(shown: list[str]) -> dict[str, Any]:
    return gr.update(value=shown, choices=shown, visible=bool(shown))


def _are_on(values: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether hires fix and the refiner take part."""
    return bool(values.get("hires_enabled")), values.get("refiner_checkpoint", NO_REFINER) not in (NO_REFINER, "", None)


def build_txt2img_tab(services: Services, page: gr.Blocks) -> ImageTab:
    """Build the tab's contents inside of the tab that is open now."""
    controls = Controls(services, "txt2img")
    form = controls.form
    with gr.Row(elem_id="txt2img_toprow"):
        with gr.Column(scale=6, elem_classes=["fw-prompts"]):
            controls.build("prompt", "negative_prompt")
            examples = _build_examples(services)
        with gr.Column(scale=2, min_width=240, elem_id="txt2img_actions_column"):
            task = gr.Textbox(visible="hidden", elem_id="txt2img_task")
            kept = gr.Textbox(visible="hidden", elem_id="txt2img_kept_form")
            with gr.Row(elem_id="txt2img_generate_box"):
                interrupt = gr.Button("Interrupt", elem_id="txt2img_interrupt", variant="stop")
                skip = gr.Button("Skip", elem_id="txt2img_skip")
                generate = gr.Button("Generate", elem_id="txt2img_generate", variant="primary")
            gr.HTML('<div id="txt2img_plan_line" aria-live="polite"></div>', elem_id="txt2img_plan")
            with gr.Row(elem_id="txt2img_tools"):
                paste = gr.Button("Paste", elem_id="paste", size="sm")
                clear = gr.Button("Clear", elem_id="txt2img_clear_prompt", size="sm")
                gr.Button("Last job", elem_id="txt2img_restore_progress", size="sm")
                sent = gr.Button("Take", elem_id="txt2img_take_sent", visible="hidden")
            controls.build("styles")
    notice = gr.HTML(elem_id="txt2img_notice")
    with extra_networks_tabs(services), gr.Row(elem_id="txt2img_body"):
        with gr.Column(scale=1, elem_id="txt2img_settings"):
            _build_parameters(services, controls)
            heads = (_build_hires(services, controls), _build_refiner(services, controls))
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
    tab = ImageTab(services, form, scripts, heads, notice)
    _wire_jobs(services, scripts, tab.fields, task, notice, (generate, interrupt, skip))
    tab.keep_after(paste.click(_pasting(tab), inputs=[form["prompt"]], outputs=tab.outputs, **HIDDEN_EVENT))
    wire_sent(tab, sent, task)
    clear.click(lambda: ("", ""), outputs=[form["prompt"], form["negative_prompt"]], **HIDDEN_EVENT)
    for button, text in examples:
        button.click(lambda text=text: text, outputs=[form["prompt"]], **HIDDEN_EVENT)
    _wire_keeping(tab, page, kept)
    return tab


def wire_sent(tab: ImageTab, button: gr.Button, box: gr.Textbox) -> None:
    """Parameters that the page's script sends from an image elsewhere (`takeSent` of send.js, which presses the hidden
    button) fill the form, as far as the settings say that they are sent along. `box` is any text field of the tab: the
    script gives the infotext in place of its value."""

    def fill(text: str) -> list[Any]:
        parsed = pasted_fields(text, tab.services)
        return tab.filled(parsed, sent_values(parsed, tab.services))

    js = f"() => [{SCRIPT_TAB}.sentInfotext]"
    tab.keep_after(button.click(fill, inputs=[box], outputs=tab.outputs, js=js, **HIDDEN_EVENT))


def _wire_keeping(tab: ImageTab, page: gr.Blocks, kept: gr.Textbox) -> None:
    """The page's script keeps the form whenever a field changes, and hands it back when the page is opened."""
    everything = [*tab.fields, *tab.scripts.components]
    opening = page.load(
        tab.opened,
        inputs=[kept],
        outputs=[*everything, *tab.heads],
        js=f"() => [{SCRIPT_TAB}.keptForm()]",
        **HIDDEN_EVENT,
    )
    opening.then(
        None, inputs=everything, js=f"(...values) => {SCRIPT_TAB}.formOpened(values)", api_visibility="private"
    )
    gr.on(
        [field.change for field in everything if hasattr(field, "change")],
        None,
        inputs=everything,
        js=f"(...values) => {SCRIPT_TAB}.keepForm(values)",
        trigger_mode="multiple",
        **HIDDEN_EVENT,
    )


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
            every = settings.previews.show_progress_every_n_steps if settings.previews.live_previews_enable else 0
            services.queue.submit(request, task_id=task_id, preview_every=max(every, 0))
        except FeatherweightError as error:
            return error_box(str(error))
        except (TypeError, ValueError, OverflowError) as error:
            return error_box(str(InvalidValueError(f"A number in the form cannot be used: {error}.")))
        return ""

    sent = generate.click(
        submit,
        inputs=[task, *fields, *scripts.components],
        outputs=[notice],
        js=f"(task, ...values) => [{SCRIPT_TAB}.start(), ...values]",
        **HIDDEN_EVENT,
    )
    sent.success(None, js=f"() => {SCRIPT_TAB}.submitted()", api_visibility="private")
    sent.failure(None, js=f"() => {SCRIPT_TAB}.failed()", api_visibility="private")

    def stop(task_id: str) -> None:
        services.queue.interrupt(
            task_id or None, services.settings.current.interface_alternatives.interrupt_after_current
        )

    interrupt.click(stop, inputs=[task], js=f"() => {SCRIPT_TAB}.task()", **HIDDEN_EVENT)
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
    return head


def _build_refiner(services: Services, controls: Controls) -> gr.Accordion:
    def look() -> Any:
        services.catalogue.refresh()
        return gr.update(choices=choices_of(ROWS["refiner_checkpoint"], services))

    head: gr.Accordion = gr.Accordion("Refiner", open=False, elem_id="txt2img_refiner")
    with head, gr.Row():
        controls.build("refiner_checkpoint")
        refresh = gr.Button("↻", elem_id="txt2img_checkpoint_refresh", scale=0, min_width=44)
        controls.build_rest(Section.REFINER)
    refresh.click(look, outputs=[controls.form["refiner_checkpoint"]], **HIDDEN_EVENT)
    return head


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
        return change(lambda book: book.with_style(style), f"Style '{chosen}' saved.")

    def remove(chosen: str | None) -> tuple[Any, Any, str]:
        return change(lambda book: book.without_style(chosen or ""), f"Style '{chosen}' deleted.")

    outputs = [name, form["styles"], message]
    name.change(show, inputs=[name], outputs=[prompt, negative], **HIDDEN_EVENT)
    save.click(store, inputs=[name, prompt, negative], outputs=outputs, **HIDDEN_EVENT)
    delete.click(remove, inputs=[name], outputs=outputs, **HIDDEN_EVENT)


def _book(services: Services) -> StyleBook:
    return StyleBook.read(services.paths.styles_files)


def _style_names(services: Services) -> list[str]:
    return list(_book(services).styles)


def _pasting(tab: ImageTab) -> Callable[[str], list[Any]]:
    """The handler of the paste button: parameters in the prompt box, or the last job's where it is empty."""

    def paste(text: str) -> list[Any]:
        text = (text or "").strip() or _last_infotext(tab.services)
        parsed = pasted_fields(text, tab.services) if text else {}
        return tab.filled(parsed, form_values(parsed, tab.services))

    return paste


def _last_infotext(services: Services) -> str:
    for record in services.queue.store.recent(20):
        images = (record.outcome or {}).get("images", [])
        if images:
            return str(images[0]["infotext"])
    return ""
