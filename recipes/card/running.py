"""What the trainings on a card share: weights with a moving average, a learning rate by the clock, and progress."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor, nn

from modules.system.devices import wide_dtype
from recipes.scenes.loss import rate_factor

log = logging.getLogger("card")

REPORT_SECONDS = 10.0


class Learner:
    """Modules that AdamW trains for some seconds: the rate warms up and falls by a cosine of the time. They compute in
    `dtype`, by default bf16 where the device multiplies it itself; the weights that are trained are fp32, and so is
    their moving average, which `use_average` leaves in the modules."""

    def __init__(
        self,
        name: str,
        *modules: nn.Module,
        seconds: float,
        learning_rate: float,
        dtype: torch.dtype | None = None,
        weight_decay: float = 0.0,
        warmup_steps: int = 100,
        final_rate: float = 0.005,
        ema_decay: float = 0.999,
    ) -> None:
        self._name, self._modules, self._seconds = name, modules, seconds
        self._rate, self._final, self._warmup, self._decay = learning_rate, final_rate, warmup_steps, ema_decay
        self._trained = [parameter.detach().clone() for module in modules for parameter in module.parameters()]
        self._average = [weight.clone() for weight in self._trained]
        self._gradients = [torch.zeros_like(weight) for weight in self._trained]
        for weight, gradient in zip(self._trained, self._gradients, strict=True):
            weight.grad = gradient
        for module in modules:
            module.to(dtype or wide_dtype(self._trained[0].device))
        self._working = [parameter for module in modules for parameter in module.parameters()]
        fused = self._trained[0].is_cuda
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=learning_rate, betas=(0.9, 0.99), weight_decay=weight_decay, fused=fused
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
        gradients = torch.autograd.grad(loss, self._working)
        torch._foreach_copy_(self._gradients, gradients)
        nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        self.step += 1
        decay = min(self._decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._average, self._trained, 1 - decay)
        self._show(self._trained)
        self._losses.append(loss.detach())
        if seconds - self._reported > REPORT_SECONDS:
            self._reported = seconds
            self._report(seconds)

    @torch.no_grad()
    def _show(self, weights: list[Tensor]) -> None:
        torch._foreach_copy_([parameter.detach() for parameter in self._working], weights)

    def _report(self, seconds: float) -> None:
        mean = float(torch.stack(self._losses).mean())
        log.info(
            "%s: step %d, loss %.5f, %.1f s, %.1f steps/s", self._name, self.step, mean, seconds, self.step / seconds
        )
        self._losses = []

    def use_average(self) -> None:
        """Put the moving average into the modules, in fp32. Raises ArithmeticError where it is no number any more."""
        if not all(bool(average.isfinite().all()) for average in self._average):
            raise ArithmeticError(f"{self._name}: the weights are not finite after {self.step} steps.")
        for module in self._modules:
            module.float()
        self._show(self._average)
        log.info("%s: %d steps", self._name, self.step)
