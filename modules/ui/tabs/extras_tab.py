"""The Extras tab: images in, operations over them, results out. The work runs as a task that outlives the page.

Other tabs put an image in by `ExtrasTab.outputs` and `ExtrasTab.given`; the page's script uploads one and presses a
hidden button (send.js).
"""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from modules.access.roles import Role
from modules.errors import FeatherweightError
from modules.jobs.tasks import Task
from modules.jobs.work.extras import EXTRAS_TYPE, ExtrasRequest, ExtrasRun, Source, extras_of, unique_names
from modules.services import Services
from modules.system.texts import page_text
from modules.ui.common.callers import identity_of_page
from modules.ui.common.messages import error_box, note_box
from modules.ui.common.tab_order import WhenOpened
from modules.ui.form.operation_fields import OperationFields, build_operations
from modules.ui.tabs.image_tab import HIDDEN_EVENT
from modules.ui.tabs.task_view import failure_box, task_bar

LOOK_EVERY_S = 0.5
SINGLE, BATCH, FOLDER = 0, 1, 2
EMPTY = '<div class="fw-stage"><p class="fw-empty">Results appear here.</p></div>'


@dataclass(frozen=True)
class ExtrasTab:
    """The tab as other tabs fill it."""

    image: gr.Image
    modes: gr.Tabs
    mode: gr.State

    @property
    def outputs(self) -> list[Any]:
        """List what `given` gives updates for."""
        return [self.image, self.modes, self.mode]

    def given(self, image: Path | str) -> list[Any]:
        """Updates that put the image of a file into the tab, as a single image. The file must lie where Gradio may
        serve it: an upload, or one below GRADIO_TEMP_DIR."""
        return [gr.update(value=str(image)), gr.update(selected=SINGLE), SINGLE]


def build_extras_tab(services: Services, when_opened: WhenOpened) -> ExtrasTab:
    """Build the tab's contents inside of the tab that is open now."""
    mode = gr.State(SINGLE)
    with gr.Row(equal_height=False, elem_id="extras_body"):
        with gr.Column(scale=1, elem_id="extras_settings"):
            with gr.Row(elem_id="extras_generate_box", elem_classes=["fw-go"]):
                interrupt = gr.Button("Interrupt", elem_id="extras_interrupt", variant="stop", interactive=False)
                generate = gr.Button("Generate", elem_id="extras_generate", variant="primary")
            modes, image, inputs = _build_inputs(mode)
            fields = build_operations(services)
        with gr.Column(scale=1, elem_id="extras_results"):
            notice = gr.HTML(elem_id="extras_notice")
            progress = gr.HTML(elem_id="extras_progress")
            gallery = gr.HTML(EMPTY, elem_id="extras_gallery")
    _wire(services, when_opened, fields, (mode, *inputs), (generate, interrupt), (notice, progress, gallery))
    image.change(_changed(services), **HIDDEN_EVENT)
    tab = ExtrasTab(image, modes, mode)
    take = gr.Button("Take", elem_id="extras_take_sent", visible="hidden")
    file = gr.File(type="filepath", visible="hidden")  # its value is what the script gives
    sent = "() => [featherweight.sentToExtras]"
    take.click(lambda path: tab.given(path), inputs=[file], outputs=tab.outputs, js=sent, **HIDDEN_EVENT)
    return tab


def _build_inputs(mode: gr.State) -> tuple[gr.Tabs, gr.Image, list[gr.components.Component]]:
    with gr.Tabs(elem_id="mode_extras", selected=SINGLE, overflow_behavior="wrap") as modes:
        with gr.Tab("Single Image", id=SINGLE, elem_id="extras_single_tab") as single:
            image = gr.Image(
                label="Source",
                type="filepath",
                format="png",
                image_mode=None,  # the file as it is: with another mode Gradio writes a new one, without its texts
                sources=["upload"],
                elem_id="extras_image",
            )
        with gr.Tab("Batch Process", id=BATCH, elem_id="extras_batch_process_tab") as batch:
            files = gr.File(
                label="Images",
                file_count="multiple",
                file_types=["image"],
                type="filepath",
                elem_id="extras_image_batch",
            )
        with gr.Tab("Batch from Directory", id=FOLDER, elem_id="extras_batch_directory_tab") as folder:
            input_dir = gr.Textbox(
                label="Input directory",
                max_lines=1,
                placeholder="A directory on the machine where the server runs",
                elem_id="extras_batch_input_dir",
            )
            output_dir = gr.Textbox(
                label="Output directory",
                max_lines=1,
                placeholder="Empty: the output directory of the settings",
                elem_id="extras_batch_output_dir",
            )
            show = gr.Checkbox(True, label="Show result images", elem_id="extras_show_extras_results")
    for tab, number in ((single, SINGLE), (batch, BATCH), (folder, FOLDER)):
        tab.select(lambda number=number: number, outputs=[mode], **HIDDEN_EVENT)
    return modes, image, [image, files, input_dir, output_dir, show]


def _wire(
    services: Services,
    when_opened: WhenOpened,
    fields: OperationFields,
    inputs: tuple[Any, ...],
    buttons: tuple[gr.Button, gr.Button],
    places: tuple[gr.HTML, gr.HTML, gr.HTML],
) -> None:
    generate, interrupt = buttons
    notice, progress, gallery = places
    seen = gr.State("")  # what the gallery shows: pictures are only put in again when they have changed
    timer = gr.Timer(LOOK_EVERY_S, active=False)
    outputs = [progress, gallery, seen, timer, interrupt]

    def look(sent: gr.Request, shown: str) -> list[Any]:
        task = latest(services, sent.username or "")
        is_working = task is not None and not task.status.is_final
        now = _key(task)
        pictures = gr.skip() if now == shown else _gallery(task)
        return [_progress(task), pictures, now, gr.Timer(active=is_working), gr.update(interactive=is_working)]

    def submit(sent: gr.Request, shown: str, *values: Any) -> list[Any]:
        (mode, image, files, input_dir, output_dir, show), rest = values[:6], values[6:]
        try:
            identity = identity_of_page(services, sent)
            if mode == FOLDER:
                identity.require(Role.ADMIN, "A folder of the server's machine")
            extras = extras_of(services)
            request = ExtrasRequest(
                sources=_sources(services, mode, image, files, input_dir or ""),
                operations=fields.arguments(rest),
                output_dir=extras.folder(output_dir) if mode == FOLDER and (output_dir or "").strip() else None,
                is_batch=mode != SINGLE,
                show=mode != FOLDER or bool(show),
                user=sent.username or "",
            )
            extras.start(request)
        except FeatherweightError as error:
            return [error_box(str(error)), *(gr.skip() for _ in outputs)]
        return ["", *look(sent, shown)[:3], gr.Timer(active=True), gr.update(interactive=True)]

    def stop(sent: gr.Request) -> None:
        task = latest(services, sent.username or "")
        if task is not None:
            services.queue.interrupt(task.task_id)

    generate.click(submit, inputs=[seen, *inputs, *fields.components], outputs=[notice, *outputs], **HIDDEN_EVENT)
    interrupt.click(stop, **HIDDEN_EVENT)
    timer.tick(look, inputs=[seen], outputs=outputs, **HIDDEN_EVENT)
    when_opened(look, inputs=[seen], outputs=outputs, **HIDDEN_EVENT)


def _sources(
    services: Services, mode: int, image: str | None, files: list[str] | None, folder: str
) -> tuple[Source, ...]:
    """The images that the open part of the tab names."""
    if mode == FOLDER:
        return extras_of(services).images_in(folder) if folder.strip() else ()
    paths = [Path(path) for path in (files or ())] if mode == BATCH else [Path(image)] if image else []
    names = unique_names([path.name for path in paths])
    return tuple(Source(name, path) for name, path in zip(names, paths, strict=True))


def latest(services: Services, user: str) -> Task | None:
    """This user's last task of the tab (those of the API save nothing and are not shown)."""
    for task in services.queue.known.tasks(EXTRAS_TYPE):
        run = task.product
        if isinstance(run, ExtrasRun) and run.request.save and run.request.user == user:
            return task
    return None


def _key(task: Task | None) -> str:
    if task is None:
        return ""
    outcome = task.state.outcome or {}
    parts = (task.task_id, len(outcome.get("results", ())), len(outcome.get("failures", ())), task.status.is_final)
    return " ".join(map(str, parts))


def _progress(task: Task | None) -> str:
    if task is None:
        return ""
    state = task.state
    if not state.status.is_final:
        return task_bar(state)
    return failure_box(state) if state.error else ""


def _gallery(task: Task | None) -> str:
    outcome = (task.state.outcome or {}) if task is not None else {}
    results, failures = outcome.get("results", []), outcome.get("failures", [])
    if task is None or not (results or failures):
        return EMPTY
    run = task.product
    shown = list(enumerate(results)) if isinstance(run, ExtrasRun) and run.request.show else []
    parts = []
    if len(shown) == 1:
        parts.append(_large(task.task_id, *shown[0]))
    elif shown:
        parts.append(f'<ul class="fw-extras">{"".join(_small(task.task_id, *one) for one in shown)}</ul>')
    if results and not shown:
        folder = Path(results[-1]["path"] or "").parent
        is_one = len(results) == 1
        parts.append(
            note_box(f"1 image is done, in {folder}." if is_one else f"{len(results)} images are done, in {folder}.")
        )
    if failures:
        rows = "".join(f"<li><b>{escape(one['name'])}</b>: {escape(one['error'])}</li>" for one in failures)
        parts.append(
            page_text(
                f'<div class="fw-message fw-error" role="alert">{len(failures)} of {len(failures) + _count(results)} '
                f'images could not be done:<ul class="fw-failures">{rows}</ul></div>'
            )
        )
    parts += [note_box(text) for text in outcome.get("notices", ())]
    return "".join(parts)


def _count(results: list[dict[str, Any]]) -> int:
    return len({one["source"] for one in results})


def _url(task_id: str, index: int) -> str:
    return f"internal/extras-image?id_task={task_id}&index={index}"


def _large(task_id: str, index: int, one: dict[str, Any]) -> str:
    url = _url(task_id, index)
    lines = [f"{one['width']}x{one['height']}", one["infotext"], one["caption"] or "", one["path"] or ""]
    text = "\n".join(escape(line) for line in lines if line)
    return (
        f'<div class="fw-stage"><a href="{url}" target="_blank"><img src="{url}" alt="{escape(one["source"])}"></a>'
        "</div>"
        f'<div class="fw-tools"><a href="{url}" download>Download</a></div>'
        f'<div class="fw-tools fw-send" role="group" aria-label="Send to" data-send-url="{url}"></div>'
        f'<pre class="fw-infotext" id="html_info_extras" tabindex="0">{text}</pre>'
    )


def _small(task_id: str, index: int, one: dict[str, Any]) -> str:
    url = _url(task_id, index)
    title = escape(", ".join(text for text in (one["source"], one["infotext"], one["caption"]) if text))
    return (
        f'<li><a href="{url}" target="_blank" title="{title}"><img src="{url}" alt="{escape(one["source"])}" '
        f'loading="lazy"></a><span>{escape(one["source"])}</span>'
        '<details><summary>Send to</summary><div class="fw-tools fw-send" role="group" aria-label="Send to" '
        f'id="extras_result_{index}" data-send-url="{url}"></div></details></li>'
    )


def _changed(services: Services) -> Callable[[], None]:
    def tell() -> None:
        for operation in services.operations.in_order(services.settings.current):
            operation.image_changed()

    return tell
