"""Whether it pays to forecast the negative prompt's half of a call where the prompt's half is computed: bundled model.

Run `python -m benchmarks.forecast_halves [--prompts 20] [--sampler Euler] [--minutes 15]`; it prints a table and writes
`results/forecast-halves.json`. Another run goes on with the prompts that are left, and begins anew where the model's
file is another. What is saved is counted in rows that the model computes (two a call with guidance), not in seconds;
beside it stands the PSNR to the images of all rows, and that of *Forecast steps* alone where it saves as much, on the
straight line between the two nearest strengths.

Whole calls are forecast as by *Forecast steps*; of those that are left, some compute the prompt's row alone. Guidance
multiplies an error of the other row by `CFG_SCALE - 1`, where an error of a whole forecast stays as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from benchmarks.full_size import CPU, ROOT
from benchmarks.report import print_table, read_result, write_result
from lib_workbench.comparison.compare import psnr_db
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import Hooks
from modules.processing.request.model_use import ConditionedDenoise, ModelUse, rows_of_context
from modules.processing.request.request import GenerationRequest
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.forecast import (
    LAST_SIGMA,
    MAX_LAST_SIGMA,
    MIN_WARM_UP,
    ForecastOptions,
    called_steps,
    forecast_weights,
    usable_strength,
)
from modules.settings.values import Settings
from recipes.scenes.layout import SIZE_PX
from recipes.scenes.scoring import ColorPrompt, color_prompts

RESULT = "forecast-halves"
STEPS, CFG_SCALE = 20, 6.0
CHECKPOINT = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
RUNS = {"Euler": "Automatic", "DPM++ 2M": "Karras"}
DECAY = 0.7
"""What a call counts in a fit, over the next one."""
RIDGE, TINY = 1e-4, 1e-20


class Kind(StrEnum):
    """From what the negative prompt's output is forecast: its own course; the course of its difference from the
    prompt's; both courses and what the prompt's output turned out to be, each as much as fitted so far."""

    OWN = "own"
    DIFFERENCE = "difference"
    FITTED = "fitted"


@dataclass(frozen=True)
class Way:
    """Whole calls are forecast at `strength`. Of the calls that are left, the first `both` compute both rows, and then
    one in `every` (0: none)."""

    strength: float
    both: int = STEPS
    every: int = 1
    kind: Kind = Kind.FITTED

    @property
    def is_present(self) -> bool:
        """Whether it is the program's own, without halves."""
        return self.both >= STEPS

    def pattern(self, sampler: str) -> str:
        """For each step what is computed: both rows (x), the prompt's (+), none (.)."""
        usable = usable_strength(SAMPLERS.get(sampler), SCHEDULES.get(RUNS[sampler]), self.strength)
        pattern, calls = "", 0
        for called in called_steps(STEPS, ForecastOptions(usable)) if usable else [True] * STEPS:
            later = calls - self.both
            is_whole = later < 0 or (self.every > 0 and later % self.every == self.every - 1)
            pattern += ("x" if is_whole else "+") if called else "."
            calls += called
        return pattern

    def name(self, sampler: str) -> str:
        """As in the results."""
        what = f"strength {self.strength:g}" if self.is_present else str(self.kind)
        return f"{self.pattern(sampler)} {what}"


HALVES = ((0.0, 8, 2), (0.0, 4, 2), (0.2, 14, 0), (0.2, 12, 2), (0.2, 4, 2), (0.3, 12, 0), (0.3, 8, 2))
WAYS = (
    *(Way(strength) for strength in (0.2, 0.3, 0.4, 0.5)),
    *(Way(*halves) for halves in HALVES),
    *(Way(*halves, kind) for halves in HALVES[:2] for kind in (Kind.OWN, Kind.DIFFERENCE)),
)


class HalfForecast:
    """The negative prompt's outputs, `(x - denoised) / sigma` as in `modules.sampling.forecast`, where the prompt's are
    known, of one image in one run."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._first: float | None = None
        self._times: list[float] = []
        self._prompt: list[Tensor] = []
        self._negative: list[Tensor] = []
        self._products: Tensor | None = None  # of the features with each other and with what came true, [F, F + 1]

    def forecast(self, sigma: float, prompt: Tensor) -> Tensor:
        """The negative prompt's output beside this one of the prompt's."""
        assert self._products is not None, "there were too few calls of both rows"
        features, products = self._features(sigma, prompt), self._products
        if self._kind is Kind.FITTED:
            square = products[:, :-1]
            ridge = torch.eye(len(square), dtype=square.dtype) * (RIDGE * square.diagonal().mean() + TINY)
            shares = torch.linalg.solve(square + ridge, products[:, -1])
        else:
            shares = (products[:, -1] / products[:, 0].clamp_min(TINY)).clamp(0.0, 1.0)
        change: Tensor = (shares @ features).reshape(prompt.shape).to(prompt.dtype)
        return self._start(prompt) + change

    def take(self, sigma: float, prompt: Tensor, negative: Tensor) -> None:
        """Both rows were computed."""
        if len(self._times) >= MIN_WARM_UP - 1:
            true = (negative - self._start(prompt)).double().reshape(1, -1)
            features = self._features(sigma, prompt)
            products = features @ torch.cat([features, true]).T
            self._products = products if self._products is None else DECAY * self._products + products
        self._times.append(self._time(sigma))
        self._prompt.append(prompt)
        self._negative.append(negative)

    def _start(self, prompt: Tensor) -> Tensor:
        """What is forecast if nothing that is expected comes true."""
        last = self._negative[-1]
        return last + (prompt - self._prompt[-1]) if self._kind is Kind.DIFFERENCE else last

    def _features(self, sigma: float, prompt: Tensor) -> Tensor:
        """What the change from there is made of, float64 [F, elements]."""
        weights = forecast_weights(self._times, self._time(sigma), ForecastOptions(1.0))
        own, its = (
            torch.stack([weight * output for weight, output in zip(weights, outputs, strict=True)]).sum(0) - outputs[-1]
            for outputs in (self._negative, self._prompt)
        )
        features = {
            Kind.OWN: [own],
            Kind.DIFFERENCE: [own - its],
            Kind.FITTED: [own, its, prompt - self._prompt[-1]],
        }
        return torch.stack(features[self._kind]).double().flatten(1)

    def _time(self, sigma: float) -> float:
        now = math.log(max(sigma, LAST_SIGMA))
        if self._first is None:
            self._first = now
        return 2.0 * (self._first - now) / max(1.0, self._first - math.log(LAST_SIGMA)) - 1.0


@dataclass(frozen=True)
class LeaveOut(Hooks):
    """Leaves the negative prompt's row out of the calls that `pattern` says; `rows` has how many each call computed."""

    pattern: str = ""
    kind: Kind = Kind.FITTED
    rows: list[int] = field(default_factory=list)

    def on_model(self, use: ModelUse) -> None:
        use.around_denoiser(lambda denoise: self._around(use, denoise))

    def _around(self, use: ModelUse, denoise: ConditionedDenoise) -> ConditionedDenoise:
        history = HalfForecast(self.kind)

        def halves(x: Tensor, sigmas: Tensor, context: DenoiserContext) -> Tensor:
            call, sigma = use.call, float(sigmas.max())
            assert call.is_negative == (False, True), "one image, and both of its rows in one call"
            if self.pattern[call.step] == "+" and not (call.step == STEPS - 1 and sigma > MAX_LAST_SIGMA):
                self.rows.append(1)
                with use.calling(call.rows([0])):
                    cond = denoise(x[:1], sigmas[:1], rows_of_context(context, [0], 2))
                return torch.cat([cond, x[1:] - sigma * history.forecast(sigma, (x[:1] - cond) / sigma)])
            self.rows.append(2)
            both = denoise(x, sigmas, context)
            outputs = (x - both) / sigma
            history.take(sigma, outputs[:1], outputs[1:])
            return both

        return halves


class Artist:
    """Draws the test's prompts through the engine."""

    def __init__(self, scratch: Path) -> None:
        catalogue = CheckpointCatalogue([CHECKPOINT.parent], HashCache(scratch / "hashes.json"))
        machine = Machine(CPU, torch.float32, torch.float32)
        self._engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        self._output = Output(scratch)

    def draw(self, prompt: ColorPrompt, way: Way, sampler: str) -> tuple[Image.Image, int]:
        """The image, and how many rows the model computed for it."""
        hooks = LeaveOut(pattern=way.pattern(sampler), kind=way.kind)
        changes: Mapping[str, object] = {"forecast_strength": way.strength}
        request = GenerationRequest(
            prompt=prompt.text,
            width=SIZE_PX,
            height=SIZE_PX,
            steps=STEPS,
            cfg_scale=CFG_SCALE,
            sampler=sampler,
            scheduler=RUNS[sampler],
            seed=prompt.seed,
            subseed=0,
            checkpoint=CHECKPOINT.stem,
            save_images=False,
            save_grid=False,
            settings=Settings().with_changes(changes),
        )
        image = generate(request, self._engine, self._output, Silent(), hooks).images[0].image
        return image, sum(hooks.rows)


Scores = dict[str, dict[str, list[float]]]
"""By way, then by the number of the prompt: PSNR, and the share of the rows that was saved."""


def measure(scores: Scores, sampler: str, count: int, seconds: float, save: Callable[[], None]) -> None:
    """Add to the scores of a sampler the prompts that are not in them yet, until the time is up."""
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        artist = Artist(Path(scratch))
        for index, prompt in enumerate(color_prompts()[:count]):
            left = [way for way in WAYS if str(index) not in scores.get(way.name(sampler), {})]
            if not left or time.monotonic() > ends:
                continue
            true, rows = artist.draw(prompt, Way(0.0), sampler)
            for way in left:
                image, computed = artist.draw(prompt, way, sampler)
                found = [round(min(psnr_db(image, true), 99.0), 2), round(1 - computed / rows, 4)]
                scores.setdefault(way.name(sampler), {})[str(index)] = found
            save()


def summary(scores: Scores, sampler: str) -> list[dict[str, Any]]:
    """What each way comes to, by what it saves; those with halves beside the forecast of whole calls at the same."""
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        found = list(scores.get(way.name(sampler), {}).values())
        if found:
            rows.append({
                "way": way.name(sampler),
                "has_halves": not way.is_present,
                "prompts": len(found),
                "saved": round(statistics.mean(saved for _, saved in found), 4),
                "median_db": round(statistics.median(db for db, _ in found), 1),
                "lowest_db": round(min(db for db, _ in found), 1),
            })  # fmt: skip
    rows.sort(key=lambda row: (row["saved"], row["has_halves"]))
    present = [row for row in rows if not row["has_halves"]]
    for row in rows:
        if row["has_halves"]:
            for key in ("median_db", "lowest_db"):
                row[f"whole_calls_{key}"] = _at(row["saved"], [(each["saved"], each[key]) for each in present])
    return rows


def _at(saved: float, points: Sequence[tuple[float, float]]) -> float | None:
    """Between the points, which rise in their first number; None outside of them."""
    if not points or not points[0][0] <= saved <= points[-1][0]:
        return None
    after = max(1, bisect_left([place for place, _ in points], saved))
    (left, low), (right, high) = points[after - 1], points[after]
    return round(low + (high - low) * (saved - left) / (right - left), 1)


def earlier(digest: str) -> dict[str, Scores]:
    """The scores that are there of this model, by sampler."""
    found = read_result(RESULT)
    return dict(found["scores"]) if found.get("model") == digest else {}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast_halves", description=__doc__)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--sampler", nargs="+", choices=tuple(RUNS), default=list(RUNS))
    parser.add_argument("--minutes", type=float, default=15.0, help="for each sampler; another run goes on")
    arguments = parser.parse_args()
    with CHECKPOINT.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:10]
    for sampler in arguments.sampler:
        own: Scores = earlier(digest).get(sampler, {})

        def save(sampler: str = sampler, own: Scores = own) -> None:
            scores = {**earlier(digest), sampler: own}
            found = {name: summary(scores[name], name) for name in scores}
            write_result(RESULT, {"model": digest, "steps": STEPS, "cfg": CFG_SCALE, "found": found, "scores": scores})

        measure(own, sampler, arguments.prompts, 60 * arguments.minutes, save)
        print(f"{sampler}, {RUNS[sampler]}")
        keys = ("saved", "median_db", "lowest_db", "whole_calls_median_db", "whole_calls_lowest_db", "prompts")
        rows = summary(own, sampler)
        print_table(("way", *keys), [(row["way"], *(row.get(key, "") for key in keys)) for row in rows])


if __name__ == "__main__":
    main()
