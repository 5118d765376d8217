"""`from modules import script_callbacks`: how an extension registers callbacks, and what these are called with.

Each is called at the top level of a script's file: `on_model_loaded(function)`. `name` distinguishes several of one
kind in messages. See `modules.scripts.callbacks.Moment` for what a function is called with.
"""

import sys
from collections.abc import Callable
from typing import Any

from modules.access.roles import open_to
from modules.scripts.acting import acting_now
from modules.scripts.callbacks import (
    AfterCFGCallbackParams,
    BeforeTokenCounterParams,
    CFGDenoisedParams,
    CFGDenoiserParams,
    ExtraNoiseParams,
    ImageGridLoopParams,
    ImageSaveParams,
    Moment,
    Registered,
    UiTrainTabParams,
)
from modules.scripts.loading import calling_file, host_callbacks, register_callback

__all__ = [
    "AfterCFGCallbackParams",
    "BeforeTokenCounterParams",
    "CFGDenoisedParams",
    "CFGDenoiserParams",
    "ExtraNoiseParams",
    "ImageGridLoopParams",
    "ImageSaveParams",
    "UiTrainTabParams",
    "open_to",
]

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


def on_ui_settings(callback: Callback, *, name: str | None = None) -> None:
    """`callback(settings)`: `settings.add(MySettings)` or `settings.flag("key", "Label", False)` add settings."""
    register_callback(Moment.UI_SETTINGS, callback, name)


def on_infotext_pasted(callback: Callback, *, name: str | None = None) -> None:
    """`callback(infotext, fields)`: parameters were pasted; `fields` may be changed."""
    register_callback(Moment.INFOTEXT_PASTED, callback, name)


def on_cfg_denoiser(callback: Callback, *, name: str | None = None) -> None:
    """`callback(CFGDenoiserParams)`: before each evaluation of the model."""
    register_callback(Moment.CFG_DENOISER, callback, name)


def on_cfg_denoised(callback: Callback, *, name: str | None = None) -> None:
    """`callback(CFGDenoisedParams)`: after each evaluation, before guidance."""
    register_callback(Moment.CFG_DENOISED, callback, name)


def on_cfg_after_cfg(callback: Callback, *, name: str | None = None) -> None:
    """`callback(AfterCFGCallbackParams)`: after guidance."""
    register_callback(Moment.CFG_AFTER_CFG, callback, name)


def on_extra_noise(callback: Callback, *, name: str | None = None) -> None:
    """`callback(ExtraNoiseParams)`: extra noise is about to be added."""
    register_callback(Moment.EXTRA_NOISE, callback, name)


def on_before_image_saved(callback: Callback, *, name: str | None = None) -> None:
    """`callback(ImageSaveParams)`: an image is about to be written."""
    register_callback(Moment.BEFORE_IMAGE_SAVED, callback, name)


def on_image_saved(callback: Callback, *, name: str | None = None) -> None:
    """`callback(ImageSaveParams)`: an image was written."""
    register_callback(Moment.IMAGE_SAVED, callback, name)


def on_image_grid(callback: Callback, *, name: str | None = None) -> None:
    """`callback(ImageGridLoopParams)`: a grid is about to be put together."""
    register_callback(Moment.IMAGE_GRID, callback, name)


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


def on_list_optimizers(callback: Callback, *, name: str | None = None) -> None:
    """Accepted and never called: the setting cross_attention_optimization has the program's own list."""


def on_list_unets(callback: Callback, *, name: str | None = None) -> None:
    """Accepted and never called: the denoiser is the checkpoint's own."""


def remove_current_script_callbacks() -> None:
    """Take away what the extension's file has registered whose code runs."""
    loading = calling_file()
    now = acting_now()
    label = loading.extension if loading is not None else now.extension if now is not None else None
    host_callbacks().remove(lambda entry: entry.extension == label)


def remove_callbacks_for_function(callback_func: Callback) -> None:
    """Take away what was registered with this function."""
    host_callbacks().remove(lambda entry: entry.function == callback_func)


def add_callback(
    callbacks: Any, fun: Callback, *, name: str | None = None, category: str = "unknown", **unused: Any
) -> None:
    """Register a function for a moment by its name ("cfg_denoiser"). Raises `ValueError` for one that there is not."""
    register_callback(Moment(category), fun, name)


def clear_callbacks() -> None:
    """The program takes callbacks away when it ends."""


def report_exception(c: Any, job: str) -> None:
    """Write what failed in a callback into the log."""
    c.failed(sys.exc_info()[1] or RuntimeError(job))


def ordered_callbacks(category: str, unordered_callbacks: Any = None, *, enable_user_sort: bool = True) -> list[Any]:
    """What is registered for a moment by its name ("cfg_denoiser"), in its order."""
    return list(host_callbacks().at(Moment(category)))


def enumerate_callbacks() -> list[tuple[str, list[Any]]]:
    """All moments with what is registered for them."""
    return [(moment.value, ordered_callbacks(moment.value)) for moment in Moment]


def _called_by_name(name: str) -> Callback | None:
    """`cfg_denoiser_callback(params)` and its like: calls those of a moment, as the reference UI's own code does."""
    if not name.endswith("_callback") or name.removesuffix("_callback") not in set(Moment):
        return None
    moment = Moment(name.removesuffix("_callback"))
    return lambda *args, **facts: host_callbacks().call(moment, *args, **facts)


def __getattr__(name: str) -> Any:
    found = _called_by_name(name)
    if found is not None:
        return found
    if name == "ScriptCallback":
        return Registered
    if name == "callback_map":
        return {f"callbacks_{moment.value}": list(host_callbacks().at(moment)) for moment in Moment}
    known = ", ".join(f"on_{moment.value}" for moment in Moment)
    raise AttributeError(f"There is no script_callbacks.{name} here. There are: {known}.")
