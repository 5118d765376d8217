"""Loopback: the result is the next image to start from, a number of times, with a denoising strength that changes on
the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modules.errors import InvalidValueError
from modules.images.grid import image_grid
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.script import Script

MAX_LOOPS = 1000
CURVES: dict[str, Callable[[float], float]] = {
    "Aggressive": lambda progress: math.sin(progress * math.pi / 2),
    "Linear": lambda progress: progress,
    "Lazy": lambda progress: 1 - math.cos(progress * math.pi / 2),
}
ORIGINAL = 1  # masked content
CAPTIONS = {"None": "", "CLIP": "clip", "DeepBooru": "deepbooru"}
"""What the images of a chain are described by, as the program calls it."""


class Loopback(Script):
    """The script."""

    def title(self) -> str:
        return "Loopback"

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        loops = gr.Slider(1, 32, value=4, step=1, label="Loops", elem_id="script_loopback_loops")
        final = gr.Slider(
            0,
            1,
            value=0.5,
            step=0.01,
            label="Final denoising strength",
            elem_id="script_loopback_final_denoising_strength",
        )
        curve = gr.Dropdown(
            list(CURVES), value="Linear", label="Denoising strength curve", elem_id="script_loopback_denoising_curve"
        )
        captions = gr.Dropdown(
            list(CAPTIONS),
            value="None",
            label="Append interrogated prompt at each iteration",
            elem_id="script_loopback_append_interrogation",
        )
        self.infotext_fields = [
            (loops, "Loopback loops"),
            (final, "Final denoising strength"),
            (curve, "Denoising curve"),
        ]
        return [loops, final, curve, captions]

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        return max(1, int(args[0])) * p.n_iter

    def run(
        self,
        p: Job,
        loops: int = 4,
        final_denoising_strength: float = 0.5,
        denoising_curve: str = "Linear",
        append_interrogation: str = "None",
    ) -> Processed:
        assert isinstance(p, ImageJob)
        _check(loops, denoising_curve, append_interrogation)
        job = p.replace()
        job.extra_generation_params |= {
            "Final denoising strength": final_denoising_strength,
            "Denoising curve": denoising_curve,
            "Loopback loops": int(loops),
        }
        job.batch_size = job.n_iter = 1
        job.do_not_save_grid = True
        runs: list[Processed] = []
        for _ in range(p.n_iter):
            job.init_images, job.inpainting_fill = p.init_images, p.inpainting_fill
            chain = []
            for number in range(int(loops)):
                progress = number / (loops - 1) if loops > 1 else 0
                if CAPTIONS.get(append_interrogation):
                    seen = self.program.caption(job.init_images[0], CAPTIONS[append_interrogation], p.settings)
                    job.prompt = ", ".join(text for text in (p.prompt, seen) if text)
                change = (final_denoising_strength - p.denoising_strength) * CURVES[denoising_curve](progress)
                job.denoising_strength = p.denoising_strength + change
                chain.append(job.make())
                if chain[-1].interrupted or not chain[-1].images:
                    break
                job.seed += 1
                job.init_images = [chain[-1].images[0]]
                job.inpainting_fill = ORIGINAL
            runs += chain if p.n_iter == 1 else chain[-1:]
            if chain[-1].interrupted:
                break
        whole = Processed.joined(runs)
        if whole.generated:  # each is reported as the chain that it comes of: from the first image, in so many loops
            first = whole.generated[0].infotext
            whole.generated = [replace(image, infotext=first) for image in whole.generated]
        if len(whole.generated) > 1:
            whole.put_grid(image_grid(whole.images, 1))
            p.save_grids(whole)
            if not p.settings.gallery.return_grid:
                whole.generated.pop(0)
        return whole


def _check(loops: int, curve: str, captions: str) -> None:
    if not 1 <= loops <= MAX_LOOPS:
        raise InvalidValueError(f"Loops is {loops}; allowed is 1 to {MAX_LOOPS}.")
    if curve not in CURVES:
        raise InvalidValueError(f"Denoising strength curve {curve!r} is none of: {', '.join(CURVES)}.")
    if captions not in (*CAPTIONS, ""):
        raise InvalidValueError(f"Loopback appends captions by {captions!r}, which is none of: {', '.join(CAPTIONS)}.")
