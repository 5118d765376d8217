"""Memory that each block leaves for the backward pass, and the time that it takes: measured while a model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from lib_training.checkpointing.solving import Cost
from modules.system.devices import has_streams, synchronize

RUNS = 2  # the quickest counts: the first one warms up


@dataclass
class Measurement:
    """Costs of the blocks of one pass, in the order in which they ran. A block that runs again adds to its first."""

    model: nn.Module
    costs: dict[int, Cost] = field(default_factory=dict)
    _inputs: Any = field(default_factory=WeakTensorKeyDictionary)

    def measure(self, index: int, module: nn.Module, run: Callable[[], Any], inputs: Sequence[Tensor]) -> None:
        """Run a block twice more and note what it took. Random state and buffers (running means) stay as they are."""
        devices = sorted({tensor.device for tensor in inputs if has_streams(tensor.device)}, key=str)
        buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        seconds, saved_bytes = float("inf"), 0
        for _ in range(RUNS):
            kept: list[Tensor] = []  # held until the run is over, so that no two lie in the same memory
            try:
                with _same_random_numbers(devices), saved_tensors_hooks(_keeping(kept), _never):
                    began = _seconds(devices)
                    run()
                    seconds = min(seconds, _seconds(devices) - began)
                saved_bytes = self._counted(kept, inputs)
            finally:
                kept.clear()  # the graph holds on to the hook, and by it would hold on to itself for good
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        own_inputs = [tensor for tensor in inputs if self._inputs.setdefault(tensor, index) == index]
        input_bytes = _storage_bytes(own_inputs)
        known = self.costs.get(index, Cost(0, 0, 0.0))
        self.costs[index] = Cost(
            known.kept_bytes + saved_bytes + input_bytes, known.input_bytes + input_bytes, known.seconds + seconds
        )

    def _counted(self, kept: list[Tensor], inputs: Sequence[Tensor]) -> int:
        """Bytes of what was saved in addition to the model's own tensors and the block's inputs."""
        own = {_pointer(tensor) for tensor in (*self.model.parameters(), *self.model.buffers(), *inputs)}
        return _storage_bytes(tensor for tensor in kept if _pointer(tensor) not in own)


def _keeping(kept: list[Tensor]) -> Callable[[Tensor], None]:
    def pack(tensor: Tensor) -> None:
        kept.append(tensor)

    return pack


def _never(packed: object) -> Tensor:
    raise AssertionError("the graph of a measuring run is thrown away")


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({_pointer(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def _pointer(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_random_numbers(devices: list[torch.device]) -> AbstractContextManager[None]:
    if not devices:
        return torch.random.fork_rng([])
    indices = [device.index or 0 for device in devices]
    return torch.random.fork_rng(indices, device_type=devices[0].type)


def _seconds(devices: list[torch.device]) -> float:
    """Wall clock when the GPUs are done; on the CPU the seconds of all threads, which other programs' load does
    not change much."""
    if not devices:
        return time.process_time()
    for device in devices:
        synchronize(device)
    return time.perf_counter()
