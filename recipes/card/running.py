"""What the trainings on a card share: weights with a moving average, a learning rate by the clock, and progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from recipes.scenes.loss import rate_factor

log = logging.getLogger("card")

REPORT_SECONDS = 10.0


class Learner:
    """Parameters that AdamW trains for some seconds: the rate warms up and falls by a cosine of the time; a moving
    average is kept, which `use_average` puts into the parameters."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[nn.Parameter],
        *,
        seconds: float,
        learning_rate: float,
        weight_decay: float = 0.0,
        warmup_steps: int = 100,
        final_rate: float = 0.005,
        ema_decay: float = 0.999,
    ) -> None:
        self._name, self.parameters, self._seconds = name, list(parameters), seconds
        self._rate, self._final, self._warmup, self._decay = learning_rate, final_rate, warmup_steps, ema_decay
        self._average = [parameter.detach().clone() for parameter in self.parameters]
        cuda = self.parameters[0].device.type == "cuda"
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay, fused=cuda
        )
        self.step = 0
        self._began: float | None = None
        self._reported = 0.0
        self._losses: list[Tensor] = []

    def going(self) -> bool:
        """Whether there is time left; the clock runs from the first call."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        return now - self._began < self._seconds

    def learn(self, loss: Tensor) -> None:
        """One step down the loss."""
        assert self._began is not None, "going() starts the clock"
        seconds = time.monotonic() - self._began
        factor = rate_factor(self.step, seconds / self._seconds, self._warmup, self._final)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * factor
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        decay = min(self._decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._average, [parameter.detach() for parameter in self.parameters], 1 - decay)
        self._losses.append(loss.detach())
        if seconds - self._reported > REPORT_SECONDS:
            self._reported = seconds
            self._report(seconds)

    def _report(self, seconds: float) -> None:
        mean = float(torch.stack(self._losses).mean())
        log.info(
            "%s: step %d, loss %.5f, %.1f s, %.1f steps/s", self._name, self.step, mean, seconds, self.step / seconds
        )
        self._losses = []

    @torch.no_grad()
    def use_average(self) -> None:
        """Put the moving average into the parameters. Raises ArithmeticError where it is no number any more."""
        for parameter, average in zip(self.parameters, self._average, strict=True):
            if not bool(average.isfinite().all()):
                raise ArithmeticError(f"{self._name}: the weights are not finite after {self.step} steps.")
            parameter.copy_(average)
        log.info("%s: %d steps", self._name, self.step)


def in_bf16(device: torch.device) -> AbstractContextManager[None]:
    """Matrix products and convolutions in bf16."""
    return torch.autocast(device.type, torch.bfloat16)
