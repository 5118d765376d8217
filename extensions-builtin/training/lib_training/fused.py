"""A fused backward pass: each value is moved as soon as its gradient is known, and the gradient is given back at once,
so that the gradients of all never lie in memory together (the idea of LOMO, Lv et al., arXiv:2306.09782)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lib_training.failures import TrainingError


@dataclass
class FusedSteps:
    """State of what has been moved in the pass that is under way."""

    optimizer: torch.optim.Optimizer
    moved: int = 0
    squares: float = 0.0  # of all gradients' elements, summed up
    _groups: dict[nn.Parameter, dict[str, object]] = field(default_factory=dict)

    @property
    def norm(self) -> float:
        """Return the norm of all gradients together."""
        return float(self.squares**0.5)

    @contextmanager
    def during(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """While open, a backward pass moves these."""
        self.moved, self.squares = 0, 0.0
        self._groups = {parameter: group for group in self.optimizer.param_groups for parameter in group["params"]}
        hooks = []
        for parameter in parameters:
            hooks.append(parameter.register_post_accumulate_grad_hook(self._move))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._groups = {}

    def begin_again(self) -> None:
        """A pass that ran out of memory is made again. Raises `TrainingError` where it had moved something already."""
        if self.moved:
            raise TrainingError(
                "Memory ran out in the middle of a fused backward pass, which cannot be made again; the last saved "
                "state is kept. Set memory.checkpointing to all, or training.fused_backward to false."
            )

    def _move(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter) and parameter.grad is not None
        square = float(parameter.grad.float().square().sum())
        if square - square != 0:  # not finite
            raise FusedGradientError
        self.squares += square
        groups = self.optimizer.param_groups
        self.optimizer.param_groups = [{**self._groups[parameter], "params": [parameter]}]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
        parameter.grad = None
        self.moved += 1


class FusedGradientError(Exception):
    """A gradient is not finite; what was moved before it stays moved."""
