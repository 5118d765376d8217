"""Common parts of the tabs that make images: prompt on top, parameters left, images right; ids as users' scripts
know them.

The form only submits. The job lives in the queue; the page's script watches it by its task id and draws progress and
images, so that closing or reloading the page loses nothing.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from modules.access.roles import Identity
from modules.errors import FeatherweightError, InvalidValueError
from modules.jobs.ownership import claimed
from modules.processing.request.parameters import Section
from modules.processing.request.request import GenerationRequest
from modules.prompting.styles import Style, StyleBook
from modules.services import Services
from modules.system.texts import page_text
from modules.ui.common.callers import identity_of_page
from modules.ui.common.defaults import EXAMPLES, default_size, wanted_checkpoint
from modules.ui.common.messages import error_box, note_box
from modules.ui.form.controls import Components, Controls, choices_of
from modules.ui.form.filling import bounded, choices_of_names, filled_in, known_only, restored
from modules.ui.form.form import FIELDS_OF, NO_REFINER, ROWS, form_values, pasted_fields, sent_values
from modules.ui.form.pasted_keys import left_over
from modules.ui.form.scripts_panel import ScriptFields
from modules.ui.form.ui_config import CONFIGURED

_SIZE = ("width", "height")
SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
HIDDEN_EVENT: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}

Submit = Callable[[Mapping[str, Any], str, Callable[[GenerationRequest], GenerationRequest], str, Identity], None]
"""Puts the job of a form in line. It gets the form's values, what the page's script says of the form's images, what
completes the request with user and scripts, the task id, and the user. Raises `FeatherweightError`, and what wrong
numbers raise."""


def script_ids(prefix: str, *, takes: Mapping[str, str], **ids: str) -> dict[str, Any]:
    """Return what the page's scripts have to know of a tab: how its elements are named, those whose names are other
    ones, what its form holds, and as what an image can be sent to it (name and label of each button)."""
    return {"prefix": prefix, "ids": ids, "fields": list(FIELDS_OF[prefix]), "takes": dict(takes)}


@dataclass(frozen=True)
class ImageTab:
    """A form that makes images, as other tabs and pasted parameters fill it."""

    services: Services
    prefix: str  # txt2img or img2img
    form: Components
    scripts: ScriptFields
    heads: Mapping[str, gr.Accordion]  # of hires fix ("hires"), where there is one, and of the "refiner"
    notice: gr.HTML
    tabs: Mapping[str, gr.Tabs] = field(default_factory=dict)
    """Tabs inside of the form, by the field that names the one that is shown."""

    @property
    def names(self) -> tuple[str, ...]:
        """List the names of the form's fields, in the order in which their values arrive."""
        return FIELDS_OF[self.prefix]

    @property
    def script(self) -> str:
        """Name of the tab in the page's scripts."""
        return f"featherweight.tab('{self.prefix}')"

    @property
    def fields(self) -> list[gr.components.Component]:
        """In the order of `names`."""
        return [self.form[name] for name in self.names]

    @property
    def others(self) -> list[Any]:
        """List what shows which part of the form is on: heads of accordions and tabs."""
        return [*self.heads.values(), *self.tabs.values()]

    @property
    def outputs(self) -> list[Any]:
        """List what `filled` gives updates for."""
        return [*self.fields, *self.scripts.pasted_outputs, *self.others, self.notice]

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
        others = [*self._heads(found, closes=True), *self._shown_tabs(found)]
        read, refused = self.scripts.read(parsed)
        left_out = (*left_out, *refused, *left_over(parsed, read))
        note = note_box(" ".join((filled_in(parsed), *left_out)))
        fields = [updates.get(name, gr.update()) for name in self.names]
        return [*fields, *self.scripts.pasted(parsed), *others, note]

    def _heads(self, values: Mapping[str, Any], closes: bool) -> list[Any]:
        """Updates that open the accordions of what takes part, and close the others if `closes`."""
        is_on = {
            "hires": bool(values.get("hires_enabled")),
            "refiner": values.get("refiner_checkpoint", NO_REFINER) not in (NO_REFINER, "", None),
        }
        return [gr.update(open=is_on[name]) if is_on[name] or closes else gr.update() for name in self.heads]

    def _shown_tabs(self, values: Mapping[str, Any]) -> list[Any]:
        return [gr.update(selected=values[name]) if values.get(name) else gr.update() for name in self.tabs]

    @property
    def lists(self) -> dict[str, list[str]]:
        """Return what the fields that choose by name offer, as it now is."""
        found = {name: choices for name, (_, choices) in choices_of_names(self.services).items()}
        return {**found, "styles": _style_names(self.services)}

    @property
    def listed(self) -> list[gr.components.Component]:
        """List what `current_lists` gives updates for: the fields that choose by name, and the size."""
        return [self.form[name] for name in self.names if name in (*self.lists, *_SIZE)]

    def current_lists(self) -> list[Any]:
        """Updates for `listed` when the page is opened: the lists as they now are, and the size of the model's."""
        side = default_size(self.services, wanted_checkpoint(self.services))
        updates: dict[str, dict[str, Any]] = {name: {"choices": choices} for name, choices in self.lists.items()}
        for name in _SIZE:
            is_configured = CONFIGURED in (self.form[name].elem_classes or [])
            updates[name] = {} if is_configured else {"value": side}
        return [gr.update(**updates[name]) for name in self.names if name in updates]

    def opened(self, kept: str) -> str:
        """Return what an earlier page kept, as far as it is still to be had: JSON of a list with, for each field, each
        field of the scripts and each of `others`, null or what changes of it ({"value": ...}). The page's script gives
        it to the fields that hold something else: of a whole form's updates Gradio would look up each in the whole
        page."""
        lists = self.lists
        found = restored(kept, self.form, self.scripts.components)
        names = {component: name for name, component in self.form.items()}
        values: dict[str, Any] = {}
        for component, value in found.items():
            name = names.get(component, "")
            several = value if isinstance(value, list) else [value]
            if name and all(one in lists.get(name, several) for one in several):
                values[name] = value
        updates: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in values.items()}
        if values.get("overrides"):
            shown = values["overrides"]
            updates["overrides"] = {"value": shown, "choices": [[one, one] for one in shown], "visible": True}
        fields = [updates.get(name) for name in self.names]
        chosen = [{"value": found[one]} if one in found else None for one in self.scripts.components]
        others = [*self._heads(values, closes=False), *self._shown_tabs(values)]
        return json.dumps([*fields, *chosen, *(update if len(update) > 1 else None for update in others)])

    def keep_after(self, event: Any) -> None:
        """Let the page's script keep the form when this event is over."""
        event.then(None, js=f"() => {self.script}.look()", api_visibility="private")


def _overrides(shown: list[str]) -> dict[str, Any]:
    return gr.update(value=shown, choices=shown, visible=bool(shown))


@dataclass(frozen=True)
class TopRow:
    """Row above a form."""

    task: gr.Textbox  # the id of the job that is submitted
    message: gr.Textbox  # a second text, where an event of the script has two
    generate: gr.Button
    interrupt: gr.Button
    skip: gr.Button
    paste: gr.Button
    take_sent: gr.Button  # pressed by the page's script with the parameters of an image elsewhere
    take_steps: gr.Button  # pressed by the page's script with what a model for few steps asks for
    notice: gr.HTML


def build_top_row(controls: Controls, services: Services, build_tools: Callable[[], None] = lambda: None) -> TopRow:
    """Prompts, Generate and tools; `build_tools` adds the tab's own."""
    tab, form = controls.prefix, controls.form
    with gr.Row(elem_id=f"{tab}_toprow", elem_classes=["fw-toprow"]):
        with gr.Column(scale=6, elem_classes=["fw-prompts"]):
            controls.build("prompt", "negative_prompt")
            examples = _build_examples(tab)
        with gr.Column(scale=2, min_width=240, elem_id=f"{tab}_actions_column"):
            task = gr.Textbox(visible="hidden", elem_id=f"{tab}_task")
            message = gr.Textbox(visible="hidden", elem_id=f"{tab}_message")
            with gr.Row(elem_id=f"{tab}_generate_box", elem_classes=["fw-generate-box"]):
                interrupt = gr.Button("Interrupt", elem_id=f"{tab}_interrupt", elem_classes=["fw-stop"], variant="stop")
                skip = gr.Button("Skip", elem_id=f"{tab}_skip", elem_classes=["fw-stop"])
                # Pressed, the page's script has Generate put the form in line, and goes on watching the running job.
                gr.Button("Enqueue", elem_id=f"{tab}_enqueue", elem_classes=["fw-enqueue"])
                generate = gr.Button(
                    "Generate", elem_id=f"{tab}_generate", elem_classes=["fw-generate"], variant="primary"
                )
            line = f'<div id="{tab}_plan_line" class="fw-plan-line" aria-live="polite"></div>'
            gr.HTML(line, elem_id=f"{tab}_plan")
            with gr.Row(elem_id=f"{tab}_tools", elem_classes=["fw-form-tools"]):
                paste = gr.Button("Paste", elem_id="paste" if tab == "txt2img" else f"{tab}_paste", size="sm")
                clear = gr.Button("Clear", elem_id=f"{tab}_clear_prompt", size="sm")
                gr.Button("Last job", elem_id=f"{tab}_restore_progress", size="sm")
                take_sent = gr.Button("Take", elem_id=f"{tab}_take_sent", visible="hidden")
                take_steps = gr.Button("Take", elem_id=f"{tab}_take_steps", visible="hidden")
            build_tools()
            controls.build("styles")
    notice = gr.HTML(elem_id=f"{tab}_notice", elem_classes=["fw-notice"])
    clear.click(lambda: ("", ""), outputs=[form["prompt"], form["negative_prompt"]], **HIDDEN_EVENT)
    for button, text in examples:
        button.click(lambda text=text: text, outputs=[form["prompt"]], **HIDDEN_EVENT)
    return TopRow(task, message, generate, interrupt, skip, paste, take_sent, take_steps, notice)


def build_references(tab: str) -> None:
    """Images that models which edit are shown; the page's script fills the place (`assets/references.js`)."""
    with gr.Accordion("Reference images", open=False, elem_id=f"{tab}_references", elem_classes=["fw-references-part"]):
        gr.Markdown("Shown to models that edit images; the prompt can refer to them.")
        gr.HTML(f'<div class="fw-references" data-tab="{tab}"></div>')


def build_overrides(form: Components, tab: str) -> None:
    """The settings of a pasted image that hold for the form only."""
    form["overrides"] = overrides = gr.Dropdown(
        choices=[],
        multiselect=True,
        allow_custom_value=True,
        visible=False,
        label="Override settings",
        info="From the pasted image, for this form only. Remove what you do not want.",
        elem_id=f"{tab}_override_settings",
    )
    overrides.change(lambda chosen: gr.update(visible=bool(chosen)), [overrides], [overrides], **HIDDEN_EVENT)


def wire_tab(tab: ImageTab, top: TopRow, submit: Submit, pictures: gr.Textbox | None = None) -> None:
    """Everything that happens by itself: jobs and pasting. `pictures` is the field in which the page's
    script names the form's images; `tab.pictures()` of the script says them."""
    _wire_jobs(tab, top, submit, pictures)
    tab.keep_after(top.paste.click(_pasting(tab), inputs=[tab.form["prompt"]], outputs=tab.outputs, **HIDDEN_EVENT))
    sent = f"() => {tab.script}.sent"  # instead of the values of any two text fields
    boxes = [top.task, top.message]
    tab.keep_after(top.take_sent.click(_taking(tab), inputs=boxes, outputs=tab.outputs, js=sent, **HIDDEN_EVENT))
    names = ("steps", "cfg_scale", "sampler", "scheduler", "overrides")
    wanted = f"() => {tab.script}.wantedSteps({list(names)})"
    top.take_steps.click(None, outputs=[tab.form[name] for name in names], js=wanted, api_visibility="private")


def wire_keeping(tabs: Sequence[ImageTab], page: gr.Blocks) -> None:
    """The page's script keeps the forms when something changed, and puts back what was kept when the page is opened.
    Call it in the layout of the whole page: its buttons, which only the script presses, are there before any tab is."""
    for tab in tabs:
        everything = [*tab.fields, *tab.scripts.components]
        kept = gr.Textbox(visible="hidden", elem_id=f"{tab.prefix}_kept_form")
        keep = gr.Button("Keep", elem_id=f"{tab.prefix}_keep", visible="hidden")
        restore = gr.Button("Restore", elem_id=f"{tab.prefix}_restore", visible="hidden")
        # One event for all fields: an event of each would run hundreds of times when many change at once.
        keep.click(None, inputs=everything, js=f"(...values) => {tab.script}.keepForm(values)", **HIDDEN_EVENT)
        restoring = restore.click(
            tab.opened, inputs=[kept], outputs=[kept], js=f"() => [{tab.script}.keptForm()]", **HIDDEN_EVENT
        )
        filling = restoring.then(
            None,
            inputs=[kept],
            outputs=[*everything, *tab.others],
            js=f"(updates) => {tab.script}.changes(updates)",
            api_visibility="private",
        )
        filling.then(None, js=f"() => {tab.script}.restored()", api_visibility="private")

    def look() -> list[Any]:
        return [update for tab in tabs for update in tab.current_lists()]

    opening = page.load(look, outputs=[field for tab in tabs for field in tab.listed], **HIDDEN_EVENT)
    opening.then(None, js="() => featherweight.formsOpened()", api_visibility="private")


def _wire_jobs(tab: ImageTab, top: TopRow, submit: Submit, pictures: gr.Textbox | None) -> None:
    services, count = tab.services, len(tab.names)

    def send(sent: gr.Request, task_id: str, images: str, *values: Any) -> str:
        def completed(request: GenerationRequest) -> GenerationRequest:
            return tab.scripts.chosen(claimed(request, identity), values[count:])

        try:
            identity = identity_of_page(services, sent)
            submit(dict(zip(tab.names, values[:count], strict=True)), images, completed, task_id, identity)
        except FeatherweightError as error:
            return error_box(str(error))
        except (TypeError, ValueError, OverflowError) as error:
            return error_box(str(InvalidValueError(f"A number in the form cannot be used: {error}.")))
        return ""

    begun = f"[{tab.script}.start(), await {tab.script}.pictures(), ...values]"
    sending = top.generate.click(
        send,
        inputs=[top.task, pictures or top.message, *tab.fields, *tab.scripts.components],
        outputs=[top.notice],
        js=f"async (task, images, ...values) => {begun}",
        **HIDDEN_EVENT,
    )
    sending.success(None, js=f"() => {tab.script}.submitted()", api_visibility="private")
    sending.failure(None, js=f"() => {tab.script}.failed()", api_visibility="private")

    def stop(sent: gr.Request, task_id: str) -> None:
        after_batch = services.settings.current.interface_alternatives.interrupt_after_current
        services.queue.interrupt(task_id or None, after_batch, who=identity_of_page(services, sent))

    def skip(sent: gr.Request) -> None:
        services.queue.skip(identity_of_page(services, sent))

    top.interrupt.click(stop, inputs=[top.task], js=f"() => {tab.script}.task()", **HIDDEN_EVENT)
    top.skip.click(skip, **HIDDEN_EVENT)


def preview_every(request: GenerationRequest) -> int:
    """After how many steps a preview is shown, as the settings say; 0: never."""
    previews = request.settings.previews
    return max(previews.show_progress_every_n_steps, 0) if previews.live_previews_enable else 0


def _build_examples(tab: str) -> list[tuple[gr.Button, str]]:
    """Prompts to try; the page's script hides them while another model than the bundled one is chosen."""
    with gr.Row(elem_id=f"{tab}_examples", elem_classes=["fw-examples"]):
        return [(gr.Button(text, size="sm", elem_classes=["fw-example"]), text) for text in EXAMPLES]


def build_size(controls: Controls, services: Services) -> None:
    """Width and height with the button that swaps them."""
    form, tab = controls.form, controls.prefix
    with gr.Column(scale=6, min_width=220):
        controls.build("width", "height")
    form["width"].value = form["height"].value = default_size(services, wanted_checkpoint(services))
    swap = gr.Button("⇅", elem_id=f"{tab}_res_switch_btn", elem_classes=["fw-beside"], scale=0, min_width=44)
    size = [form["width"], form["height"]]
    swap.click(lambda w, h: (h, w), inputs=size, outputs=size, **HIDDEN_EVENT)


def build_seed(controls: Controls) -> None:
    """Seed with its buttons, and the extra seed settings."""
    tab = controls.prefix
    with gr.Row(elem_id=f"{tab}_seed_row", elem_classes=["fw-centered"]):
        controls.build("seed")
        dice = gr.Button("⚄", elem_id=f"{tab}_random_seed", elem_classes=["fw-beside"], scale=0, min_width=44)
        gr.Button("♻", elem_id=f"{tab}_reuse_seed", elem_classes=["fw-beside"], scale=0, min_width=44)
    dice.click(lambda: -1, outputs=[controls.form["seed"]], **HIDDEN_EVENT)
    with gr.Accordion("Extra seed settings", open=False, elem_id=f"{tab}_seed_extras"):
        controls.build_rest(Section.SEED_EXTRAS)


def build_refiner(services: Services, controls: Controls) -> gr.Accordion:
    """The checkpoint that finishes the image, in an accordion."""
    tab = controls.prefix

    def look() -> Any:
        services.catalogue.refresh()
        return gr.update(choices=choices_of(ROWS["refiner_checkpoint"], services))

    head: gr.Accordion = gr.Accordion("Refiner", open=False, elem_id=f"{tab}_refiner")
    with head, gr.Row():
        controls.build("refiner_checkpoint")
        refresh = gr.Button("↻", elem_id=f"{tab}_checkpoint_refresh", scale=0, min_width=44)
        controls.build_rest(Section.REFINER)
    refresh.click(look, outputs=[controls.form["refiner_checkpoint"]], **HIDDEN_EVENT)
    return head


def build_style_editor(services: Services, form: Components, tab: str) -> None:
    """Styles: looked at, changed, deleted."""
    with gr.Accordion("Edit styles", open=False, elem_id=f"{tab}_styles_edit"):
        name = gr.Dropdown(
            _style_names(services), label="Name", allow_custom_value=True, value=None, elem_id=f"{tab}_styles_edit_name"
        )
        prompt = gr.Textbox(
            label="Prompt of the style",
            lines=2,
            info="{prompt} stands for what you typed; without it, text is added",
            elem_id=f"{tab}_styles_edit_prompt",
        )
        negative = gr.Textbox(label="Negative prompt of the style", lines=2, elem_id=f"{tab}_styles_edit_neg_prompt")
        with gr.Row():
            save = gr.Button("Save style", size="sm", elem_id=f"{tab}_styles_edit_save")
            delete = gr.Button("Delete style", size="sm", elem_id=f"{tab}_styles_edit_delete")
        message = gr.HTML(elem_id=f"{tab}_styles_message")

    def show(chosen: str | None) -> tuple[Any, Any]:
        """The texts of a style; for a new name what is typed already stays."""
        style = _book(services).styles.get(chosen or "")
        return (style.prompt, style.negative_prompt) if style else (gr.skip(), gr.skip())

    def change(edit: Callable[[StyleBook], StyleBook], done: str, chosen: list[str] | None) -> tuple[Any, Any, str]:
        try:
            edit(_book(services)).save()
        except FeatherweightError as error:
            return gr.update(), gr.update(), error_box(str(error))
        names = _style_names(services)
        left = [one for one in chosen or () if one in names]  # one that is gone would be an error of each later call
        return gr.update(choices=names), gr.update(choices=names, value=left), note_box(done)

    def store(chosen: str | None, text: str, negative_text: str, used: list[str] | None) -> tuple[Any, Any, str]:
        if not (chosen or "").strip():
            return gr.update(), gr.update(), error_box("A style needs a name: type one into the first field.")
        style = Style(str(chosen), text or "", negative_text or "")
        return change(lambda book: book.with_style(style), page_text(f"Style '{chosen}' saved."), used)

    def remove(chosen: str | None, used: list[str] | None) -> tuple[Any, Any, str]:
        return change(lambda book: book.without_style(chosen or ""), page_text(f"Style '{chosen}' deleted."), used)

    outputs = [name, form["styles"], message]
    name.change(show, inputs=[name], outputs=[prompt, negative], **HIDDEN_EVENT)
    save.click(store, inputs=[name, prompt, negative, form["styles"]], outputs=outputs, **HIDDEN_EVENT)
    delete.click(remove, inputs=[name, form["styles"]], outputs=outputs, **HIDDEN_EVENT)


def _book(services: Services) -> StyleBook:
    return StyleBook.read(services.paths.styles_files)


def _style_names(services: Services) -> list[str]:
    return list(_book(services).styles)


def _pasting(tab: ImageTab) -> Callable[[gr.Request, str], list[Any]]:
    """The handler of the paste button: parameters in the prompt box, or the last job's where it is empty."""

    def paste(sent: gr.Request, text: str) -> list[Any]:
        text = (text or "").strip() or _last_infotext(tab.services, identity_of_page(tab.services, sent))
        parsed = pasted_fields(text, tab.services) if text else {}
        return tab.filled(parsed, form_values(parsed, tab.services))

    return paste


def _taking(tab: ImageTab) -> Callable[[str, str], list[Any]]:
    """The handler of an image that was sent from elsewhere (`takeSent` of send.js), with its infotext and its size as
    "512x768" or "": as pasting, without what the settings say is not sent along."""

    def take(text: str, size: str) -> list[Any]:
        parsed = pasted_fields(text, tab.services)
        values = sent_values(parsed, tab.services)
        sides = SIZE.fullmatch(size)
        if sides and tab.services.settings.current.interface.send_size:
            values |= {"width": int(sides[1]) // 8 * 8, "height": int(sides[2]) // 8 * 8}
        if parsed or not sides:
            return tab.filled(parsed, values)
        updates = {name: gr.update(value=value) for name, value in bounded(values, tab.form).values.items()}
        rest = [gr.update() for _ in tab.outputs[len(tab.names) :]]
        return [*(updates.get(name, gr.update()) for name in tab.names), *rest]

    return take


def _last_infotext(services: Services, who: Identity) -> str:
    for record in services.queue.store.recent(20, who.asks_for):
        images = (record.outcome or {}).get("images", [])
        if images:
            return str(images[0]["infotext"])
    return ""
