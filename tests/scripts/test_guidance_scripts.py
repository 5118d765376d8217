"""Formulas of the guidance scripts against closed forms and diffusers, and what their arguments may be."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import InvalidValueError
from modules.processing.request.model_use import Guided, ModelCall
from modules.scripts.axes import AXES
from modules.scripts.library import read_args
from tests.extensions import built_in


def module(extension: str, name: str) -> Any:
    built_in()
    return sys.modules[f"featherweight_scripts.{extension.replace('-', '_')}.{name}"]


def guided(cond: torch.Tensor, uncond: torch.Tensor, x: torch.Tensor, sigma: float = 2.0, scale: float = 7.0) -> Guided:
    sigmas = torch.full((len(x),), sigma)
    return Guided(x, sigmas, cond, uncond, scale, 0, 10, lambda x, is_negative: x)


def tensors(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, 4, 8, 8, generator=generator) for _ in range(count)]


def test_cfg_zero_gives_the_best_length_of_diffusers() -> None:
    from diffusers.guiders.classifier_free_zero_star_guidance import cfg_zero_star_scale

    cond, uncond, x = tensors(3)
    found = module("guidance", "cfg_forms").fitted_uncond(x, cond, uncond)
    alpha = cfg_zero_star_scale((x - cond).flatten(1), (x - uncond).flatten(1)).reshape(-1, 1, 1, 1)
    assert torch.allclose(found, x - alpha * (x - uncond), atol=1e-5)


def test_projected_guidance_is_that_of_the_paper() -> None:
    projected = module("guidance", "cfg_forms").projected
    cond, difference = tensors(2)
    only_orthogonal = projected(difference, cond, 0.0, 0.0)
    assert float((only_orthogonal * cond).sum(dim=(1, 2, 3)).abs().max()) < 1e-3
    assert torch.allclose(projected(difference, cond, 1.0, 0.0), difference, atol=1e-6)
    limited = projected(difference, cond, 1.0, 2.5)
    assert torch.allclose(limited.flatten(1).norm(dim=1), torch.full((2,), 2.5), atol=1e-4)


@pytest.mark.parametrize("is_flow", [False, True])
def test_rescaled_cfg_has_the_deviation_of_the_positive_velocity(is_flow: bool) -> None:
    cond, uncond, x = tensors(3)
    parts = guided(cond, uncond, x)
    whole = parts.combined()
    found = module("guidance", "cfg_forms").rescaled(parts, whole, 1.0, is_flow)

    def velocity(denoised: torch.Tensor) -> torch.Tensor:
        return (x - denoised) / 2 if is_flow else x / 5 - denoised

    ours, theirs = (velocity(each).std(dim=(1, 2, 3)) for each in (found, cond))
    assert torch.allclose(ours, theirs, atol=1e-4)
    unchanged = module("guidance", "cfg_forms").rescaled(parts, whole, 0.0, is_flow)
    assert torch.allclose(unchanged, whole, atol=1e-4)


def test_dynamic_thresholding_at_the_mimic_scale_is_plain_guidance() -> None:
    cond, uncond, x = tensors(3)
    parts = guided(cond, uncond, x)
    rows = module("dynamic-thresholding", "dynamic_thresholding").ROWS
    options = {row.name: row.default for row in rows}
    found = module("dynamic-thresholding", "dynamic_thresholding").thresholded(parts, options, 10)
    assert torch.allclose(found, parts.combined(), atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "at_start", "at_end"),
    [("Constant", 8, 8), ("Linear Down", 8, 3), ("Linear Up", 3, 8), ("Power Down", 8, 3), ("Cosine Up", 3, 8)],
)
def test_curves_of_a_scale(mode: str, at_start: float, at_end: float) -> None:
    scale_at = module("dynamic-thresholding", "dynamic_thresholding").scale_at
    assert scale_at(8, 3, mode, 2, 0, 10) == pytest.approx(at_start)
    assert scale_at(8, 3, mode, 2, 9, 10) == pytest.approx(at_end, abs=1e-3)


def test_the_detail_curve_rises_to_its_amount_and_falls() -> None:
    script = module("detail-daemon", "detail_daemon")
    values = {row.name: row.default for row in script.DetailDaemon.rows} | {"amount": 0.4, "start_offset": 0.1}
    curve = script.curve_of(values, 11)
    assert curve.shape == (11,)
    assert curve[:2] == pytest.approx([0.1, 0.1]) and curve.max() == pytest.approx(0.4) and curve.argmax() == 5
    assert curve[9:] == pytest.approx([0, 0])


def test_the_blur_of_self_attention_guidance_stays_in_its_mask() -> None:
    (x, *_) = tensors(1)
    maps = torch.zeros(2, 16)
    maps[:, :8] = 2.0  # the upper half of a grid of 4 x 4
    found = module("guidance", "self_attention").blurred_where(x, maps, 2.0, 1.0)
    assert torch.equal(found[:, :, 4:], x[:, :, 4:])
    assert float(found[:, :, :4].std()) < float(x[:, :, :4].std())


def test_free_u_regions_and_filters() -> None:
    script = module("freeu", "freeu")
    assert script.region(0.5, 0.0, 8) == (0, 4, False)
    assert script.region(0.5, 0.75, 8) == (2, 6, True)
    x = torch.ones(1, 2, 8, 8)
    assert torch.allclose(script.filtered(x, 0.0, 0.5, 1.0), x * 0.5, atol=1e-6)
    assert script.filtered(x, 0.0, 1.0, 1.0) is x


@pytest.mark.parametrize("version", ["1", "2"])
def test_free_u_of_features_of_one_cell_is_a_number(version: str) -> None:
    """The mean over channels has no range there."""
    script = module("freeu", "freeu")
    x = torch.ones(1, 4, 1, 1)
    found = script.stronger(x, script.Stage(1.5), 1.5, version)
    assert found.flatten().tolist() == ([1.5, 1.5, 1.5, 1.0] if version == "1" else [1.0] * 4)


def free_u(given: Any, title: str = "FreeU") -> tuple[Any, dict[str, Any]]:
    """Its schedule, and the values by name."""
    script: Any = built_in().find_alwayson("FreeU")
    values = script.values(SimpleNamespace(script_values={}), read_args(script, given, title))
    return module("freeu", "freeu").Schedule.of(values), values


@pytest.mark.parametrize(
    ("given", "strengths", "text"),
    [
        ({"start_ratio": 0.35, "stop_ratio": 0.8}, [0, 0, 1, 1, 0, 0, 0], "0.35, 0.8, 0.0"),
        ({"start_ratio": 1, "stop_ratio": 4}, [0, 1, 1, 1, 0, 0, 0], "1, 4, 0.0"),
        ({"stop_ratio": 0.5, "transition_smoothness": 1.0}, [1, 2 / 3, 1 / 3, 0, 0, 0, 0], "0.0, 0.5, 1.0"),
        ({"start_ratio": 2, "transition_smoothness": 0.5}, [0, 0.25, 1, 0.875, 0.75, 0.625, 0], "2, 1.0, 0.5"),
        ({"start_ratio": 0.4, "stop_ratio": 0.45, "transition_smoothness": 1.0}, [0] * 7, "0.4, 0.45, 1.0"),
    ],
    ids=str,
)
def test_free_u_holds_by_calls_of_the_model(given: Any, strengths: list[float], text: str) -> None:
    """Portions are whole steps, whole numbers are steps, and a second pass counts on: its calls are beyond the end."""
    schedule, values = free_u([{**given, "stage_infos": [{"backbone_factor": 1.3}]}])
    assert [schedule.strength(call, 0, 6) for call in range(7)] == pytest.approx(strengths)
    assert schedule.text == text
    assert values["version"] == "1", "of a dictionary that names none"
    assert [stage.backbone_factor for stage in module("freeu", "freeu").stages_of(values)] == [1.3, 1.0, 1.0]


def test_free_u_of_forge_holds_in_each_pass() -> None:
    schedule, values = free_u([True, 1.1, 1.2, 0.9, 0.2, 0, 0.5], "FreeU Integrated (SD 1.x, SD 2.x, SDXL)")
    assert [schedule.strength(90, reported, 6) for reported in range(6)] == [1, 1, 1, 0, 0, 0]
    assert schedule.text == "0.0, 0.5, 0.0, each_pass" and values["version"] == "2"


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        ("0.1, 0.5, 0.2", '[{"skip_factor": 0.5}]'),
        ("2, 0.5, 0.2", '{"stage_infos": [{"skip_factor": 0.5}], "start_ratio": 2}'),
        ("0.1, 0.5, 0.2, each_pass", '{"stage_infos": [{"skip_factor": 0.5}], "each_pass": true}'),
    ],
)
def test_a_pasted_schedule_of_free_u_is_the_recorded_one(schedule: str, stages: str) -> None:
    script: Any = built_in().find_alwayson("FreeU")
    parsed = {"FreeU Stages": '[{"skip_factor": 0.5}]', "FreeU Schedule": schedule}
    pasted = {row.name: (pasting(parsed) if (pasting := script.pasting(row)) else None) for row in script.rows}
    assert pasted["stages"] == stages and pasted["version"] == "1"
    found = script.checked([True, *(pasted[row.name] for row in script.rows[1:])])
    values = dict(zip((row.name for row in script.rows), found, strict=True))
    assert module("freeu", "freeu").Schedule.of(values).text == schedule


def test_negative_words_are_taken_out_of_a_prompt() -> None:
    divided = module("neg-pip", "neg_pip").Divided.of("a (big:1.2) cat (hat:-1.5), (red shoe: -.5)")
    assert divided.text == "a (big:1.2) cat , "
    assert divided.parts == (("hat", "(hat:1.5)"), ("red shoe", "(red shoe:.5)"))


def test_words_of_the_base_prompt_are_found_in_its_chunks() -> None:
    words = module("regional-prompter", "regional_prompter")
    assert words.places_of("hat", "a girl, (hat:1.2), a hat", "X") == [4, 7]
    assert words.places_of("cat", "word " * 75 + "cat", "X") == [78]
    with pytest.raises(InvalidValueError, match="'scarf' does not stand in the base prompt"):
        words.places_of("scarf", "a girl", "X")


@pytest.mark.parametrize("later_covers", [False, True])
def test_regions_are_where_attention_saw_their_words(later_covers: bool) -> None:
    """Tokens on the left attend to the first word, those in the upper half to the second."""
    from diffusers.models.attention_processor import Attention

    attention = Attention(query_dim=2, cross_attention_dim=2, heads=1, dim_head=2, bias=False)
    with torch.no_grad():
        attention.to_q.weight.copy_(torch.eye(2) * 8)
        attention.to_k.weight.copy_(torch.eye(2))
    left = (torch.arange(8) < 4).float().expand(8, 8)
    tokens = torch.stack([left.flatten(), left.T.flatten()], dim=1)
    seen = module("regional-prompter", "regional_prompter").SeenWords([[0], [1]], [0.4, 0.4], later_covers)
    assert seen.weights(0, 8, 8) is None
    seen.look(attention, tokens, torch.cat([torch.eye(2), torch.zeros(1, 2)]), (8, 8), (16, 16))
    assert seen.weights(0, 8, 8) is None  # a step sees what those before it saw
    first, second = seen.weights(1, 8, 8)
    both = 0.0 if later_covers else 0.5
    assert float(first[5:, :4].min()) == 1 and float(second[:4, 5:].min()) == 1
    assert float(first[1, 1]) == both and float(second[1, 1]) == 1 - both
    assert float(first[5:, 5:].max()) == 0


def test_tiles_cover_latents_as_recorded() -> None:
    script = module("tiled-diffusion", "tiled_diffusion")
    values = {"tile_width": 16, "tile_height": 16, "overlap": 4}
    windows = script.Grid.of(32, 20, values).windows
    assert [tuple(window)[:2] for window in windows] == [(0, 0), (8, 0), (16, 0), (0, 4), (8, 4), (16, 4)]
    assert len(script.Grid.of(16, 16, values).windows) == 1
    weights = script.weights_of(windows[0], script.MIXTURE, torch.zeros(1))
    assert np.unravel_index(int(weights.argmax()), weights.shape)[0] == 8


class ToyNet:
    """A model of SD1's noise levels that is a formula of its input at unit variance and of the timestep, as a denoiser,
    and the walk up the levels as the extension describes it, written down plainly."""

    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    sigmas = ((1 - (1 - betas).cumprod(0)) / (1 - betas).cumprod(0)).sqrt()

    def noise(self, x: torch.Tensor, timestep: float) -> torch.Tensor:
        return torch.tanh(x * (1 + timestep / 500)) * (0.5 + timestep / 2000)

    def timestep(self, sigma: float) -> float:
        return float(np.interp(np.log(sigma), self.sigmas.log().numpy(), np.arange(1000)))

    def denoise(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        level = float(sigma[0])
        return x - level * self.noise(x / (level**2 + 1) ** 0.5, self.timestep(level))

    def schedule(self, steps: int) -> torch.Tensor:
        places = torch.linspace(999, 0, steps, dtype=torch.float64).numpy()
        levels = np.exp(np.interp(places, np.arange(1000), self.sigmas.log().numpy()))
        return torch.tensor([*levels, 0.0])

    def walked(self, x: torch.Tensor, steps: int, retouch: float) -> torch.Tensor:
        levels = self.schedule(steps).flip(0).tolist()
        for here, there in pairwise(levels):
            noise = self.noise(x / (there**2 + 1) ** 0.5, self.timestep(there) / retouch)
            x = x + (there - here) * noise
        return x.div(levels[-1])


@pytest.mark.parametrize(("retouch", "strength"), [(1.0, 0.0), (2.0, 0.0), (1.5, 0.5)])
def test_noise_inversion_walks_up_the_levels(retouch: float, strength: float) -> None:
    """On one tile and on several, whose predictions are those of the whole for a model that sees single cells."""
    script, toy = module("tiled-diffusion", "tiled_diffusion"), ToyNet()
    x = torch.randn(1, 4, 12, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    drawn = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    image = Image.fromarray(np.random.default_rng(5).integers(0, 256, (96, 192, 3), dtype=np.uint8))
    wanted = toy.walked(x, 7, retouch)
    if strength:
        gray = np.asarray(image.convert("L")).astype(np.float64) / 255
        padded = np.pad(gray, (4, 3), mode="reflect")  # a mean over 8 pixels: 4 before, this one, 3 after

        def mean(values: Any) -> Any:
            rows = sum(values[n : n + 96] for n in range(8)) / 8
            return sum(rows[:, n : n + 192] for n in range(8)) / 8

        middle = mean(padded)
        slope = (mean(padded**2) - middle**2) / (mean(padded**2) - middle**2 + 0.01)
        apart = (slope * gray + middle - slope * middle - gray) * 255
        share = 1 - torch.from_numpy((np.trunc(apart) % 256) / 255)[None, None]
        cells = torch.nn.functional.interpolate(share, size=(12, 24), mode="bilinear")[0, 0] * strength
        wanted = ((1 - cells) * wanted + cells * drawn) / (cells**2 + (1 - cells) ** 2).sqrt()
    for tile in (8, 32):
        values = {"tile_width": tile, "tile_height": tile, "overlap": 2, "method": script.MULTI, "inversion_steps": 7}
        values |= {"retouch": retouch, "renoise_strength": strength, "renoise_kernel": 8}
        tiles = lambda denoise, values=values: partial(script.averaged_tiles, denoise, values)  # noqa: E731
        inversion = script.Inversion(values, ["a"], [""], image, tiles)
        computing = SimpleNamespace(schedule=toy.schedule, denoiser=lambda *asked: toy.denoise)
        start = SimpleNamespace(x=x, noise=drawn.clone(), is_hires=False, computing=computing)
        inversion(start)
        apart_share = float(((start.noise - wanted).abs() > 1e-3).double().mean())
        assert apart_share < 0.02  # where a difference lies between two levels, the last digits decide


TILED = [True, "MultiDiffusion", False, True, 1024, 1024, 16, 16, 8, 4, "None", 2.0, False, 10, 1, 1, 64, False]
OFF = [False, 0.4, 0.4, 0.2, 0.2, "", "", "Background", 0.2, -1]


def tiled_regions(*states: list[Any]) -> Any:
    script = module("tiled-diffusion", "tiled_diffusion")
    given = [*TILED, True, True, False, *(value for state in states for value in state)]
    values = script.TiledDiffusion().read_args(given, "Tiled Diffusion")
    names = [row.name for row in script.TiledDiffusion.rows]
    return script.regions_of(dict(zip(names, values, strict=True))["regions"])


def test_regions_of_tiled_diffusion() -> None:
    (region,) = tiled_regions(OFF, [True, 0.5, 0, 0.5, 1, "a cat", "dog", "Foreground", 0.5, -1])
    window = region.window(32, 16)
    assert tuple(window) == (16, 0, 16, 16) and (region.prompt, region.negative) == ("a cat", "dog")
    edges = region.edges(window, torch.zeros(1))
    assert edges.shape == (16, 16) and float(edges[0].max()) == 0 and float(edges[4:12, 4:12].min()) == 1
    assert float(edges[8, 2]) == 0.25
    with pytest.raises(InvalidValueError, match="a seed of a region is not supported"):
        tiled_regions([True, 0, 0, 1, 1, "", "", "Background", 0.2, 7])
    with pytest.raises(InvalidValueError, match="within the image"):
        tiled_regions([True, 2, 0, 1, 1, "", "", "Background", 0.2, -1])


def test_regions_lie_over_tiles_of_the_whole() -> None:
    """One in the foreground replaces what is below it, one in the background is averaged with it."""
    script = module("tiled-diffusion", "tiled_diffusion")
    values = {"tile_width": 16, "tile_height": 16, "overlap": 0, "batch": 4, "method": "MultiDiffusion"}
    regions = tiled_regions(
        [True, 0, 0, 0.5, 1, "", "", "Background", 0, -1], [True, 0.5, 0, 0.5, 1, "", "", "Foreground", 0, -1]
    )

    @dataclass
    class Texts:
        value: float

    class Encoded(script.RegionTexts):  # type: ignore[misc, name-defined]
        def context(self, place: int, *_: Any) -> Texts:
            return Texts(10.0 * (place + 1))

    def denoise(x: torch.Tensor, sigma: torch.Tensor, context: Any) -> torch.Tensor:
        return torch.full_like(x, context.value)

    use = SimpleNamespace(call=ModelCall((0,), (False,), 0, 4), calling=lambda call: nullcontext())
    x, sigma = torch.zeros(1, 4, 16, 16), torch.ones(1)

    def made(draws_background: bool) -> torch.Tensor:
        own = {**values, "draws_background": draws_background}
        found: torch.Tensor = script.in_tiles(denoise, use, own, Encoded(tuple(regions)), x, sigma, Texts(2.0))
        return found

    whole, alone = made(True), made(False)
    assert set(whole[..., :8].flatten().tolist()) == {6.0} and set(whole[..., 8:].flatten().tolist()) == {20.0}
    assert set(alone[..., :8].flatten().tolist()) == {10.0}


REGIONS = {
    "divide": "Matrix",
    "common": False,
    "base": False,
    "matrix": "Columns",
    "flip": False,
    "options": "",
    "negative_common": False,
}


def regions(prompt: str, **changed: Any) -> Any:
    values = REGIONS | {"ratios": "1,1", "base_ratios": "0.2"} | changed
    return module("regional-prompter", "regional_prompter").Regions.of(prompt, "bad", values, None)


def test_how_a_prompt_divides_the_image() -> None:
    found = regions("a BREAK b", ratios="1,3")
    assert found.texts == ("a", "b") and [box.right for box in found.boxes] == [0.25, 1.0]
    rows = regions("a BREAK b", ratios="1,3", matrix="Rows")
    assert [box.bottom for box in rows.boxes] == [0.25, 1.0]
    nested = regions("a BREAK b BREAK c", ratios="1,1,1;2,1")
    assert [(box.left, round(box.top, 3)) for box in nested.boxes] == [(0, 0), (0.5, 0), (0, 0.333)]
    words = regions("a ADDCOL b ADDROW c", ratios="1,1")
    assert [(box.left, box.top) for box in words.boxes] == [(0, 0), (0.5, 0), (0, 0.5)]
    full = regions("all ADDCOMM base ADDBASE a ADDCOL b", base_ratios="0.5,0.1")
    assert full.texts == ("all, a", "all, b") and full.base == "all, base" and full.shares == (0.5, 0.1)
    assert regions("a AND b").texts == ("a", "b")


@pytest.mark.parametrize(
    ("prompt", "changed", "words"),
    [
        ("a BREAK b", {"ratios": "1,x"}, "is no list of numbers"),
        ("a BREAK b", {"ratios": "1,1,1"}, "3 regions, and the prompt has 2"),
        ("a BREAK b", {"ratios": "0,0"}, "leave no room"),
    ],
)
def test_a_prompt_that_does_not_fit_its_ratios(prompt: str, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        regions(prompt, **changed)


def test_of_an_inpainted_part_regions_are_those_of_the_part() -> None:
    part_of = module("regional-prompter", "regional_prompter").part_of
    regions = Image.new("RGB", (64, 32), "red")
    regions.paste("blue", (32, 0, 64, 32))
    painted = Image.new("L", (128, 64))
    painted.paste(255, (80, 8, 112, 40))
    job = SimpleNamespace(
        image_mask=painted, inpaint_full_res=True, inpaint_full_res_padding=16, inpainting_mask_invert=0,
        mask_blur_x=0, mask_blur_y=0, width=64, height=64,
    )  # fmt: skip
    part = part_of(regions, job)
    assert part.size == (64, 64) and part.getcolors() == [(64 * 64, (0, 0, 255))]
    job.inpaint_full_res = False
    assert part_of(regions, job) is regions
    assert part_of(regions, SimpleNamespace()) is regions, "of txt2img"


def test_hues_of_a_mask() -> None:
    hue_of = module("regional-prompter", "regional_prompter").hue_of
    assert [hue_of(region) for region in range(6)] == [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 3 / 8]


@pytest.mark.parametrize(
    ("title", "args", "values"),
    [
        ("FreeU", [{"stage_infos": [{"backbone_factor": 1.3}]}], {0: True, 9: '[{"backbone_factor": 1.3}]'}),
        ("FreeU", [{"stage_infos": [1.3, 1, 0, 0.5, 0, 1, {}]}], {8: "1", 9: '[{"backbone_factor": 1.3}, {}]'}),
        ("FreeU", [True, 0, 1, 0, *[1.3, 1, 0, 0.5, 0, 1], *[1, 1, 0, 0.5, 0, 1] * 2], {7: 0, 8: "1"}),
        ("LoRA Block Weight", ["A:1,0", True, 0, "", "", ""], {0: "A:1,0", 1: True}),
        ("FreeU Integrated (SD 1.x, SD 2.x, SDXL)", [True, 1.1, 1.2, 0.9, 0.2, 0, 0.5], {1: 1.1, 6: 0.5}),
        ("MultiDiffusion Integrated", [True, "Mixture of Diffusers", 768, 512, 64, 2], {2: 96, 3: 64, 4: 8, 5: 2}),
        (
            "DynamicThresholding (CFG-Fix) Integrated",
            [True, 7, 0.99, "Constant", 0, "Constant", 0, 1, "disable"],
            {8: False},
        ),
        ("Dynamic Thresholding (CFG Scale Fix)", [True, 7, 99], {2: 99.0, 8: True}),
        ("PerturbedAttentionGuidance Integrated", [True], {1: 3.0}),
        ("Self Attention Guidance", [True, 0.75, 0.9], {1: 0.75, 2: 1.0, 3: 0.9}),
        (
            "Tiled Diffusion",
            [True, "MultiDiffusion", False, True, 1024, 1024, 16, 24, 4, 1],
            {2: 16, 3: 24, 4: 4, 5: 1},
        ),
        (
            "Tiled Diffusion",
            [True, "MultiDiffusion", False, True, 1024, 1024, 16, 16, 4, 1, "None", 2.0, True, 12, 1.5, 0.4, 32, False],
            {8: True, 9: 12, 10: 1.5, 11: 0.4, 12: 32},
        ),
    ],
)
def test_arguments_by_title(title: str, args: list[Any], values: dict[int, Any]) -> None:
    script = built_in().find_alwayson(title)
    read = read_args(script, args, title)
    assert {place: read[place] for place in values} == values


@pytest.mark.parametrize(
    ("title", "args", "words"),
    [
        ("FreeU", [{"stages": []}], "is not known"),
        ("LoRA Block Weight", ["A:1,0", True, 1], "use the script X/Y/Z plot"),
        ("FreeU", [True, 0, 1, 0, "Version 3", 1, 1, 0, 0.5, 0, 1], "the version is 'Version 3'"),
        ("FreeU", [True, "x"], "allowed is a number"),
        ("Tiled Diffusion", [True, "Nothing"], "Method is 'Nothing'"),
        ("Tiled Diffusion", [True, "MultiDiffusion", False, True, *[16] * 6, "None", 2.0, True, 0], "Inversion steps"),
        ("Tiled VAE", [True, 256, "x"], "Decoder tile size is 'x'"),
        ("Regional Prompter", [True, False, "Words"], "Divide mode is .Words."),
        ("Kohya Hires.fix", ["yes"], "allowed is true or false"),
        ("CFG-Zero*", [True, 1, 2], "takes 2 arguments, 3 were given"),
    ],
)
def test_arguments_that_cannot_be(title: str, args: list[Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        read_args(built_in().find_alwayson(title), args, title)


def test_an_axis_sets_a_value_and_switches_its_script_on() -> None:
    script: Any = built_in().find_alwayson("FreeU")
    axis = AXES.get("[FreeU] Backbone 1")
    p: Any = SimpleNamespace(script_values={})
    assert script.values(p, []) is None
    axis.apply(p, axis.values("1.1, 1.3")[1], [])
    assert script.values(p, [False, 1.2])["b1"] == 1.3
    with pytest.raises(InvalidValueError, match="Mimic scale scheduler is 'Up'"):
        AXES.get("[Dynamic Thresholding (CFG Scale Fix)] Mimic scale scheduler").values("Up")


def test_presets_of_a_request_are_numbers_in_its_prompts() -> None:
    script: Any = built_in().find_alwayson("LoRA Block Weight")
    job = SimpleNamespace(all_prompts=["a <lora:x:0.5:MINE> <lora:y:1:lbw=mine> <lora:z:1:ALL>"], all_hr_prompts=None)
    script.process(job, "# no preset\nMINE:1,0,0.5\n", False)
    assert "MINE" in job.all_prompts[0]
    script.process(job, "# no preset\nMINE:1,0,0.5\n", True)
    assert job.all_prompts == ["a <lora:x:0.5:lbw=1,0,0.5> <lora:y:1:lbw=1,0,0.5> <lora:z:1:ALL>"]
