"""A recorder of graphs for the CPU: it repeats the operations of a call on the memory that they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class _Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, _tensors(result)))
        return result


class LogRecorder:
    """What a GPU's graphs do, as far as the results go. `took`: of the seconds in which a call was sent, how many times
    as long the device took for it; None: it is not done when it is asked."""

    def __init__(self, took: float | None = 1.0) -> None:
        self.took = took
        self.recorded = 0
        self.replayed = 0
        self.fails: Exception | None = None

    def record(self, call: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """See `modules.system.devices.Recorder`."""
        if self.fails is not None:
            raise self.fails
        self.recorded += 1
        with _Log() as log:
            output = call()

        def replay() -> None:
            self.replayed += 1
            for func, args, kwargs, before in log.operations:
                for old, new in zip(before, _tensors(func(*args, **kwargs)), strict=True):
                    if old.numel() and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay, output

    def moment(self) -> _Moment:
        """See `modules.system.devices.Recorder`."""
        return _Moment(self.took)


class _Moment:
    def __init__(self, took: float | None) -> None:
        self.took = took

    def seconds_since(self, earlier: _Moment) -> float | None:
        """Next to nothing, or long."""
        return None if self.took is None else 0.0 if self.took <= 1 else 1e9


def _tensors(result: Any) -> list[Tensor]:
    return [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
