"""`modules.call_queue`: what stands around functions of a page that take long. Images are made by the queue of the
program, one job after the other, so that this lock keeps only extensions apart from each other."""

from __future__ import annotations

import functools
import html
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from compat.facades.refusal import refusing
from compat.facades.shared_state import state

log = logging.getLogger(__name__)
queue_lock = threading.RLock()
gpu_queue_lock = queue_lock


def wrap_queued_call(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called while no other one of these is."""

    @functools.wraps(func)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        with queue_lock:
            return func(*args, **keywords)

    return wrapped


def wrap_gradio_gpu_call(func: Callable[..., Any], extra_outputs: Sequence[Any] | None = None) -> Callable[..., Any]:
    """Wrap the same with `state` begun and ended around it, and errors shown in its last output."""

    @functools.wraps(func)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        with queue_lock:
            state.begin(job=getattr(func, "__name__", "extension"))
            try:
                return func(*args, **keywords)
            finally:
                state.end()

    return wrap_gradio_call(wrapped, extra_outputs=extra_outputs, add_stats=True)


def wrap_gradio_call(
    func: Callable[..., Any], extra_outputs: Sequence[Any] | None = None, add_stats: bool = False
) -> Callable[..., Any]:
    """The function; where it raises, `extra_outputs` (or empty outputs) and the error as HTML for the last output."""

    @functools.wraps(func)
    def wrapped(*args: Any, **keywords: Any) -> Any:
        try:
            found = func(*args, **keywords)
            return list(found) if isinstance(found, tuple) else found
        except Exception as error:  # shown where the result would stand, as extensions expect
            log.exception("A function of an extension failed.")
            text = html.escape(f"{type(error).__name__}: {error}")
            empty = list(extra_outputs) if extra_outputs is not None else [None, ""]
            return [*empty, f"<div class='error'>{text}</div>"]

    return wrapped


wrap_gradio_call_no_job = wrap_gradio_call
__getattr__ = refusing("call_queue", {})
