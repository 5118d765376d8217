"""Precisions beside each other: the same prompts and seeds in several storage formats, with what they win and lose.

For every format a picture of each prompt, how far it is from the first format's (PSNR, SSIM, the largest difference
of latents at each step), seconds a step, bytes of the weights, and the peak of memory where the device counts it.
"""

from __future__ import annotations

import base64
import html
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from modules.processing.engine import Engine
from modules.processing.events import Events
from modules.processing.output import Output
from modules.processing.requests import Txt2ImgRequest
from modules.processing.results import Picture
from modules.processing.txt2img import txt2img
from modules.sampling.types import StepInfo

UNSTORED = "16 bit"
SSIM_SIDE = 8
PEAK = 255.0


@dataclass
class Row:
    """One format. Lists have an entry for each prompt; `latent_differences` one list a prompt, an entry a step."""

    storage: str
    pictures: list[Image.Image] = field(default_factory=list)
    latents: list[list[Tensor]] = field(default_factory=list)
    psnr_db: list[float] = field(default_factory=list)
    ssim: list[float] = field(default_factory=list)
    latent_differences: list[list[float]] = field(default_factory=list)
    seconds_per_step: float = 0.0
    weight_bytes: int = 0
    peak_memory_bytes: int | None = None


def compare(
    request: Txt2ImgRequest,
    prompts: Sequence[str],
    storages: Sequence[str],
    engine: Engine,
    output: Output,
    events: Events,
) -> list[Row]:
    """Make the pictures; the first format is what the others are measured against. `UNSTORED` means fp8 off.

    Seeds of the request must be fixed. Raises what txt2img raises; nothing is saved.
    """
    rows: list[Row] = []
    for storage in storages:
        changes: dict[str, object] = {"fp8_storage": "Disable"}
        if storage != UNSTORED:
            changes = {"fp8_storage": "Enable", "fp8_format": storage}
        row = Row(storage)
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
            watch = _Watch(events)
            result = txt2img(wanted, engine, output, watch)
            row.pictures.append(result.samples[0].image)
            row.latents.append(watch.latents)
            row.seconds_per_step = max(row.seconds_per_step, watch.seconds_per_step)
            row.peak_memory_bytes = result.peak_memory_bytes
        model = engine.status.model
        row.weight_bytes = model.stored_bytes if model is not None else 0
        rows.append(row)
        _measure(row, rows[0])
    return rows


def psnr_db(picture: Image.Image, other: Image.Image) -> float:
    """Peak signal to noise ratio in dB; infinite for equal pictures."""
    a, b = (np.asarray(image.convert("RGB"), dtype=np.float64) for image in (picture, other))
    error = float(((a - b) ** 2).mean())
    return float("inf") if error == 0 else float(10 * np.log10(PEAK**2 / error))


def ssim(picture: Image.Image, other: Image.Image) -> float:
    """Structural similarity of the grey values, over 8x8 windows (Wang et al. 2004); 1 for equal pictures."""
    a, b = (np.asarray(image.convert("L"), dtype=np.float64) for image in (picture, other))
    windows = np.lib.stride_tricks.sliding_window_view
    x, y = (windows(grey, (SSIM_SIDE, SSIM_SIDE)).reshape(-1, SSIM_SIDE**2) for grey in (a, b))
    mean_x, mean_y = x.mean(axis=1), y.mean(axis=1)
    var_x, var_y = x.var(axis=1), y.var(axis=1)
    both = (x * y).mean(axis=1) - mean_x * mean_y
    c1, c2 = (0.01 * PEAK) ** 2, (0.03 * PEAK) ** 2
    score = (2 * mean_x * mean_y + c1) * (2 * both + c2) / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))
    return float(score.mean())


def as_json(rows: Sequence[Row], prompts: Sequence[str], title: str) -> dict[str, Any]:
    """Everything but the pictures."""
    return {
        "model": title,
        "prompts": list(prompts),
        "formats": [
            {
                "storage": row.storage,
                "weight_bytes": row.weight_bytes,
                "seconds_per_step": row.seconds_per_step,
                "peak_memory_bytes": row.peak_memory_bytes,
                "psnr_db": [None if value == float("inf") else value for value in row.psnr_db],
                "ssim": row.ssim,
                "largest_latent_difference_per_step": row.latent_differences,
            }
            for row in rows
        ],
    }


def as_html(rows: Sequence[Row], prompts: Sequence[str], title: str) -> str:
    """A page of its own, pictures and numbers inside of it."""
    first = rows[0]
    head = "".join(f"<th>{html.escape(prompt)}</th>" for prompt in prompts)
    body = []
    for row in rows:
        cells = "".join(
            f'<td><img src="{_data_uri(picture)}" alt=""><br>{_closeness(row, index)}</td>'
            for index, picture in enumerate(row.pictures)
        )
        share = ""
        if row is not first:
            share = f", {row.weight_bytes / first.weight_bytes:.0%} of {html.escape(first.storage)}"
        time_share = f" ({row.seconds_per_step / first.seconds_per_step:.2f} x)" if row is not first else ""
        peak = f"<br>peak {row.peak_memory_bytes / 1e6:.0f} MB" if row.peak_memory_bytes else ""
        facts = (
            f"<b>{html.escape(row.storage)}</b><br>{row.weight_bytes / 1e6:.1f} MB{share}<br>"
            f"{row.seconds_per_step * 1e3:.0f} ms a step{time_share}{peak}"
        )
        body.append(f"<tr><th>{facts}</th>{cells}</tr>")
    data = html.escape(json.dumps(as_json(rows, prompts, title)), quote=False)
    return PAGE.format(
        title=html.escape(title), head=head, rows="\n".join(body), data=data, first=html.escape(first.storage)
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Precision comparison: {title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .5rem; vertical-align: top; text-align: left; font-weight: normal; }}
tr + tr {{ border-top: 1px solid #ccc; }} img {{ max-width: 256px; height: auto; }} td {{ font-size: 13px; }}
</style></head><body>
<h1>Precision comparison</h1>
<p>{title}. Every picture is compared with the one above it in the first row, {first}: a higher PSNR and an SSIM near 1
mean a closer picture. Smaller weights need less memory; the step time says what that costs.</p>
<table><tr><th></th>{head}</tr>
{rows}
</table>
<script type="application/json" id="data">{data}</script>
</body></html>
"""


def _closeness(row: Row, index: int) -> str:
    value = row.psnr_db[index]
    if value == float("inf"):
        return "identical"
    largest = max(row.latent_differences[index], default=0.0)
    return f"PSNR {value:.1f} dB, SSIM {row.ssim[index]:.3f}<br>largest latent difference {largest:.2f}"


def _measure(row: Row, first: Row) -> None:
    for index, picture in enumerate(row.pictures):
        row.psnr_db.append(psnr_db(picture, first.pictures[index]))
        row.ssim.append(ssim(picture, first.pictures[index]))
        pairs = zip(row.latents[index], first.latents[index], strict=False)
        row.latent_differences.append([float((a - b).abs().max()) for a, b in pairs])


def _data_uri(picture: Image.Image) -> str:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


class _Watch:
    """Events that keep the latent of every step, and time them."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.latents: list[Tensor] = []
        self._times: list[float] = []

    @property
    def seconds_per_step(self) -> float:
        if len(self._times) < 2:
            return 0.0
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1)

    def check(self) -> None:
        self._events.check()

    def phase(self, text: str) -> None:
        self._events.phase(text)

    def plan(self, total_steps: int) -> None:
        self._events.plan(total_steps)

    def step(self, done: int) -> None:
        self._times.append(time.perf_counter())
        self._events.step(done)

    def latent(self, info: StepInfo) -> None:
        """A step's latent."""
        self.latents.append(info.denoised.detach().float().cpu())

    def wants_preview(self, done: int) -> bool:
        return False

    def preview(self, image: Image.Image) -> None:
        self._events.preview(image)

    def finished_picture(self, picture: Picture) -> None:
        self._events.finished_picture(picture)
