"""Processes of their own for tests, forked from one that has imported the program: a start takes a moment.

A worker of the suite has one such process, which computes nothing itself.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

PRELOADED = [
    *("webui", "modules.api.app", "modules.api.access.guard", "modules.models.loading.load_model", "tests.fakes"),
    # what a model is built of, which is imported by the first one
    *("diffusers.models.autoencoders", "diffusers.models.unets.unet_2d_condition"),
    "transformers.models.clip.modeling_clip",
]
WAIT_S = 120


def forked() -> ForkServerContext:
    """The context whose `Process` is forked from the process that has imported the program."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def call_forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a process of its own; an AssertionError where it ends without a result."""
    context = forked()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(WAIT_S), f"{function.__name__} takes longer than {WAIT_S} s"
        return ours.recv()
    except EOFError:
        process.join(10)
        raise AssertionError(f"{function.__name__} ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join(10)
        ours.close()


def _answer(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(function(*arguments))
    connection.close()
