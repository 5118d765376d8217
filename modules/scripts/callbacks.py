"""Callbacks: functions that an extension's file registers while it is loaded, called at moments of the program.

The names of the moments are those that authors of extensions for the reference UI know; `modules.script_callbacks` has
the `on_...` functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from modules.errors import UnknownNameError
from modules.scripts.acting import Acting, acting

log = logging.getLogger(__name__)


class Moment(StrEnum):
    """When callbacks are called, and with what."""

    APP_STARTED = "app_started"  # (the Gradio page or None, the FastAPI app)
    MODEL_LOADED = "model_loaded"  # (LoadedModel), or `shared.sd_model` for the user's extensions
    BEFORE_UI = "before_ui"  # ()
    BEFORE_COMPONENT = "before_component"  # (None, elem_id=, label=); a control of a form is about to be built
    AFTER_COMPONENT = "after_component"  # (the component, elem_id=, label=)
    UI_TABS = "ui_tabs"  # () -> [(Blocks, title, id)]
    PAGE_TABS = "page_tabs"  # () -> [PageTab]; while the page is built
    API = "api"  # (the FastAPI app, Services); while the HTTP API is built
    COMPARISON = "comparison"  # (Paths, SeriesReport) -> the name of the page that was written
    TASKS = "tasks"  # (Computing) -> {type of task: its starter}; in the server and in workers
    SETTINGS_ACTIONS = "settings_actions"  # (Services); inside of the page Actions of the Settings tab
    WORKERS = "workers"  # (WorkerPlace) -> AddedWorkers; in the server, while it is put together
    DETECTORS = "detectors"  # (Program) -> Detectors; once, when something is asked of them first
    UI_TRAIN_TABS = "ui_train_tabs"  # (UiTrainTabParams); inside of the Train tab's layout
    UI_SETTINGS = "ui_settings"  # (SettingsGroup), or () where it takes nothing; while the program starts
    INFOTEXT_PASTED = "infotext_pasted"  # (infotext, its fields, which may be changed)
    CFG_DENOISER = "cfg_denoiser"  # (CFGDenoiserParams)
    CFG_DENOISED = "cfg_denoised"  # (CFGDenoisedParams)
    CFG_AFTER_CFG = "cfg_after_cfg"  # (AfterCFGCallbackParams)
    EXTRA_NOISE = "extra_noise"  # (ExtraNoiseParams)
    BEFORE_IMAGE_SAVED = "before_image_saved"  # (ImageSaveParams)
    IMAGE_SAVED = "image_saved"  # (ImageSaveParams)
    IMAGE_GRID = "image_grid"  # (ImageGridLoopParams)
    BEFORE_TOKEN_COUNTER = "before_token_counter"  # (BeforeTokenCounterParams)
    WORK = "work"  # (values by name) -> values, by the callback's name; in the process that computes images
    BEFORE_RELOAD = "before_reload"  # (); the page is about to be built again
    SCRIPT_UNLOADED = "script_unloaded"  # (); while the program ends


AT_START = (Moment.UI_SETTINGS, Moment.BEFORE_UI, Moment.UI_TABS, Moment.UI_TRAIN_TABS, Moment.APP_STARTED)
"""Moments that the start waits for: a callback has only so much time."""


@dataclass
class UiTrainTabParams:
    """Arguments of a tab of training; `txt2img_preview_params` are the controls of txt2img, which are not given
    here."""

    txt2img_preview_params: list[Any]


@dataclass
class BeforeTokenCounterParams:
    """A prompt whose tokens are about to be counted: `prompt` and `steps` may be replaced."""

    prompt: str
    steps: int
    styles: list[str]
    is_positive: bool = True


@dataclass(frozen=True)
class Registered:
    """A callback with whose it is."""

    moment: Moment
    function: Callable[..., Any]
    extension: str
    name: str | None = None
    acting: Acting | None = None

    @property
    def callback(self) -> Callable[..., Any]:
        """The function, by the name that extensions of the reference UI look for."""
        return self.function

    @property
    def script(self) -> str:
        """Whose file registered it."""
        return self.extension

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.extension} ({self.name or getattr(self.function, '__name__', 'callback')})"

    def failed(self, error: BaseException) -> None:
        """Say so in the log, and among the faults of its extension."""
        reason = f"{type(error).__name__}: {error}"
        if self.acting is not None:
            reason = self.acting.owner.note(self.moment.value, error).reason
        log.error("The callback %s of %s failed: %s", self.moment.value, self.label, reason, exc_info=error)


class Callbacks:
    """The callbacks of all extensions, in the order in which they were registered."""

    def __init__(self) -> None:
        self._registered: list[Registered] = []

    def add(self, entry: Registered) -> None:
        """Register one."""
        self._registered.append(entry)

    @property
    def all(self) -> tuple[Registered, ...]:
        """Callbacks of all moments."""
        return tuple(self._registered)

    def at(self, moment: Moment) -> tuple[Registered, ...]:
        """List those of a moment."""
        return tuple(entry for entry in self._registered if entry.moment is moment)

    def remove(self, wanted: Callable[[Registered], bool]) -> None:
        """Take away those that `wanted` says."""
        self._registered = [entry for entry in self._registered if not wanted(entry)]

    def forget(self, extension: str) -> None:
        """Take away all that a file registered (it could not be loaded to its end)."""
        self._registered = [entry for entry in self._registered if entry.extension != extension]

    def call(self, moment: Moment, *args: Any, **facts: Any) -> list[Any]:
        """Call those of a moment; what they return. One that fails is logged by name, the others are called."""
        results = []
        for entry in self.at(moment):
            try:
                results.append(self.run(entry, *args, **facts))
            except (Exception, SystemExit) as error:  # somebody else's code must not cost the program
                entry.failed(error)
        return results

    def model_loaded(self, model: Any, view: Callable[[Any], Any]) -> None:
        """Tell of a checkpoint that was loaded: ours get the model, the user's a `view` of it."""
        for entry in self.at(Moment.MODEL_LOADED):
            is_foreign = entry.acting is not None and entry.acting.is_foreign
            try:
                self.run(entry, view(model) if is_foreign else model)
            except (Exception, SystemExit) as error:  # as above
                entry.failed(error)

    def task_starters(self, computing: Any) -> dict[str, Any]:
        """Return how tasks of extensions begin in the process of this `Computing`, by their types; of several for one
        type the first."""
        found = self.call(Moment.TASKS, computing)
        return {type: starter for one in reversed(found) for type, starter in one.items()}

    def report(self, paths: Any, report: Any) -> str:
        """Have a `SeriesReport` written among the reports. Returns its page's name, "" where no extension writes one;
        raises what the extension raises."""
        return next((str(self.run(entry, paths, report)) for entry in self.at(Moment.COMPARISON)), "")

    def compute(self, name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the work of this name done here. Raises `UnknownNameError`, and what the work raises."""
        works = {str(entry.name): entry for entry in self.at(Moment.WORK)}
        if name not in works:
            raise UnknownNameError.of("work of extensions", name, list(works))
        found: Mapping[str, Any] = self.run(works[name], values)
        return found

    def run(self, entry: Registered, *args: Any, **facts: Any) -> Any:
        """Call one, as code of its extension; what it raises is raised."""
        with acting(entry.acting):
            if entry.acting is not None and entry.moment in AT_START:
                return entry.acting.limited(lambda: entry.function(*args, **facts))
            return entry.function(*args, **facts)
