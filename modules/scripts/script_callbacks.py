"""`from modules.scripts import script_callbacks`: how an extension registers callbacks, and what these are called with.

Each is called at the top level of a script's file: `on_model_loaded(function)`. `name` distinguishes several of one
kind in messages. Callbacks at the moments of a job are for user extensions only (`compat.callbacks`); built-in ones use
hooks of `Script` and `ModelUse`. See `modules.scripts.callbacks.Moment` for what a function is called with.
"""

from collections.abc import Callable
from typing import Any

from modules.access.roles import open_to as open_to
from modules.scripts.callbacks import BeforeTokenCounterParams as BeforeTokenCounterParams
from modules.scripts.callbacks import Moment
from modules.scripts.callbacks import UiTrainTabParams as UiTrainTabParams
from modules.scripts.loading import register_callback
from modules.scripts.page_tab import PageTab as PageTab

Callback = Callable[..., Any]


def on_app_started(callback: Callback, *, name: str | None = None) -> None:
    """`callback(page, app)`: page and HTTP API are built; routes may be added to the app."""
    register_callback(Moment.APP_STARTED, callback, name)


def on_model_loaded(callback: Callback, *, name: str | None = None) -> None:
    """`callback(model)`: a checkpoint was loaded."""
    register_callback(Moment.MODEL_LOADED, callback, name)


def on_before_ui(callback: Callback, *, name: str | None = None) -> None:
    """`callback()`: the page is about to be built."""
    register_callback(Moment.BEFORE_UI, callback, name)


def on_before_component(callback: Callback, *, name: str | None = None) -> None:
    """`callback(None, elem_id=..., label=...)`: a control of a form is about to be built."""
    register_callback(Moment.BEFORE_COMPONENT, callback, name)


def on_after_component(callback: Callback, *, name: str | None = None) -> None:
    """`callback(component, elem_id=..., label=...)`: a control of a form was built."""
    register_callback(Moment.AFTER_COMPONENT, callback, name)


def on_ui_tabs(callback: Callback, *, name: str | None = None) -> None:
    """`callback()` returns a list of (gr.Blocks, title, element id): tabs of the page."""
    register_callback(Moment.UI_TABS, callback, name)


def on_page_tabs(callback: Callback, *, name: str | None = None) -> None:
    """`callback()` returns a list of `PageTab`: tabs among the program's own."""
    register_callback(Moment.PAGE_TABS, callback, name)


def on_detectors(callback: Callback, *, name: str | None = None) -> None:
    """`callback(program)` returns `Detectors` (`modules.detection.detection`), which `program.detect` asks."""
    register_callback(Moment.DETECTORS, callback, name)


def on_workers(callback: Callback, *, name: str | None = None) -> None:
    """`callback(place)` receives a `modules.jobs.workers.added.WorkerPlace` and returns `AddedWorkers`."""
    register_callback(Moment.WORKERS, callback, name)


def on_settings_actions(callback: Callback, *, name: str | None = None) -> None:
    """`callback(services)`: builds components at the end of Settings > Actions."""
    register_callback(Moment.SETTINGS_ACTIONS, callback, name)


def on_api(callback: Callback, *, name: str | None = None) -> None:
    """`callback(app, services)`: the HTTP API is built; routes may be added to the app."""
    register_callback(Moment.API, callback, name)


def on_comparison(callback: Callback, *, name: str | None = None) -> None:
    """`callback(paths, report)` writes a `SeriesReport`, which a script asked for, and returns the name of its page."""
    register_callback(Moment.COMPARISON, callback, name)


def on_tasks(callback: Callback, *, name: str | None = None) -> None:
    """`callback(computing)` returns `{type: starter}`: how tasks of these types begin from what was asked for, in the
    server, after a restart and in workers."""
    register_callback(Moment.TASKS, callback, name)


def on_ui_settings(callback: Callback, *, name: str | None = None) -> None:
    """`callback(settings)`: `settings.add(MySettings)` or `settings.flag("key", "Label", False)` add settings."""
    register_callback(Moment.UI_SETTINGS, callback, name)


def on_infotext_pasted(callback: Callback, *, name: str | None = None) -> None:
    """`callback(infotext, fields)`: parameters were pasted; `fields` may be changed."""
    register_callback(Moment.INFOTEXT_PASTED, callback, name)


def on_script_unloaded(callback: Callback, *, name: str | None = None) -> None:
    """`callback()`: the program ends."""
    register_callback(Moment.SCRIPT_UNLOADED, callback, name)


def on_work(callback: Callback, *, name: str) -> None:
    """`callback(values)` returns values, both by name, ready for JSON: work that is done where images are computed, in
    its turn. `Program.compute(name, values)` asks for it and waits."""
    register_callback(Moment.WORK, callback, name)


def on_ui_train_tabs(callback: Callback, *, name: str | None = None) -> None:
    """`callback(UiTrainTabParams)` builds tabs inside of the Train tab: `with gr.Tab("Mine"): ...`."""
    register_callback(Moment.UI_TRAIN_TABS, callback, name)


def on_before_reload(callback: Callback, *, name: str | None = None) -> None:
    """`callback()`: the page is about to be built again."""
    register_callback(Moment.BEFORE_RELOAD, callback, name)


def on_before_token_counter(callback: Callback, *, name: str | None = None) -> None:
    """`callback(BeforeTokenCounterParams)`: the tokens of a prompt are about to be counted; the prompt may be
    replaced."""
    register_callback(Moment.BEFORE_TOKEN_COUNTER, callback, name)
