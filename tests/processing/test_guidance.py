"""Where guidance leaves the negative prompt out, and that it says so."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from modules.models.denoiser_context import DenoiserContext, Extra
from modules.models.families.family import GuidanceType
from modules.processing.pipeline.guidance import Guidance, GuidanceOptions, GuidedDenoiser, Used
from modules.prompting.conditioning import ComposedConditioning, Conditioning, ScheduledConditioning
from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod

SIGMAS = (14.0, 6.0, 3.0, 1.5, 0.8, 0.1)


class Rows:
    """A network that notes how many rows each call had."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.extra: Mapping[str, Extra] = {}

    def __call__(self, x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        self.counts.append(len(x))
        self.extra = context.extra
        return x * 0.5


def walked(level: Callable[[Tensor], Tensor] | None = None, **options: float) -> tuple[list[int], Used]:
    """Rows of each call over `SIGMAS` (2 with the negative prompt, 1 without), and what was used."""
    prompt = ScheduledConditioning(((len(SIGMAS), Conditioning(torch.ones(77, 4))),))
    rows = Rows()
    guidance = Guidance(
        GuidedDenoiser(
            rows, [ComposedConditioning(((prompt, 1.0),))], [prompt], torch.zeros(77, 4), image=None, level=level
        ),
        GuidanceOptions(
            cfg_scale=7.0,
            total_model_calls=len(SIGMAS),
            min_sigma_uncond=options.get("minimum", 0.0),
            all_steps=bool(options.get("all_steps", False)),
            skip_early=options.get("skip_early", 0.0),
        ),
    )
    for sigma in SIGMAS:
        guidance(torch.ones(1, 4, 2, 2), torch.tensor([sigma]))
    return rows.counts, guidance.used


def test_every_evaluation_has_the_negative_prompt_unless_told_otherwise() -> None:
    assert walked() == ([2] * 6, Used.NOTHING)


def test_below_the_minimum_every_second_evaluation_is_without_it() -> None:
    assert walked(minimum=2.0) == ([2, 2, 2, 1, 2, 1], Used.LATE_WITHOUT_NEGATIVE)


def test_or_all_of_them() -> None:
    assert walked(minimum=2.0, all_steps=True) == ([2, 2, 2, 1, 1, 1], Used.LATE_WITHOUT_NEGATIVE)


def test_a_minimum_that_is_never_reached_is_not_recorded() -> None:
    assert walked(minimum=0.05, all_steps=True) == ([2] * 6, Used.NOTHING)


def test_the_first_share_of_evaluations_without_it() -> None:
    assert walked(skip_early=0.2) == ([1, 1, 2, 2, 2, 2], Used.EARLY_WITHOUT_NEGATIVE)


@pytest.mark.parametrize(
    ("minimum", "expected"), [(5.0, [2, 2, 2, 2, 2, 2]), (15.0, [2, 2, 2, 2, 2, 1]), (500.0, [2, 2, 2, 1, 2, 1])]
)
def test_samplers_that_walk_timesteps_compare_those(minimum: float, expected: list[int]) -> None:
    """The sigmas' timesteps are 992, 834, 673, 477, 289, 10."""
    schedule = DiscreteSchedule(scaled_linear_alphas_cumprod())
    assert walked(schedule.vp_sigma_to_t, minimum=minimum)[0] == expected


@pytest.mark.parametrize("guidance", [GuidanceType.DISTILLED, GuidanceType.NONE])
def test_models_without_a_negative_prompt_are_called_once(guidance: GuidanceType) -> None:
    prompt = ScheduledConditioning(((1, Conditioning(torch.ones(77, 4))),))
    rows = Rows()
    denoiser = GuidedDenoiser(
        rows, [ComposedConditioning(((prompt, 1.0),))], [prompt], torch.zeros(77, 4), guidance=guidance
    )
    x = torch.ones(1, 4, 2, 2)
    found = Guidance(denoiser, GuidanceOptions(cfg_scale=3.5, total_model_calls=1))(x, torch.tensor([1.0]))
    assert rows.counts == [1] and torch.equal(found, x * 0.5)
    scale = rows.extra.get("guidance")
    assert (isinstance(scale, torch.Tensor) and scale.tolist() == [3.5]) == (guidance is GuidanceType.DISTILLED)


@pytest.mark.parametrize(("image_cfg_scale", "rows"), [(None, 2), (1.5, 3)])
def test_an_editing_model_is_guided_by_text_and_image(image_cfg_scale: float | None, rows: int) -> None:
    """Equation 3 of InstructPix2Pix, on a model that answers 100 with prompt and image, 10 with the image alone and 1
    without both: 1 + 1.5 * (10 - 1) + 7 * (100 - 10). Without an image scale: 10 + 7 * (100 - 10)."""
    seen: list[Tensor] = []

    def answers(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        assert context.image is not None and context.crossattn.shape[0] == len(x)
        seen.append(context.image)
        has_prompt, has_image = context.crossattn[:, 0, 0] > 0, context.image[:, 0, 0, 0] > 0
        value = torch.where(has_prompt, 100.0, torch.where(has_image, 10.0, 1.0))
        return value[:, None, None, None].expand_as(x)

    prompt, negative = (ScheduledConditioning(((9, Conditioning(torch.full((77, 4), v))),)) for v in (1.0, 0.0))
    denoiser = GuidedDenoiser(
        answers,
        [ComposedConditioning(((prompt, 1.0),))],
        [negative],
        torch.zeros(77, 4),
        image=torch.ones(4, 2, 2),
        image_cfg_scale=image_cfg_scale,
    )
    options = GuidanceOptions(cfg_scale=7.0, total_model_calls=2, min_sigma_uncond=99.0, all_steps=True)
    if image_cfg_scale is None:
        options = GuidanceOptions(cfg_scale=7.0, total_model_calls=2)
    found = Guidance(denoiser, options)(torch.zeros(1, 4, 2, 2), torch.tensor([1.0]))
    expected = 10 + 7 * 90 if image_cfg_scale is None else 1 + 1.5 * 9 + 7 * 90
    assert float(found.mean()) == pytest.approx(expected) and len(seen[0]) == rows
