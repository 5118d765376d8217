"""The Precision tab: what 8 bits would make of a model, the same images in several formats, and saving as."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from lib_workbench.precision_view import outcome_view
from lib_workbench.precision_work import (
    COMPARED,
    COMPARED_BY_DEFAULT,
    EIGHT_BIT,
    INT8_MATMUL,
    LAYOUTS,
    MAX_BUDGET_GB,
    PRECISION_TYPES,
    SAVED,
    ComparisonRequest,
    PrecisionWork,
    StorageOptions,
)
from modules.access.roles import Role, open_to
from modules.api.schema.name_lists import shown_samplers
from modules.errors import FeatherweightError, InvalidValueError
from modules.jobs.job import JobStatus
from modules.jobs.tasks import Task
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.processing.engine.precision import INT8_FORMATS, split_patterns
from modules.services import Services
from modules.ui.common.defaults import EXAMPLES, is_shipped, wanted_checkpoint
from modules.ui.common.messages import error_box, note_box
from modules.ui.common.tab_order import TabPlace
from modules.ui.form.form import ROWS
from modules.ui.form.seed_field import SeedField
from modules.ui.tabs.header import checkpoint_choice
from modules.ui.tabs.image_tab import HIDDEN_EVENT
from modules.ui.tabs.task_view import failure_box, task_bar

LOOK_EVERY_S = 1.0
FORMAT_LABELS = {
    "16 bit": "16 bit (fp8 off)",
    **{name: spec.label for name, spec in FORMAT_SPECS.items()},
    **{name + INT8_MATMUL: f"{FORMAT_SPECS.get(name).label}, multiplied in int8" for name in INT8_FORMATS},
}
LAYOUT_LABELS = {
    "own": "safetensors",
    "comfyui": "safetensors as ComfyUI declares it (8-bit formats)",
    "gguf": "GGUF (Q8_0, Q5_1, Q5_0 and 16 bits)",
}
NOTHING_YET = (
    "Report: what a format would save and lose, in seconds. Compare: the same images in several formats, with "
    "numbers. Save as: a smaller file. All of it runs next to the images and goes on when this page is closed."
)
Fields = list[gr.components.Component]


def build_precision_tab(place: TabPlace) -> None:
    """Build the tab's contents inside of the tab that is open now. A file that was saved is offered in the header
    too."""
    services = place.services
    work = PrecisionWork(services)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=320):
            with gr.Row(elem_classes=["fw-with-refresh"]):
                model = gr.Dropdown(
                    choices=_models(services),
                    value=_chosen(services),
                    label="Checkpoint",
                    elem_id="precision_checkpoint",
                    scale=1,
                )
                refresh = gr.Button("↻", elem_id="refresh_precision_checkpoint", scale=0, min_width=44)
            with gr.Tabs(elem_id="precision_tabs", overflow_behavior="wrap"):
                with gr.Tab("Report", id="report"):
                    report = gr.Button(
                        "Create report", variant="primary", elem_id="precision_report", elem_classes=["fw-go"]
                    )
                    report_fields = _storage_fields("report", EIGHT_BIT, services)
                with gr.Tab("Compare images", id="compare"):
                    compare = gr.Button(
                        "Compare", variant="primary", elem_id="precision_compare", elem_classes=["fw-go"]
                    )
                    compare_fields = _comparison_fields(services)
                with gr.Tab("Save as", id="convert"):
                    convert = gr.Button("Save", variant="primary", elem_id="precision_convert", elem_classes=["fw-go"])
                    name = gr.Textbox(
                        label="File name",
                        placeholder="smaller.safetensors",
                        info="Saved into models/Stable-diffusion; an existing file is never overwritten.",
                        max_lines=1,
                        elem_id="precision_name",
                    )
                    convert_fields = _storage_fields("convert", SAVED, services)
                    layout = gr.Dropdown(
                        [("As the file name says", ""), *((LAYOUT_LABELS[item], item) for item in LAYOUTS)],
                        value="",
                        label="File layout",
                        elem_id="precision_layout",
                    )
            cancel = gr.Button("Cancel", variant="stop", interactive=False, elem_id="precision_cancel")
        with gr.Column(scale=3, min_width=320):
            result = gr.HTML(_shown(services), elem_id="precision_result")
    timer = gr.Timer(LOOK_EVERY_S, active=False)
    watched = [result, timer, cancel]

    @open_to(Role.VIEWER)
    def look() -> list[Any]:
        working = _is_working(services)
        return [_shown(services), gr.Timer(active=working), gr.update(interactive=working)]

    @open_to(Role.VIEWER)
    def look_and_tell() -> list[Any]:
        """Like `look`; when the work is over, both lists of checkpoints get the new file."""
        if _is_working(services):
            return [*look(), gr.skip(), gr.skip()]
        return [*look(), gr.update(choices=_models(services)), checkpoint_choice(services)]

    @open_to(Role.VIEWER)
    def models() -> Any:
        return gr.update(choices=_models(services), value=_chosen(services))

    def started(start: Callable[[], Task]) -> list[Any]:
        try:
            start()
        except FeatherweightError as error:
            return [error_box(str(error)), *look()[1:]]
        except (TypeError, ValueError, OverflowError) as error:
            return [error_box(str(InvalidValueError(f"A number cannot be used: {error}."))), *look()[1:]]
        return [_shown(services), gr.Timer(active=True), gr.update(interactive=True)]

    @open_to(Role.ADMIN)
    def start_report(checkpoint: str | None, *values: Any) -> list[Any]:
        return started(lambda: work.report(_storage_options(checkpoint, *values)))

    @open_to(Role.ADMIN)
    def start_conversion(checkpoint: str | None, target: str | None, *values: Any) -> list[Any]:
        return started(lambda: work.convert(_storage_options(checkpoint, *values), target or ""))

    @open_to(Role.ADMIN)
    def start_comparison(checkpoint: str | None, *values: Any) -> list[Any]:
        return started(lambda: work.compare(_comparison_request(checkpoint, *values)))

    @open_to(Role.ADMIN)
    def stop() -> list[Any]:
        for task in _tasks(services):
            services.queue.interrupt(task.task_id, why="cancelled")
        return look()

    @open_to(Role.ADMIN)
    def look_again() -> Any:
        services.catalogue.refresh()
        return gr.update(choices=_models(services))

    report.click(start_report, inputs=[model, *report_fields], outputs=watched, **HIDDEN_EVENT)
    convert.click(start_conversion, inputs=[model, name, *convert_fields, layout], outputs=watched, **HIDDEN_EVENT)
    compare.click(start_comparison, inputs=[model, *compare_fields], outputs=watched, **HIDDEN_EVENT)
    cancel.click(stop, outputs=watched, **HIDDEN_EVENT)
    refresh.click(look_again, outputs=[model], **HIDDEN_EVENT)
    timer.tick(look_and_tell, outputs=[*watched, model, place.checkpoint], **HIDDEN_EVENT)
    place.when_opened(look, outputs=watched, **HIDDEN_EVENT)
    place.when_opened(models, outputs=[model], **HIDDEN_EVENT)


def _storage_fields(prefix: str, formats: tuple[str, ...], services: Services) -> Fields:
    settings = services.settings.current
    storage = gr.Dropdown(
        [(FORMAT_LABELS[item], item) for item in formats],
        value=settings.optimizations.fp8_format,
        label="Format",
        elem_id=f"precision_{prefix}_format",
    )
    with gr.Accordion("More", open=False):
        skip = gr.Textbox(
            settings.optimizations.fp8_skip,
            label="Layers to keep",
            info="Regular expressions, one per line",
            lines=2,
            elem_id=f"precision_{prefix}_skip",
        )
        text = gr.Checkbox(
            settings.optimizations.fp8_text_encoder,
            label="Text encoders too",
            elem_id=f"precision_{prefix}_text_encoders",
        )
        budget = gr.Number(
            0,
            label="Fit into (GB)",
            info="0: the format above for all. Otherwise each layer gets its own, with the least total error",
            minimum=0,
            maximum=MAX_BUDGET_GB,
            elem_id=f"precision_{prefix}_budget",
        )
    return [storage, skip, text, budget]


def _comparison_fields(services: Services) -> Fields:
    shipped = is_shipped(wanted_checkpoint(services))
    prompts = gr.Textbox(
        "\n".join(EXAMPLES[:2]) if shipped else "",
        label="Prompts",
        info="One per line; each makes an image in every format",
        lines=3,
        elem_id="precision_prompts",
    )
    formats = gr.CheckboxGroup(
        [(FORMAT_LABELS[item], item) for item in COMPARED],
        value=list(COMPARED_BY_DEFAULT),
        label="Formats",
        info="The first is the reference",
        elem_id="precision_formats",
    )
    with gr.Row():
        steps = gr.Slider(1, 150, value=20, step=1, label="Sampling steps", elem_id="precision_steps")
        seed = SeedField(label="Seed", elem_id="precision_seed")
    with gr.Accordion("More", open=False):
        negative = gr.Textbox(label="Negative prompt", lines=1, elem_id="precision_neg_prompt")
        sampler = gr.Dropdown(
            shown_samplers(services), value="DPM++ 2M", label="Sampling method", elem_id="precision_sampling"
        )
        cfg_scale = gr.Slider(1, 30, value=7, step=0.5, label="CFG Scale", elem_id="precision_cfg_scale")
        with gr.Row():
            width = gr.Number(0, precision=0, label="Width", info="0: the model's own", elem_id="precision_width")
            height = gr.Number(0, precision=0, label="Height", info="0: the model's own", elem_id="precision_height")
    return [prompts, formats, steps, seed, negative, sampler, cfg_scale, width, height]


def _storage_options(
    checkpoint: str | None, storage: str, skip: str | None, text_encoders: bool, budget: Any, layout: str | None = None
) -> StorageOptions:
    return StorageOptions(
        checkpoint=checkpoint or None,
        storage=storage,
        skip=split_patterns(skip or ""),
        text_encoders=bool(text_encoders),
        budget_gb=float(budget or 0),
        layout=layout or "",
    )


def _comparison_request(
    checkpoint: str | None,
    prompts: str | None,
    formats: list[str],
    steps: Any,
    seed: Any,
    negative: str | None,
    sampler: str,
    cfg_scale: Any,
    width: Any,
    height: Any,
) -> ComparisonRequest:
    lines = tuple(line.strip() for line in (prompts or "").splitlines() if line.strip())
    if not lines:
        raise InvalidValueError("There is nothing to compare: type at least one prompt, at most 16, one per line.")
    return ComparisonRequest(
        prompts=lines,
        storages=tuple(storage for storage in COMPARED if storage in formats),
        checkpoint=checkpoint or None,
        negative_prompt=negative or "",
        steps=int(steps or 20),
        cfg_scale=float(cfg_scale),
        sampler=sampler,
        seed=ROWS["seed"].from_form(seed),
        width=int(width or 0) or None,
        height=int(height or 0) or None,
    )


def _tasks(services: Services) -> list[Task]:
    """The work on precision that is known, the newest first."""
    return [task for task in services.queue.known.tasks() if task.type in PRECISION_TYPES]


def _is_working(services: Services) -> bool:
    return any(not task.state.status.is_final for task in _tasks(services))


def _shown(services: Services) -> str:
    """Show what is not finished, and below it how the last one ended."""
    states = [task.state for task in _tasks(services)]
    bars = [task_bar(state) for state in reversed(states) if not state.status.is_final]
    if bars:
        return "".join(bars)
    if not states:
        return note_box(NOTHING_YET)
    last = states[0]
    if last.status is not JobStatus.DONE or last.outcome is None:
        return failure_box(last)
    return f'<div class="fw-outcome">{outcome_view(last.type, last.title, last.outcome)}</div>'


def _models(services: Services) -> list[tuple[str, str]]:
    """Titles to show, names to keep: a title changes when the file's hash becomes known."""
    return [(info.title, info.name) for info in services.catalogue.entries]


def _chosen(services: Services) -> str | None:
    found = services.catalogue.find(wanted_checkpoint(services))
    return found.name if found else None
