"""`modules.script_callbacks`: what `modules.scripts.script_callbacks` has, callbacks at the moments of a job, listing
callbacks, taking them away."""

from __future__ import annotations

import sys
from typing import Any

from compat.callbacks import (
    AfterCFGCallbackParams,
    CFGDenoisedParams,
    CFGDenoiserParams,
    ExtraNoiseParams,
    ImageGridLoopParams,
    ImageSaveParams,
)
from modules.scripts.acting import acting_now
from modules.scripts.callbacks import Moment, Registered
from modules.scripts.loading import calling_file, host_callbacks, register_callback
from modules.scripts.script_callbacks import *  # noqa: F403 - every name
from modules.scripts.script_callbacks import Callback

__all__ = [
    "AfterCFGCallbackParams",
    "CFGDenoisedParams",
    "CFGDenoiserParams",
    "ExtraNoiseParams",
    "ImageGridLoopParams",
    "ImageSaveParams",
]


def on_cfg_denoiser(callback: Callback, *, name: str | None = None) -> None:
    """`callback(CFGDenoiserParams)`: before each model call."""
    register_callback(Moment.CFG_DENOISER, callback, name)


def on_cfg_denoised(callback: Callback, *, name: str | None = None) -> None:
    """`callback(CFGDenoisedParams)`: after each model call, before guidance."""
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
    """List what is registered for a moment by its name ("cfg_denoiser"), in its order."""
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
    if name.startswith("__"):
        raise AttributeError(name)
    known = ", ".join(f"on_{moment.value}" for moment in Moment)
    raise AttributeError(f"There is no script_callbacks.{name} here. There are: {known}.")
