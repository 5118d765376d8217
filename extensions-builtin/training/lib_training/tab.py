"""The Train tab: three presets, a folder, a name. Everything else follows from them, and can be changed below."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components.dataframe import DataframeData

from lib_training.config import ADAPTERS, OPTIMIZERS, TrainingConfig, config_of
from lib_training.presets import PRESETS, count_images, is_small, preset_config
from lib_training.view import training_view
from lib_training.work import RATE_KIND, TRAINING_KIND, TrainingWork
from modules.access.roles import Role, open_to
from modules.errors import FeatherweightError, InvalidValueError
from modules.jobs.job import JobStatus
from modules.jobs.tasks import Task
from modules.jobs.work.captions import start_interrogation
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.scripts.callbacks import Moment, UiTrainTabParams
from modules.services import Services
from modules.system.file_names import given_path, lies_in
from modules.system.texts import page_text
from modules.ui.common.gradio_scripts import write_no_interface_files
from modules.ui.common.messages import error_box, note_box
from modules.ui.common.tab_order import TabPlace, WhenOpened
from modules.ui.tabs.image_tab import HIDDEN_EVENT
from modules.ui.tabs.task_view import failure_box, task_bar

LOOK_EVERY_S = 1.5
BUDGETS = {"No limit": None, "4 GB": 4.0, "6 GB": 6.0, "8 GB": 8.0, "12 GB": 12.0, "16 GB": 16.0}
EMPTY = "Choose what you train, and the folder with its images. The rest follows from them."
MAX_TABLE = 500
TAGS_SHOWN = 40
Fields = dict[str, gr.components.Component]
Values = Mapping[str, Any]


def build_train_tab(place: TabPlace) -> None:
    """Build the tab's contents inside of the tab that is open now, with what other extensions add to it below."""
    _build_training(place.services, place.when_opened)
    callbacks = place.services.scripts.callbacks
    if callbacks.at(Moment.UI_TRAIN_TABS):
        with gr.Tabs(elem_id="train_tabs"):
            callbacks.call(Moment.UI_TRAIN_TABS, UiTrainTabParams([]))


def _build_training(services: Services, when_opened: WhenOpened) -> None:
    work = TrainingWork(services)
    fields: Fields = {}
    with gr.Row(equal_height=False):
        with gr.Column(scale=3):
            with gr.Row(elem_classes=["fw-go"]):
                pause = gr.Button("Pause", elem_id="train_pause", variant="stop", interactive=False)
                start = gr.Button("Start", elem_id="train_start", variant="primary")
            _build_form(fields)
            _build_details(fields)
            find = fields.pop("find")
        with gr.Column(scale=4, elem_id="train_results_panel"):
            refusal = gr.HTML(elem_id="train_refusal")
            result = gr.HTML(_shown(services), elem_id="train_result")
    _build_captions(services)
    timer = gr.Timer(LOOK_EVERY_S, active=False)

    def config(values: tuple[Any, ...]) -> TrainingConfig:
        return form_config(services, dict(zip(fields, values, strict=True)))

    @open_to(Role.ADMIN)
    def submit(*values: Any) -> list[Any]:
        return pressed(lambda: work.start(config(values)))

    @open_to(Role.ADMIN)
    def search(*values: Any) -> list[Any]:
        return pressed(lambda: work.find_rate(config(values)))

    @open_to(Role.ADMIN)
    def stop() -> list[Any]:
        """Pause what works, or go on with what was paused."""
        if (paused := _paused(services)) is not None and not _is_working(services):
            return pressed(lambda: services.queue.again(paused))
        for kind in (TRAINING_KIND, RATE_KIND):
            for task in services.queue.known.tasks(kind):
                services.queue.interrupt(task.task_id, why="cancelled")
        return ["", *look()]

    def pressed(act: Callable[[], object]) -> list[Any]:
        """Do what a button asks for. A refusal stays until the next one is pressed, whatever is being trained
        meanwhile."""
        try:
            act()
        except FeatherweightError as error:
            return [error_box(str(error)), *look()]
        return ["", *look()]

    @open_to(Role.ADMIN)
    def look() -> list[Any]:
        working, paused = _is_working(services), _paused(services)
        word = "Resume" if paused is not None and not working else "Pause"
        controls = [gr.Timer(active=working), gr.update(value=word, interactive=working or paused is not None)]
        return [_shown(services), *controls, gr.update(interactive=not working)]

    @open_to(Role.ADMIN)
    def opened() -> list[Any]:
        """Return what `look` does, and the form of what is being trained: another browser may have begun it, or this
        page before a reload."""
        task = _working(services)
        values = shown_values(config_of(task.recorded_request()["config"])) if task is not None else {}
        return [*look(), *(gr.update(value=values[name]) if name in values else gr.update() for name in fields)]

    inputs, outputs = list(fields.values()), [result, timer, pause, start]
    start.click(submit, inputs=inputs, outputs=[refusal, *outputs], **HIDDEN_EVENT)
    assert isinstance(find, gr.Button)
    find.click(search, inputs=inputs, outputs=[refusal, *outputs], **HIDDEN_EVENT)
    pause.click(stop, outputs=[refusal, *outputs], **HIDDEN_EVENT)
    timer.tick(look, outputs=outputs, **HIDDEN_EVENT)
    when_opened(opened, outputs=[*outputs, *inputs], **HIDDEN_EVENT)


def form_config(services: Services, values: Values) -> TrainingConfig:
    """The configuration that the form asks for. Raises `InvalidValueError`."""
    name = str(values["name"] or "").strip()
    folder = str(values["folder"] or "").strip()
    if not name:
        raise InvalidValueError("Enter a name for the adapter.")
    count = count_images(folder)
    if not count:
        raise InvalidValueError(f"There are no images in {folder or 'the folder'}. Name the folder that holds them.")
    changes: dict[str, dict[str, Any]] = {}
    for place, key in _DETAILS.items():
        section, _, field = place.partition(".")
        if values[key] not in (None, "", 0):
            value = values[key]
            changes.setdefault(section, {})[field] = int(value) if field in _WHOLE else value
    chosen = services.settings.current.vae.forge_additional_modules
    if chosen:
        changes.setdefault("model", {})["modules"] = list(chosen)
    base = services.catalogue.default(stored_checkpoint(services.settings.current, services.catalogue).name)
    return preset_config(
        str(values["preset"]),
        folder,
        name,
        base.title,
        count,
        str(values["trigger"] or "").strip(),
        BUDGETS.get(str(values["budget"])),
        changes,
        is_small(base.path),
    )


def shown_values(config: TrainingConfig) -> Values:
    """Return what of a configuration the form shows, by the names of its fields."""
    values: dict[str, Any] = {
        "folder": config.data.folders[0].path if config.data.folders else "",
        "name": config.output.name,
        "trigger": config.output.trigger,
    }
    for place, key in _DETAILS.items():
        section, _, field = place.partition(".")
        values[key] = getattr(getattr(config, section), field)
    return values


_DETAILS = {
    "adapter.type": "type",
    "adapter.rank": "rank",
    "adapter.text_rank": "text_rank",
    "training.steps": "steps",
    "training.batch": "batch",
    "training.learning_rate": "learning_rate",
    "training.optimizer": "optimizer",
    "data.resolution": "resolution",
    "loss.shift": "shift",
}
"""Keys of the configuration, and the fields that change them where they are filled in."""
_WHOLE = frozenset({"rank", "text_rank", "steps", "batch", "resolution"})


def _build_form(fields: Fields) -> None:
    choices = [(preset.label, name) for name, preset in PRESETS.items()]
    fields["preset"] = gr.Radio(choices, value="character", label="What to train", elem_id="train_preset")
    gr.HTML(
        "<dl class='fw-presets'>"
        + "".join(f"<dt>{preset.label}</dt><dd>{preset.says}</dd>" for preset in PRESETS.values())
        + "</dl>"
    )
    fields["folder"] = gr.Textbox(
        label="Folder of images",
        elem_id="train_folder",
        info="On the computer that runs this program; captions are .txt files next to the images.",
        max_lines=1,
    )
    with gr.Row():
        fields["name"] = gr.Textbox(label="Name", elem_id="train_name", max_lines=1)
        fields["trigger"] = gr.Textbox(
            label="Trigger word", elem_id="train_trigger", placeholder="optional", max_lines=1
        )
        fields["budget"] = gr.Dropdown(
            list(BUDGETS),
            value="No limit",
            label="Memory to use",
            info="No limit: the base is stored in 8 bits during training, whatever FP8 weight says.",
            elem_id="train_budget",
        )


def _build_details(fields: Fields) -> None:
    with gr.Accordion("More", open=False, elem_id="train_more"):
        gr.HTML("<p>Empty or 0: decided by the choice above.</p>")
        with gr.Row():
            fields["type"] = gr.Dropdown(
                [("", ""), *((name, name) for name in ADAPTERS)], value="", label="Kind", elem_id="train_type"
            )
            fields["rank"] = gr.Number(None, label="Rank", elem_id="train_rank", precision=0)
            fields["text_rank"] = gr.Number(None, label="Text encoder's rank", elem_id="train_text_rank", precision=0)
        with gr.Row():
            fields["steps"] = gr.Number(None, label="Steps", elem_id="train_steps", precision=0)
            fields["batch"] = gr.Number(None, label="Batch", elem_id="train_batch", precision=0)
            fields["resolution"] = gr.Number(None, label="Resolution", elem_id="train_resolution", precision=0)
        with gr.Row():
            fields["learning_rate"] = gr.Number(None, label="Learning rate", elem_id="train_learning_rate")
            fields["optimizer"] = gr.Dropdown(
                [("", ""), *((name, name) for name in OPTIMIZERS)],
                value="",
                label="Optimizer",
                elem_id="train_optimizer",
            )
            fields["shift"] = gr.Number(
                None,
                label="Flow shift",
                info="Flow models: shift of training towards noise; 1: none.",
                elem_id="train_shift",
            )
            fields["find"] = gr.Button("Find a learning rate", elem_id="train_find_rate")


# -- captions ----------------------------------------------------------------------------------------------------------


write_no_interface_files()  # of this class


class TextTable(gr.Dataframe):
    """Rows of texts. Its parent imports pandas for any value, also for none: 22 MB and half a second of each start."""

    is_template = True  # for Gradio: drawn as its parent

    def preprocess(self, payload: DataframeData) -> list[list[Any]]:
        return [list(row) for row in payload.data]

    def postprocess(self, value: list[list[str]] | None) -> DataframeData:  # type: ignore[override]
        return DataframeData(headers=self.headers, data=value or [])


def _build_captions(services: Services) -> None:
    """The editor: a look at the folder, thumbnails, captions in a table, search and replace, interrogators."""
    with gr.Accordion("Images and captions", open=False, elem_id="train_captions"):
        with gr.Row():
            folder = gr.Textbox(label="Folder", elem_id="train_captions_folder", max_lines=1, scale=3)
            look = gr.Button("Show", elem_id="train_captions_look", scale=1)
        report = gr.HTML(elem_id="train_captions_report")
        # Gradio loads the scripts of a component that is not visible once it is: these two's are 240 kB.
        gallery = gr.Gallery(label="Images", elem_id="train_captions_gallery", columns=8, height=220, visible=False)
        table = TextTable(
            headers=["image", "caption"],
            elem_id="train_captions_table",
            interactive=True,
            wrap=True,
            type="array",
            visible=False,
        )
        with gr.Row():
            find = gr.Textbox(label="Search", elem_id="train_captions_find", max_lines=1)
            replacement = gr.Textbox(label="Replace with", elem_id="train_captions_replace", max_lines=1)
            replace_all = gr.Button("Replace in all", elem_id="train_captions_replace_all")
        with gr.Row():
            model = gr.Radio(["clip", "deepbooru"], value="clip", label="Interrogator", elem_id="train_captions_model")
            caption = gr.Button("Caption those without", elem_id="train_captions_interrogate")
            save = gr.Button("Save captions", variant="primary", elem_id="train_captions_save")

    @open_to(Role.ADMIN)
    def read(place: str) -> list[Any]:
        try:
            said, rows, images = look_at(services, place)
        except FeatherweightError as error:
            return [error_box(str(error)), *(gr.update(value=[], visible=False) for _ in (table, gallery))]
        return [said, *(gr.update(value=value, visible=True) for value in (rows, images))]

    @open_to(Role.ADMIN)
    def write(place: str, rows: list[list[str]]) -> str:
        try:
            count = save_captions(services, place, rows)
        except FeatherweightError as error:
            return error_box(str(error))
        return note_box("1 caption was saved." if count == 1 else f"{count} captions were saved.")

    @open_to(Role.ADMIN)
    def interrogate(place: str, rows: list[list[str]], name: str) -> list[Any]:
        try:
            return ["", interrogated(services, place, rows, name)]
        except FeatherweightError as error:
            return [error_box(str(error)), rows]

    look.click(read, inputs=[folder], outputs=[report, table, gallery], **HIDDEN_EVENT)
    save.click(write, inputs=[folder, table], outputs=[report], **HIDDEN_EVENT)
    replace_all.click(replaced, inputs=[table, find, replacement], outputs=[table], **HIDDEN_EVENT)
    caption.click(interrogate, inputs=[folder, table, model], outputs=[report, table], **HIDDEN_EVENT)


def look_at(services: Services, place: str) -> tuple[str, list[list[str]], list[Any]]:
    """Show what is wrong with a folder, its captions, and thumbnails."""
    from PIL import Image

    from lib_training.folders import folder_config, read_folders

    _check_folder(services, place)
    found = read_folders(folder_config(place), 0)
    tags = ", ".join(f"{html.escape(tag)} ({count})" for tag, count in found.tags[:TAGS_SHOWN])
    words = "".join(note_box(problem) for problem in found.problems)
    count = f"{len(found.samples)} {'image' if len(found.samples) == 1 else 'images'}"
    said = f"<p>{count}</p>" if found.problems else page_text(f"<p>{count} · No problems found.</p>")
    root = given_path(place)
    images = []
    for sample in found.samples[:MAX_TABLE]:
        with Image.open(sample.path) as opened:
            image = opened.convert("RGB")
        image.thumbnail((160, 160))
        images.append((image, sample.path.name))
    rows = [
        [sample.path.relative_to(root).as_posix(), " | ".join(sample.captions)] for sample in found.samples[:MAX_TABLE]
    ]
    return f"{said}{words}<p>{tags}</p>", rows, images


def save_captions(services: Services, place: str, rows: list[list[str]]) -> int:
    """Write the captions that differ from the files'. Raises `InvalidValueError` for images outside of the folder."""
    from lib_training.folders import read_captions, write_captions

    _check_folder(services, place)
    saved = 0
    for image, text in _pairs(place, rows):
        captions = tuple(part.strip() for part in text.split(" | ") if part.strip())
        if captions and captions != read_captions(image):
            write_captions(image, captions)
            saved += 1
    return saved


def interrogated(services: Services, place: str, rows: list[list[str]], name: str) -> list[list[str]]:
    """The rows, with captions by an interrogator where there is none; each is a task in line behind images."""
    from lib_training.folders import open_image

    _check_folder(services, place)
    pairs = _pairs(place, rows)
    asked = {
        image: start_interrogation(
            services.queue, services.captioners, open_image(image), name, services.settings.current
        )
        for image, text in pairs
        if not text.strip()
    }
    for task in asked.values():
        task.wait()
    texts = [asked[image].result()["caption"] if image in asked else text for image, text in pairs]
    return [[row[0], text] for row, text in zip(rows, texts, strict=True)]


@open_to(Role.ADMIN)
def replaced(rows: list[list[str]], find: str, replacement: str) -> list[list[str]]:
    """The captions with one text in place of another, whatever its case."""
    if not find:
        return rows
    return [[row[0], re.sub(re.escape(find), lambda _: replacement, row[1], flags=re.IGNORECASE)] for row in rows]


def _pairs(place: str, rows: list[list[str]]) -> list[tuple[Path, str]]:
    root = given_path(place).resolve()
    found = []
    for row in rows:
        image = root / str(row[0])
        if not lies_in(image, (root,)) or not image.is_file():
            raise InvalidValueError(f"{row[0]} is no longer in the folder. Press Show again.")
        found.append((image, str(row[1] or "")))
    return found


def _check_folder(services: Services, place: str) -> None:
    allowed = services.history_folders
    folder = given_path(place).resolve()
    if not folder.is_dir():
        raise InvalidValueError(f"{place or 'The folder'} is not a folder. Enter one with images.")
    if allowed is not None and not lies_in(folder, allowed):
        raise InvalidValueError(
            f"{place} is outside of the folders that may be read while other machines reach this server."
        )


# -- what is shown -----------------------------------------------------------------------------------------------------


def _working(services: Services) -> Task | None:
    """The training, or the search for a learning rate, that waits or runs."""
    found = (task for kind in (TRAINING_KIND, RATE_KIND) for task in services.queue.known.tasks(kind))
    return next((task for task in found if not task.state.status.is_final), None)


def _is_working(services: Services) -> bool:
    return _working(services) is not None


def _paused(services: Services) -> str | None:
    """The id of the newest training, if it was paused."""
    newest = next(iter(services.queue.known.tasks(TRAINING_KIND)), None)
    return newest.task_id if newest is not None and newest.status is JobStatus.INTERRUPTED else None


def _shown(services: Services) -> str:
    """The search that runs or was last, and the training."""
    parts = []
    for task in services.queue.known.tasks(RATE_KIND)[:1]:
        state = task.state
        if not state.status.is_final:
            parts.append(task_bar(state))
        elif state.outcome is not None and "said" in state.outcome:
            parts.append(note_box(f"Learning rate {state.outcome['said']}"))
        else:
            parts.append(failure_box(state))
    trainings = [task.state for task in services.queue.known.tasks(TRAINING_KIND)]
    running = [state for state in reversed(trainings) if not state.status.is_final]
    parts.extend(training_view(state) for state in (running or trainings[:1]))
    return "".join(parts) or note_box(EMPTY)
