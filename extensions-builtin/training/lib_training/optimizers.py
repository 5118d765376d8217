"""Optimizers of libraries by name, the learning rate over the steps, and a running mean of what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn

from lib_training.config import TrainConfig
from lib_training.failures import TrainingError

Groups = Sequence[tuple[Sequence[nn.Parameter], float]]
"""Parameters with their learning rate."""


def make_optimizer(groups: Groups, options: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that `options` names. Raises `TrainingError` for one whose library or device is missing."""
    named: list[dict[str, Any]] = [
        {"params": list(parameters), "lr": rate, "full_rate": rate} for parameters, rate in groups if parameters
    ]
    decay, name = options.weight_decay, options.optimizer
    if name == "adamw":
        return torch.optim.AdamW(named, weight_decay=decay)
    if name == "adafactor":
        return torch.optim.Adafactor(named, weight_decay=decay)
    if name == "adamw8bit":
        return _eight_bits(named, decay)
    try:
        from prodigyopt import Prodigy
    except ImportError as error:
        raise TrainingError(
            "The optimizer prodigy needs the package prodigyopt. Install it (pip install prodigyopt), or choose adamw."
        ) from error
    if len({rate for _, rate in groups}) > 1:  # it estimates one rate for all
        named = [{**group, "lr": named[0]["lr"], "full_rate": named[0]["lr"]} for group in named]
    found: torch.optim.Optimizer = Prodigy(
        named, weight_decay=decay, use_bias_correction=True, safeguard_warmup=options.warmup > 0, d_coef=1.0
    )
    return found


def _eight_bits(named: list[dict[str, Any]], decay: float) -> torch.optim.Optimizer:
    first: nn.Parameter = named[0]["params"][0]
    if first.device.type != "cuda":
        raise TrainingError(
            "adamw8bit needs an NVIDIA GPU, and this training runs elsewhere. Choose adamw or adafactor."
        )
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise TrainingError(
            "The optimizer adamw8bit needs the package bitsandbytes. Install it (pip install bitsandbytes), or choose "
            "adafactor, which takes less memory too."
        ) from error
    found: torch.optim.Optimizer = AdamW8bit(named, weight_decay=decay)
    return found


def rate_factor(step: int, options: TrainConfig) -> float:
    """The learning rate over its maximum at a step, counted from 0: it rises over the warm-up, then falls."""
    if step < options.warmup:
        return (step + 1) / options.warmup
    progress = min(1.0, (step - options.warmup) / max(1, options.steps - options.warmup))
    if options.schedule == "constant":
        return 1.0
    falling = 0.5 * (1 + cos(pi * progress)) if options.schedule == "cosine" else 1 - progress
    return options.final_rate + (1 - options.final_rate) * falling


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to its share of the maximum."""
    for group in optimizer.param_groups:
        group["lr"] = group["full_rate"] * factor


@dataclass
class MovingAverage:
    """An exponential running mean of parameters, float32. With `decay` 0 there is none."""

    parameters: Sequence[nn.Parameter]
    decay: float
    means: list[Tensor] = field(init=False)
    _own: list[Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.means = [parameter.detach().float().clone() for parameter in self.parameters] if self.decay else []

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step `step` (from 1): early means forget faster, so that the beginning does not stay in them."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for mean, parameter in zip(self.means, self.parameters, strict=False):
            mean.lerp_(parameter.detach().float(), 1 - decay)

    @torch.no_grad()
    def swap_in(self) -> None:
        """Have the parameters hold the means until `swap_out`."""
        if self.means:
            self._own = [parameter.detach().clone() for parameter in self.parameters]
            for mean, parameter in zip(self.means, self.parameters, strict=True):
                parameter.copy_(mean)

    @torch.no_grad()
    def swap_out(self) -> None:
        """The parameters hold their own values again."""
        for own, parameter in zip(self._own, self.parameters, strict=False):
            parameter.copy_(own)
        self._own = []
