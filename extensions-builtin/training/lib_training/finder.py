"""A learning rate for these images: a few steps at rates from tiny to huge on one batch, and the loss at each (Smith
2015, arXiv:1506.01186). What was trained is put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

import torch

from lib_training.optimizers import make_optimizer
from lib_training.run import TrainingRun, step_seed
from modules.errors import FeatherweightError
from modules.system.texts import page_text

STEPS = 20
LOWEST, HIGHEST = 1e-5, 3e-2
SAFETY = 3.0
"""The proposed rate is so much lower than the one after which the loss was lowest: a training goes on for long."""


@dataclass(frozen=True)
class RateSearch:
    """The losses [rate, loss] and the proposal; `said` is a sentence for people."""

    losses: tuple[tuple[float, float], ...]
    rate: float
    said: str


def find_rate(run: TrainingRun, steps: int = STEPS) -> RateSearch:
    """Try rates on the first batch with noise that stays the same, so that the loss shows the rate alone."""
    trainer, config = run.trainer, run.config
    parameters = trainer.parameters
    before = [parameter.detach().clone() for parameter in parameters]
    _, samples = next(iter(run.dataset.batches_from((0, 0))))
    batch = run.batch(run.dataset.items(samples, "rate"))
    growth = (HIGHEST / LOWEST) ** (1 / (steps - 1))
    losses: list[tuple[float, float]] = []
    optimizer = torch.optim.AdamW(parameters, lr=LOWEST)
    try:
        for index in range(steps + 1):
            loss = trainer.gradients([batch], step_seed(config, 0))
            if index:
                losses.append((optimizer.param_groups[0]["lr"], loss))
            if not isfinite(loss) or (losses and loss > 4 * losses[0][1]):
                break
            for group in optimizer.param_groups:
                group["lr"] = LOWEST * growth**index
            optimizer.step()
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        trainer.optimizer = make_optimizer(trainer._groups(), config.training)
        trainer.optimizer.zero_grad(set_to_none=True)
    return proposal(losses)


def proposal(losses: Sequence[tuple[float, float]]) -> RateSearch:
    """The rate below the one with the lowest loss, rounded to one digit. Raises `FeatherweightError` where no loss is
    finite."""
    finite = [(rate, loss) for rate, loss in losses if isfinite(loss)]
    if not finite:
        raise FeatherweightError("The loss is not finite at any learning rate. Check the base model and its VAE.")
    best, lowest = min(finite, key=lambda pair: pair[1])
    rate = _rounded(best / SAFETY)
    said = page_text(f"{rate:g}: the loss was lowest ({lowest:.3f}) at {best:.1e}.")
    if best == finite[-1][0] and len(finite) == len(losses):
        said += page_text(" The loss was still falling there, so a higher rate may work.")
    return RateSearch(tuple(losses), rate, said)


def _rounded(value: float) -> float:
    return float(f"{value:.0e}") if value > 0 and isfinite(log(value)) else LOWEST
