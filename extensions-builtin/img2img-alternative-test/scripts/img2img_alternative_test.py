"""img2img alternative test: the noise that an image comes of, found by walking Euler's method backwards, so that the
same prompt makes the image again and another one changes only what it says.

The walk goes up the noise levels on the probability flow ODE, `dx = (x - denoised) / sigma * dsigma` (Song et al. 2021,
arXiv:2011.13456; "inversion" in Mokady et al. 2023, arXiv:2211.09794). Fields and the two ways to walk are those of
the reference UI; `found_noise` says what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.scripts.job import ImageJob, Job, PassStart, Processed
from modules.scripts.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TITLE = "img2img alternative test"
MAX_STEPS = 1000
MAX_CFG_SCALE = 100.0


@dataclass(frozen=True)
class Options:
    """How the noise is found. `adjusts_sigma`: see `found_noise`."""

    prompt: str
    negative_prompt: str
    steps: int
    cfg_scale: float
    randomness: float
    adjusts_sigma: bool

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= MAX_STEPS:
            raise InvalidValueError(f"{TITLE}: decode steps is {self.steps}; allowed is 1 to {MAX_STEPS}.")
        if not 0 <= self.cfg_scale <= MAX_CFG_SCALE:
            raise InvalidValueError(f"{TITLE}: decode CFG scale is {self.cfg_scale:g}; allowed is 0 to 100.")
        if not 0 <= self.randomness <= 1:
            raise InvalidValueError(f"{TITLE}: randomness is {self.randomness:g}; allowed is 0 to 1.")

    @property
    def fields(self) -> dict[str, object]:
        """Return what the images record."""
        return {
            "Decode prompt": self.prompt,
            "Decode negative prompt": self.negative_prompt,
            "Decode CFG scale": self.cfg_scale,
            "Decode steps": self.steps,
            "Randomness": self.randomness,
            "Sigma Adjustment": self.adjusts_sigma,
        }


class AlternativeTest(Script):
    """The script."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = "script_i2i_alternative_test"
        note = gr.Markdown("CFG Scale should be 2 or lower.")
        sampler = gr.Checkbox(
            True,
            label="Override `Sampling method` to Euler?(this method is built for it)",
            elem_id=f"{prefix}_override_sampler",
        )
        texts = gr.Checkbox(
            True,
            label="Override `prompt` to the same value as `original prompt`?(and `negative prompt`)",
            elem_id=f"{prefix}_override_prompt",
        )
        prompt = gr.Textbox(label="Original prompt", lines=1, elem_id=f"{prefix}_original_prompt")
        negative = gr.Textbox(label="Original negative prompt", lines=1, elem_id=f"{prefix}_original_negative_prompt")
        steps = gr.Checkbox(
            True,
            label="Override `Sampling Steps` to the same value as `Decode steps`?",
            elem_id=f"{prefix}_override_steps",
        )
        count = gr.Slider(1, 150, value=50, step=1, label="Decode steps", elem_id=f"{prefix}_st")
        strength = gr.Checkbox(True, label="Override `Denoising strength` to 1?", elem_id=f"{prefix}_override_strength")
        cfg = gr.Slider(0.0, 15.0, value=1.0, step=0.1, label="Decode CFG scale", elem_id=f"{prefix}_cfg")
        randomness = gr.Slider(0.0, 1.0, value=0.0, step=0.01, label="Randomness", elem_id=f"{prefix}_randomness")
        adjustment = gr.Checkbox(
            False, label="Sigma adjustment for finding noise for image", elem_id=f"{prefix}_sigma_adjustment"
        )
        self.infotext_fields = [
            (prompt, "Decode prompt"),
            (negative, "Decode negative prompt"),
            (cfg, "Decode CFG scale"),
            (count, "Decode steps"),
            (randomness, "Randomness"),
            (adjustment, "Sigma Adjustment"),
        ]
        return [note, sampler, texts, prompt, negative, steps, count, strength, cfg, randomness, adjustment]

    def run(
        self,
        p: Job,
        _: Any = None,
        override_sampler: bool = True,
        override_prompt: bool = True,
        original_prompt: str = "",
        original_negative_prompt: str = "",
        override_steps: bool = True,
        decode_steps: int = 50,
        override_strength: bool = True,
        decode_cfg: float = 1.0,
        randomness: float = 0.0,
        sigma_adjustment: bool = False,
    ) -> Processed:
        assert isinstance(p, ImageJob)
        options = Options(
            original_prompt,
            original_negative_prompt,
            int(decode_steps),
            float(decode_cfg),
            float(randomness),
            bool(sigma_adjustment),
        )
        job = p.replace()
        if override_sampler:
            job.sampler_name, job.scheduler = "Euler", "Automatic"
        if override_prompt:
            job.prompt, job.negative_prompt = original_prompt, original_negative_prompt
        if override_steps:
            job.steps = options.steps
        if override_strength:
            job.denoising_strength = 1.0
        job.extra_generation_params |= options.fields
        job.before_sampling = lambda start: begin_with_found_noise(start, options)
        return job.make()


def begin_with_found_noise(start: PassStart, options: Options) -> None:
    """Have the pass begin with the noise that its image comes of, in part replaced by its own (randomness), and of
    the variance that independent noise has."""
    computing = start.computing
    if computing is None:
        return
    count = len(start.x)
    texts = [options.prompt] * count, [options.negative_prompt] * count
    denoise = computing.denoiser(*texts, options.cfg_scale, options.steps)
    found = found_noise(denoise, start.x, computing.schedule(options.steps).flip(0), options.adjusts_sigma)
    kept, drawn = 1.0 - options.randomness, options.randomness
    mixed = (kept * found + drawn * start.noise) / (kept**2 + drawn**2) ** 0.5
    start.noise.copy_(computing.noise_for(mixed * computing.sigmas[0].to(mixed)))


def found_noise(denoise: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigmas: Tensor, adjusts_sigma: bool) -> Tensor:
    """The noise [B,C,h,w] of about unit variance that clean latents x [B,C,h,w] come of, by Euler steps up the rising
    `sigmas` (the first is 0).

    Each step from s to t asks the denoiser at t for the direction, as though x were there already; the result is
    brought to unit deviation. With `adjusts_sigma` it asks at s, where x is, but in the first step, where s is 0, at t,
    and goes half of it; the result is x / t of the last step, which leads back to the image the more exactly the more
    steps there are.
    """
    levels = sigmas.to(x)
    ones = x.new_ones(len(x))
    for number in range(1, len(levels)):
        here, there = levels[number - 1], levels[number]
        asked = here if adjusts_sigma and number > 1 else there
        direction = (x - denoise(x, ones * asked)) / asked
        if adjusts_sigma and number == 1:
            direction = direction / 2
        x = x + direction * (there - here)
    return x / levels[-1] if adjusts_sigma else x / x.std()
