"""A step cache for flow models: the output of the last model call stands for later ones while it hardly changes.

EasyCache (arXiv:2507.02860): what a diffusion transformer adds to its input, output - input, stays nearly the same over
neighboring steps. From two calls follows how much the output changes per change of the input; multiplied with the way
that the input has gone since the last call, that estimates the error of using it again, without any call. The estimates
add up from step to step, and the model is called as soon as their sum reaches the threshold. Other than a forecast
(`modules.sampling.forecast`), which fixes the called steps in advance, this adapts to the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from modules.sampling.forecast import per_image

WARM_UP = 0.2
"""The share of the steps that are all called first: there the output changes most (the paper: 10 of 50)."""
MIN_WARM_UP = 3
TINY = 1e-12


@dataclass
class StepCache:
    """The last outputs of one sampling run of `total` steps; `reused` says how many calls were saved. `threshold`: the
    sum of estimated relative changes, of the image that changes most, up to which no call is made."""

    total: int
    threshold: float
    reused: int = 0
    _input: Tensor | None = None
    _output: Tensor | None = None
    _added: Tensor | None = None  # output - input of the last call
    _rate: Tensor | None = None  # [B], change of the output over that of the input
    _error: Tensor | float = field(default=0.0)  # [B]

    @property
    def warm_up(self) -> int:
        """How many steps are all called at first."""
        return max(MIN_WARM_UP, math.ceil(self.total * WARM_UP))

    def denoised(self, step: int, x: Tensor, sigma: Tensor) -> Tensor | None:
        """Estimate what the model makes of `x` [B, C, ...] at `sigma` [B], as denoised; None: call it."""
        if self._input is not None and self._input.shape != x.shape:
            self.reset()
        if step < self.warm_up or step >= self.total - 1 or self._input is None or self._rate is None:
            return None
        assert self._output is not None and self._added is not None
        now = x.float()
        self._error = self._error + self._rate * _size(now - self._input) / _size(self._output).clamp_min(TINY)
        if not float(torch.as_tensor(self._error).max()) < self.threshold:  # NaN too is called
            return None
        self._input, self._output = now, now + self._added
        self.reused += 1
        return x - (per_image(sigma, x) * self._output).to(x.dtype)

    def take(self, x: Tensor, sigma: Tensor, denoised: Tensor) -> None:
        """Remember a call and what came of it."""
        now = x.float()
        output = (now - denoised.float()) / per_image(sigma, x)
        if self._input is not None and self._output is not None and self._input.shape == now.shape:
            self._rate = _size(output - self._output) / _size(now - self._input).clamp_min(TINY)
        self._input, self._output, self._added, self._error = now, output, output - now, 0.0

    def reset(self) -> None:
        """Forget everything: the model predicts something else from now on (another prompt, another model)."""
        self._input = self._output = self._added = self._rate = None
        self._error = 0.0


def _size(difference: Tensor) -> Tensor:
    """The mean magnitude of each image, [B]."""
    return difference.abs().flatten(1).mean(1)
