"""What a computation allocates, by PyTorch's profiler."""

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that were allocated at the same time in this thread; what `work` returns is among them.

    That is how far they rose above the lowest point before: `work` may begin by freeing what stood before it.
    """
    gc.collect()
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = work()
    now = lowest = highest = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            lowest = min(lowest, now)
            highest = max(highest, now - lowest)
    del output
    return highest
