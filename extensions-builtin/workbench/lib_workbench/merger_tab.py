"""The Checkpoint Merger tab: three models, a method, a name; the work runs as a task that outlives the page."""

import json
from typing import Any

import gradio as gr

from lib_workbench.merge_work import MERGE_TYPE, merger_of, start_merge
from lib_workbench.merging.request import ConfigSource, MergeMethod, MergeOptions
from modules.access.roles import Role, open_to
from modules.errors import FeatherweightError
from modules.jobs.job import JobStatus
from modules.jobs.tasks import TaskState
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.models.autoencoders.files import BUILT_IN
from modules.processing.engine.precision import split_patterns
from modules.services import Services
from modules.system.texts import page_text
from modules.ui.common.messages import error_box, note_box
from modules.ui.common.tab_order import TabPlace
from modules.ui.tabs.header import checkpoint_choice
from modules.ui.tabs.image_tab import HIDDEN_EVENT
from modules.ui.tabs.task_view import failure_box, task_bar

LOOK_EVERY_S = 1.0
MODEL_FIELDS = (("primary", "Primary", "A"), ("secondary", "Secondary", "B"), ("tertiary", "Tertiary", "C"))
DESCRIPTIONS = {
    MergeMethod.NO_INTERPOLATION: page_text(
        "The result is <b>A</b>: to convert it, bake in a VAE, or discard weights."
    ),
    MergeMethod.WEIGHTED_SUM: page_text("The result is <b>A × (1 − M) + B × M</b>. Takes models A and B."),
    MergeMethod.ADD_DIFFERENCE: page_text("The result is <b>A + (B − C) × M</b>. Takes models A, B and C."),
}
Fields = dict[str, gr.components.Component]


def format_choices() -> list[tuple[str, str]]:
    """List what a result can be stored in: labels and names."""
    return [(spec.label, name) for name, spec in FORMAT_SPECS.items()]


def build_merger_tab(place: TabPlace) -> None:
    """Build the tab's contents inside of the tab that is open now. A finished merge is offered in the header too."""
    services = place.services
    merger = merger_of(services)
    fields: Fields = {}
    with gr.Row(equal_height=False):
        with gr.Column(scale=3):
            with gr.Row(elem_classes=["fw-go"]):
                cancel = gr.Button("Cancel", elem_id="modelmerger_cancel", variant="stop", interactive=False)
                start = gr.Button("Merge", elem_id="modelmerger_merge", variant="primary")
            description, refreshes, refresh_vae = _build_form(services, fields)
            read = _build_metadata(fields)
        with gr.Column(scale=2, elem_id="modelmerger_results_panel"):
            result = gr.HTML(_shown(services), elem_id="modelmerger_result")
    timer = gr.Timer(LOOK_EVERY_S, active=False)
    models = [fields[name] for name, _, _ in MODEL_FIELDS]

    @open_to(Role.ADMIN)
    def submit(*values: Any) -> list[Any]:
        try:
            options = MergeOptions(**_texts(dict(zip(fields, values, strict=True))))
            settings = services.settings.current
            skip = split_patterns(settings.optimizations.fp8_skip)
            start_merge(services.queue, merger, options, skip, settings.optimizations.fp8_text_encoder)
        except FeatherweightError as error:
            return [error_box(str(error)), *controls()]
        return [_shown(services), gr.Timer(active=True), gr.update(interactive=True)]  # also if it is over already

    def controls() -> list[Any]:
        working = _is_working(services)
        return [gr.Timer(active=working), gr.update(interactive=working)]

    @open_to(Role.VIEWER)
    def look() -> list[Any]:
        choices = gr.update() if _is_working(services) else gr.update(choices=_choices(services))
        return [_shown(services), *controls(), *(choices for _ in models)]

    @open_to(Role.ADMIN)
    def look_and_tell() -> list[Any]:
        """Like `look`; when the work is over the header gets the new checkpoint too."""
        seen = look()
        return [*seen, gr.update() if _is_working(services) else checkpoint_choice(services)]

    @open_to(Role.ADMIN)
    def stop() -> str:
        for task in services.queue.known.tasks(MERGE_TYPE):
            services.queue.interrupt(task.task_id, why="cancelled")
        return _shown(services)

    @open_to(Role.ADMIN)
    def refresh() -> list[Any]:
        services.catalogue.refresh()
        return [gr.update(choices=_choices(services))] * len(models)

    @open_to(Role.ADMIN)
    def refresh_vaes() -> Any:
        services.engine.vaes.refresh()
        return gr.update(choices=_vae_names(services))

    @open_to(Role.ADMIN)
    def read_metadata(*names: str | None) -> str:
        try:
            found = merger.metadata_of([name for name in names if name])
        except FeatherweightError as error:
            raise gr.Error(str(error)) from error
        return json.dumps(found, indent=2, ensure_ascii=False)

    start.click(submit, inputs=list(fields.values()), outputs=[result, timer, cancel], **HIDDEN_EVENT)
    cancel.click(stop, outputs=[result], **HIDDEN_EVENT)
    timer.tick(look_and_tell, outputs=[result, timer, cancel, *models, place.checkpoint], **HIDDEN_EVENT)
    place.when_opened(look, outputs=[result, timer, cancel, *models], **HIDDEN_EVENT)
    method = fields["method"]
    assert isinstance(method, gr.Radio)
    method.input(_method_changed, inputs=[method], outputs=[description, *models], **HIDDEN_EVENT)
    read.click(read_metadata, inputs=models, outputs=[fields["metadata_json"]], **HIDDEN_EVENT)
    refresh_vae.click(refresh_vaes, outputs=[fields["vae"]], **HIDDEN_EVENT)
    for button in refreshes:
        button.click(refresh, outputs=models, **HIDDEN_EVENT)


def _build_form(services: Services, fields: Fields) -> tuple[gr.HTML, list[gr.Button], gr.Button]:
    method = MergeMethod.WEIGHTED_SUM
    description = gr.HTML(_described(method), elem_id="modelmerger_interp_description")
    refreshes = []
    with gr.Column(elem_id="modelmerger_models"):
        for index, (name, word, letter) in enumerate(MODEL_FIELDS):
            with gr.Row(elem_classes=["fw-with-refresh"]):
                fields[name] = gr.Dropdown(
                    choices=_choices(services),
                    value=None,
                    label=f"{word} model ({letter})",
                    elem_id=f"modelmerger_{name}_model_name",
                    interactive=index < method.models,
                    scale=1,
                )
                refreshes.append(gr.Button("↻", elem_id=f"refresh_checkpoint_{letter}", scale=0, min_width=44))
    fields["name"] = gr.Textbox(
        label="Custom Name (Optional)",
        elem_id="modelmerger_custom_name",
        info="File name in models/Stable-diffusion, without extension; a / makes a folder. Without one, the name says "
        "what was merged.",
        max_lines=1,
    )
    fields["multiplier"] = gr.Slider(
        0, 1, 0.3, step=0.05, label="Multiplier (M) - set to 0 to get model A", elem_id="modelmerger_interp_amount"
    )
    fields["method"] = gr.Radio(
        [item.value for item in MergeMethod],
        value=method.value,
        label="Interpolation Method",
        elem_id="modelmerger_interp_method",
    )
    with gr.Row():
        fields["storage"] = gr.Dropdown(
            format_choices(),
            value="fp16",
            label="Save as",
            elem_id="modelmerger_storage",
        )
        fields["config_source"] = gr.Radio(
            [source.value for source in ConfigSource],
            value=ConfigSource.ANY.value,
            label="Copy config from",
            elem_id="modelmerger_config_method",
        )
    with gr.Row(elem_id="modelmerger_vae_row"):
        with gr.Row(elem_classes=["fw-with-refresh"]):
            fields["vae"] = gr.Dropdown(
                _vae_names(services), value=BUILT_IN, label="Bake in VAE", elem_id="modelmerger_bake_in_vae", scale=1
            )
            refresh_vae = gr.Button("↻", elem_id="modelmerger_refresh_bake_in_vae", scale=0, min_width=44)
        fields["discard"] = gr.Textbox(
            label="Discard weights with matching name",
            elem_id="modelmerger_discard_weights",
            placeholder="a regular expression, such as ^model_ema\\.",
            max_lines=1,
        )
    return description, refreshes, refresh_vae


def _build_metadata(fields: Fields) -> gr.Button:
    with gr.Accordion("Metadata", open=False, elem_id="modelmerger_metadata"):
        with gr.Row():
            fields["save_metadata"] = gr.Checkbox(
                True, label="Save metadata", elem_id="modelmerger_save_metadata", min_width=160
            )
            fields["add_recipe"] = gr.Checkbox(
                True, label="Add merge recipe metadata", elem_id="modelmerger_add_recipe", min_width=160
            )
            fields["copy_metadata"] = gr.Checkbox(
                True, label="Copy metadata from merged models", elem_id="modelmerger_copy_metadata", min_width=160
            )
        fields["metadata_json"] = gr.TextArea("{}", label="Metadata in JSON format", lines=5)
        read: gr.Button = gr.Button("Read metadata from selected checkpoints", elem_id="modelmerger_read_metadata")
    return read


def _texts(values: dict[str, Any]) -> dict[str, Any]:
    """The form's values; fields that were never filled are None."""
    return {name: "" if value is None else value for name, value in values.items()}


def _is_working(services: Services) -> bool:
    return any(not task.state.status.is_final for task in services.queue.known.tasks(MERGE_TYPE))


def _shown(services: Services) -> str:
    """The merges that are not finished, or else how the last one ended."""
    states = [task.state for task in services.queue.known.tasks(MERGE_TYPE)]
    working = [state for state in reversed(states) if not state.status.is_final]
    if working:
        return "".join(task_bar(state) for state in working)
    return _end(states[0]) if states else note_box("The result appears in the list of checkpoints when it is done.")


def _end(state: TaskState) -> str:
    if state.status is not JobStatus.DONE or state.outcome is None:
        return failure_box(state)
    outcome = state.outcome
    large = outcome["size_bytes"] > 1e9
    size = f"{outcome['size_bytes'] / (1e9 if large else 1e6):.2f} {'GB' if large else 'MB'}"
    done = page_text(
        f"{outcome['file']} is ready: {outcome['tensors']} tensors, {size}, in {outcome['seconds']:.1f} s."
    )
    return "".join(note_box(text) for text in (done, *outcome["notices"]))


def _described(method: MergeMethod) -> str:
    return f"<p>{DESCRIPTIONS[method]}</p>"


@open_to(Role.ADMIN)
def _method_changed(label: str) -> list[Any]:
    method = MergeMethod(label)
    return [_described(method), *(gr.update(interactive=index < method.models) for index in range(len(MODEL_FIELDS)))]


def _choices(services: Services) -> list[tuple[str, str]]:
    """Titles to show, names to keep: a title changes when the file's hash becomes known."""
    return [(info.title, info.name) for info in services.catalogue.entries]


def _vae_names(services: Services) -> list[str]:
    return [BUILT_IN, *(info.name for info in services.engine.vaes.entries)]
