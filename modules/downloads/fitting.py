"""Which models of the list fit a machine, by its memory and its cores, without asking any server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from modules.downloads.known import KnownModel

SPARE_GB = 1.5
"""Beside the weights: activations, the VAE's, the program itself."""
HALVED = ("fp8", "int8")
"""In a file's name: it is in 8 bits already."""
CORE_SECONDS = 80.0
"""Seconds of one core per unit of image cost, in fp32 with AVX2; about half of that with VNNI."""


@dataclass(frozen=True)
class Machine:
    """`memory_gb` of what computes: the GPU's, or the main memory where there is none."""

    memory_gb: float
    has_gpu: bool
    cores: int


@dataclass(frozen=True)
class Fitting:
    """A model for a machine. `needs_gb`: its largest part in 8 bits with what images need; `download_gb`: all of its
    files. `is_streamed`: the weights do not fit beside each other, and come from main memory or the disk while it
    computes. `seconds`: of one image on a CPU, roughly; 0 with a GPU."""

    model: KnownModel
    needs_gb: float
    download_gb: float
    is_streamed: bool
    seconds: int


def eight_bit_gb(model: KnownModel) -> float:
    """Return what its file weighs in 8 bits; files of the list have 16, unless their name says otherwise."""
    return model.size_gb if any(word in model.file.lower() for word in HALVED) else model.size_gb / 2


def fitting_models(known: Mapping[str, KnownModel], machine: Machine, count: int = 3) -> list[Fitting]:
    """The best of the list for a machine. With a GPU the largest that fit without streaming go first; on a CPU those
    that are soon here and make an image soon. Where fewer than `count` fit, the smallest are streamed."""
    found = [_fitting(model, known, machine) for model in known.values() if model.good_for]
    if machine.has_gpu:
        found.sort(key=lambda one: (one.is_streamed, one.needs_gb if one.is_streamed else -one.needs_gb))
    else:
        found.sort(key=lambda one: (one.is_streamed, one.model.image_cost + one.download_gb))
    return found[:count]


def _fitting(model: KnownModel, known: Mapping[str, KnownModel], machine: Machine) -> Fitting:
    parts = [known[part] for part in model.parts]
    needs = max(eight_bit_gb(one) for one in (model, *parts)) + SPARE_GB
    return Fitting(
        model,
        round(needs, 1),
        round(model.size_gb + sum(part.size_gb for part in parts), 1),
        needs > machine.memory_gb,
        0 if machine.has_gpu else math.ceil(model.image_cost * CORE_SECONDS / machine.cores),
    )
