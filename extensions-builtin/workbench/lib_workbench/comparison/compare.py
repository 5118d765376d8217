"""Precisions side by side: the same prompts and seeds in several storage formats, with what they win and lose.

For every format an image of each prompt, how far it is from the first format's (PSNR, SSIM, the largest difference
of latents at each step), seconds per step, bytes of the weights, and the peak of memory: on a GPU of what its
allocator gave, on the CPU of the whole program.
`lib_workbench.comparison.report_page` shows it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from modules.errors import Interrupted, UnknownNameError
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.processing.comparison.series import Series
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import INT8_FORMATS
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Events, ForwardedEvents
from modules.processing.request.request import GenerationRequest
from modules.sampling.types import StepInfo

UNSTORED = "16 bit"
INT8_MATMUL = " + int8 matmul"  # behind a format: layers multiply in int8
SSIM_SIDE = 8
PEAK = 255.0
YIELD_S = 0.05  # between two formats, so that a job that waits for the engine gets it


@dataclass
class Row:
    """One format. Lists have an entry for each prompt; `latent_differences` one list per prompt, an entry per step."""

    storage: str  # as asked for
    label: str = ""  # for people: how the weights really lay in memory
    images: list[Image.Image] = field(default_factory=list)
    latents: list[list[Tensor]] = field(default_factory=list)
    psnr_db: list[float] = field(default_factory=list)
    ssim: list[float] = field(default_factory=list)
    latent_differences: list[list[float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    weight_bytes: int = 0
    fp16_bytes: int = 0  # what the weights would be in 16 bits
    peak_memory_bytes: int | None = None

    @property
    def seconds_per_step(self) -> float:
        """The median of all steps; 0 where none was timed."""
        return statistics.median(self.step_seconds) if self.step_seconds else 0.0

    @property
    def mean_psnr_db(self) -> float:
        """Over the prompts; infinite where all images are equal."""
        return statistics.fmean(self.psnr_db) if self.psnr_db else float("inf")

    @property
    def mean_ssim(self) -> float:
        """Over the prompts."""
        return statistics.fmean(self.ssim) if self.ssim else 1.0


# (storage format, number of the image from 1)
OnImage = Callable[[str, int], None]


def compare(
    request: GenerationRequest,
    prompts: Sequence[str],
    storages: Sequence[str],
    engine: Engine,
    output: Output,
    events: Events,
    on_image: OnImage = lambda storage, number: None,
) -> list[Row]:
    """Make the images; the first format is what the others are measured against. `UNSTORED` means fp8 off.

    `on_image` receives each image before it is made. Seeds of the request must be fixed. Raises what `generate`
    raises, `UnknownNameError` for a format, `Interrupted` when it was stopped; nothing is saved. Other jobs may run
    between two formats, not within one.
    """
    check_storages(storages)
    rows: list[Row] = []
    for storage in storages:
        changes = changes_of(storage)
        row = Row(storage)
        with engine.lock:
            for prompt in prompts:
                wanted = replace(
                    request,
                    prompt=prompt,
                    save_images=False,
                    save_grid=False,
                    batch_size=1,
                    batch_count=1,
                    settings=request.settings.with_changes(changes),
                )
                on_image(storage, len(row.images) + 1)
                _make(row, wanted, engine, output, events)
        rows.append(row)
        _measure(row, rows[0])
        time.sleep(YIELD_S)
    return rows


def changes_of(storage: str) -> dict[str, object]:
    """The settings of a row. One whose name ends in `INT8_MATMUL` multiplies in int8, other int8 formats decode."""
    if storage == UNSTORED:
        return {"fp8_storage": "Disable"}
    name = storage.removesuffix(INT8_MATMUL)
    changes: dict[str, object] = {"fp8_storage": "Enable", "fp8_format": name}
    if name != storage:
        changes["compute_mode"] = "int8 matmul"
    elif name in INT8_FORMATS:
        changes["compute_mode"] = "Manual cast"
    return changes


def rows_of(series: Sequence[Series]) -> list[Row]:
    """The rows of images that were made elsewhere; the latents of their steps are not known."""
    rows: list[Row] = []
    for one in series:
        peaks = [each.peak_memory_bytes for each in one.measured if each.peak_memory_bytes is not None]
        row = Row(
            one.name,
            label=one.name,
            images=one.images,
            latents=[[] for _ in one.images],
            step_seconds=[each.seconds_per_step for each in one.measured if each.seconds_per_step > 0],
            weight_bytes=max((each.weight_bytes for each in one.measured), default=0),
            fp16_bytes=max((each.fp16_bytes for each in one.measured), default=0),
            peak_memory_bytes=max(peaks, default=None),
        )
        rows.append(row)
        _measure(row, rows[0])
    return rows


def check_storages(storages: Sequence[str]) -> None:
    """Raises `UnknownNameError` for a format that there is not."""
    known = [UNSTORED, *(name for name, spec in FORMAT_SPECS.items() if spec.is_narrow)]
    known += [name + INT8_MATMUL for name in INT8_FORMATS]
    for storage in storages:
        if storage not in known:
            raise UnknownNameError.of("storage format", storage, known)


def _make(row: Row, wanted: GenerationRequest, engine: Engine, output: Output, events: Events) -> None:
    """One image of a row, with what can be measured meanwhile."""
    watch = _Watch(events)
    result = generate(wanted, engine, output, watch)
    if result.interrupted or not result.samples:
        raise Interrupted("The comparison was stopped; nothing was kept.")
    row.images.append(result.samples[0].image)
    row.latents.append(watch.latents)
    row.step_seconds += watch.step_seconds
    if result.peak_memory_bytes is not None:
        row.peak_memory_bytes = max(row.peak_memory_bytes or 0, result.peak_memory_bytes)
    model = engine.status.model
    assert model is not None, "an image was made without a model"
    row.weight_bytes, row.fp16_bytes = model.stored_bytes + model.streamed_bytes, model.fp16_bytes
    row.label = model.storage


def psnr_db(candidate: Image.Image, other: Image.Image) -> float:
    """Peak signal to noise ratio in dB; infinite for equal images."""
    a, b = (np.asarray(image.convert("RGB"), dtype=np.float64) for image in (candidate, other))
    error = float(((a - b) ** 2).mean())
    return float("inf") if error == 0 else float(10 * np.log10(PEAK**2 / error))


def ssim(candidate: Image.Image, other: Image.Image) -> float:
    """Structural similarity of the grey values, over 8x8 windows (Wang et al. 2004); 1 for equal images."""
    a, b = (np.asarray(image.convert("L"), dtype=np.float64) for image in (candidate, other))
    windows = np.lib.stride_tricks.sliding_window_view
    x, y = (windows(grey, (SSIM_SIDE, SSIM_SIDE)).reshape(-1, SSIM_SIDE**2) for grey in (a, b))
    mean_x, mean_y = x.mean(axis=1), y.mean(axis=1)
    var_x, var_y = x.var(axis=1), y.var(axis=1)
    both = (x * y).mean(axis=1) - mean_x * mean_y
    c1, c2 = (0.01 * PEAK) ** 2, (0.03 * PEAK) ** 2
    score = (2 * mean_x * mean_y + c1) * (2 * both + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return float(score.mean())


def as_json(rows: Sequence[Row], prompts: Sequence[str], title: str) -> dict[str, Any]:
    """Everything but the images."""
    return {
        "model": title,
        "prompts": list(prompts),
        "formats": [
            {
                "storage": row.storage,
                "label": row.label,
                "weight_bytes": row.weight_bytes,
                "weight_bytes_16_bit": row.fp16_bytes,
                "seconds_per_step": row.seconds_per_step,
                "peak_memory_bytes": row.peak_memory_bytes,
                "psnr_db": [None if value == float("inf") else value for value in row.psnr_db],
                "ssim": row.ssim,
                "largest_latent_difference_per_step": row.latent_differences,
            }
            for row in rows
        ],
    }


def _measure(row: Row, first: Row) -> None:
    for index, image in enumerate(row.images):
        row.psnr_db.append(psnr_db(image, first.images[index]))
        row.ssim.append(ssim(image, first.images[index]))
        pairs = zip(row.latents[index], first.latents[index], strict=False)
        row.latent_differences.append([float((a - b).abs().max()) for a, b in pairs])


class _Watch(ForwardedEvents):
    """Events that keep the latent of every step, and time them."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self.latents: list[Tensor] = []
        self._times: list[float] = []

    @property
    def step_seconds(self) -> list[float]:
        """The time from each step to the next; the first step of an image is not among them."""
        return [
            later - earlier for earlier, later in zip(self._times, self._times[1:], strict=False) if later > earlier
        ]

    def step(self, done: int, info: StepInfo | None = None) -> None:
        if info is not None:
            self._times.append(time.perf_counter())
            self.latents.append(info.denoised.detach().float().cpu())
        super().step(done, info)

    def wants_preview(self, done: int) -> bool:
        return False
