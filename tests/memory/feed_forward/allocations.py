"""What a computation allocates, by PyTorch's profiler."""

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that were allocated at the same time in this thread; what `work` returns is among them."""
    gc.collect()  # what earlier tests left would count as freed by this work
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = work()
    now = highest = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    del output
    return highest
