"""Where guidance leaves the negative prompt out, and that it says so."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from modules.models.families.denoiser_context import DenoiserContext, Extra
from modules.models.families.family import GuidanceType
from modules.processing.pipeline.guidance import Guidance, GuidanceOptions, GuidedDenoiser
from modules.processing.request.model_use import Denoised, DenoiserInputs, ModelUse
from modules.processing.request.pass_settings import Used
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
            rows,
            [ComposedConditioning(((prompt, 1.0),))],
            [prompt],
            lambda: torch.zeros(77, 4),
            image=None,
            level=level,
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


class Prompt:
    """Answers each row with the first number of its context."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        self.counts.append(len(x))
        return context.crossattn[:, 0, 0][:, None, None, None].expand_as(x)


def constant(value: float) -> ScheduledConditioning:
    return ScheduledConditioning(((9, Conditioning(torch.full((77, 4), value))),))


@pytest.mark.parametrize(
    ("guidance", "cfg_scale", "rows"),
    [
        (GuidanceType.DISTILLED, 1.0, 1),
        (GuidanceType.DISTILLED, 2.0, 2),
        (GuidanceType.NONE, 7.0, 1),
        (GuidanceType.CFG, 1.0, 1),
        (GuidanceType.CFG, 1.5, 2),
    ],
)
def test_distilled_guidance_and_cfg_are_two_scales(guidance: GuidanceType, cfg_scale: float, rows: int) -> None:
    prompt = constant(1.0)
    network = Rows()
    denoiser = GuidedDenoiser(
        network, [ComposedConditioning(((prompt, 1.0),))], [prompt], lambda: torch.zeros(77, 4), guidance=guidance
    )
    x = torch.ones(1, 4, 2, 2)
    options = GuidanceOptions(cfg_scale=cfg_scale, distilled_cfg_scale=3.25, total_model_calls=1)
    guided = Guidance(denoiser, options)
    assert torch.equal(guided(x, torch.tensor([1.0])), x * 0.5) and network.counts == [rows]
    is_distilled = guidance is GuidanceType.DISTILLED
    scale = network.extra.get("guidance")
    assert isinstance(scale, torch.Tensor) == is_distilled == (Used.DISTILLED_GUIDANCE in guided.used)
    assert not isinstance(scale, torch.Tensor) or scale.tolist() == [3.25] * rows


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((1.0,), 3.0), ((0.25, 0.75), 0.25 * 3 + 0.75 * 4), ((1.0, 1.0), 3.5), ((1.0, -0.5), 3 - 0.5 * (4 - 3))],
)
def test_at_a_scale_of_one_only_the_parts_of_prompts_are_computed(weights: tuple[float, ...], expected: float) -> None:
    """Two images, the second of the same parts in reverse; where weights add up to 1 it is the sum with the negative
    prompt, too."""
    parts = [(constant(3.0 + number), weight) for number, weight in enumerate(weights)]
    prompts = [ComposedConditioning(tuple(parts)), ComposedConditioning(tuple(reversed(parts)))]
    network = Prompt()
    denoiser = GuidedDenoiser(network, prompts, [constant(100.0)] * 2, lambda: torch.zeros(77, 4))
    x, sigma = torch.zeros(2, 4, 2, 2), torch.ones(2)
    found = Guidance(denoiser, GuidanceOptions(cfg_scale=1.0, total_model_calls=1))(x, sigma)
    assert torch.allclose(found, torch.full_like(x, expected)) and network.counts == [2 * len(weights)]
    whole = Guidance(denoiser, GuidanceOptions(cfg_scale=1.0, total_model_calls=1, needs_uncond=True))
    if sum(weights) == 1:
        assert torch.allclose(whole(x, sigma), found)


@pytest.mark.parametrize(("sampler", "watching", "rows"), [(True, False, 2), (False, True, 2), (False, False, 1)])
def test_who_needs_the_negative_half_gets_it_at_a_scale_of_one(sampler: bool, watching: bool, rows: int) -> None:
    network, use = Prompt(), ModelUse.unwatched()
    use.needs_uncond = watching
    denoiser = GuidedDenoiser(
        network, [ComposedConditioning(((constant(1.0), 1.0),))], [constant(9.0)], lambda: torch.zeros(77, 4), use=use
    )
    options = GuidanceOptions(cfg_scale=1.0, total_model_calls=1, needs_uncond=sampler)
    guided = Guidance(denoiser, options)
    found = guided(torch.zeros(1, 4, 2, 2), torch.ones(1))
    assert network.counts == [rows] and torch.equal(found, torch.ones_like(found))
    assert float(guided.uncond_denoised().mean()) == (9.0 if rows == 2 else 1.0)


def test_whoever_takes_part_changes_what_goes_in_what_comes_out_and_what_the_sampler_gets() -> None:
    """In this order, and each sees what the one before left."""
    use, seen = ModelUse.unwatched(), list[tuple[str, int, float]]()

    def put(inputs: DenoiserInputs) -> None:
        seen.append(("call", inputs.step, float(inputs.text_cond.mean())))
        inputs.text_cond = inputs.text_cond + 1

    def changed(name: str, by: float) -> Callable[[Denoised], None]:
        def change(outputs: Denoised) -> None:
            seen.append((name, len(outputs.x), float(outputs.x[0].mean())))
            outputs.x = outputs.x + by

        return change

    use.before_call.append(put)
    use.after_call.append(changed("answer", 10))
    use.after_step += [changed("step", 100), changed("step", 1000)]
    denoiser = GuidedDenoiser(
        Prompt(), [ComposedConditioning(((constant(1.0), 1.0),))], [constant(9.0)], lambda: torch.zeros(77, 4), use=use
    )
    found = Guidance(denoiser, GuidanceOptions(cfg_scale=2.0, total_model_calls=1))(
        torch.zeros(1, 4, 2, 2), torch.ones(1)
    )
    combined = 19 + 2.0 * (12 - 19)
    assert seen == [("call", 0, 1.0), ("answer", 2, 2.0), ("step", 1, combined), ("step", 1, combined + 100)]
    assert torch.equal(found, torch.full_like(found, combined + 1100))


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
        lambda: torch.zeros(77, 4),
        image=torch.ones(4, 2, 2),
        image_cfg_scale=image_cfg_scale,
    )
    options = GuidanceOptions(cfg_scale=7.0, total_model_calls=2, min_sigma_uncond=99.0, all_steps=True)
    if image_cfg_scale is None:
        options = GuidanceOptions(cfg_scale=7.0, total_model_calls=2)
    found = Guidance(denoiser, options)(torch.zeros(1, 4, 2, 2), torch.tensor([1.0]))
    expected = 10 + 7 * 90 if image_cfg_scale is None else 1 + 1.5 * 9 + 7 * 90
    assert float(found.mean()) == pytest.approx(expected) and len(seen[0]) == rows
