"""The setting "CUDA graphs": whether the denoiser's calls of a job are recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modules.memory.graphs import GraphMode
from modules.models.loading.loaded import LoadedModel


@contextmanager
def using_graphs(model: LoadedModel, wanted: str, tell: Callable[[str], None]) -> Iterator[None]:
    """While open, calls are recorded as `wanted`, a word of `GraphMode`, says. Where they are wanted and cannot be,
    `tell` gets the reason. Graphs stay for the next job with the model."""
    mode, graphs = GraphMode(wanted), model.graphs
    problem = "only NVIDIA GPUs record them" if not graphs.can_record else None
    if model.streaming is not None:  # it is short of memory, or the parts take turns on the device
        problem = "the weights are streamed"
    if problem is not None:
        if mode is GraphMode.ON:
            tell(f"CUDA graphs have no effect: {problem}.")
        mode = GraphMode.OFF
    graphs.begin_job(mode, tell)
    try:
        yield
    finally:
        graphs.end_job()
