"""The built-in scripts on prompts and images, with the tiny model: recorded requests, and what they refuse."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.errors import FeatherweightError
from modules.images.infotext import parse_infotext
from modules.processing.engine.engine import Engine
from modules.processing.engine.pixels import from_images
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.result import ImageRole, Result
from modules.processing.request.source_images import FromImage, SourceImage
from modules.scripts.library import ScriptLibrary, filled_args
from modules.scripts.program import Program
from tests.processing.recorded import levels_apart
from tests.processing.recorded import request_of as noise_request
from tests.processing.test_image_start import from_image
from tests.recordings import REFERENCE, TINY
from tests.scripts.toys import image_request, run, small_request

BUILT_IN = Path(__file__).parent.parent.parent / "extensions-builtin"
RECORDED = {case["id"]: case for case in json.loads((REFERENCE / "script-cases.json").read_text())["cases"]}
LEFT = (0, 0, 32, 64)
ALTERNATIVE = "img2img alternative test"
IMAGE_SCRIPTS = ("loopback", "sd upscale", "poor man's outpainting", "outpainting mk2", ALTERNATIVE)
SOFT = {"Soft Inpainting": (True, 1.0, 0.5, 4.0, 0.0, 0.5, 2.0)}


@pytest.fixture(scope="module")
def library() -> ScriptLibrary:
    found = ScriptLibrary.load([BUILT_IN])
    assert not found.faults
    return found


def made(wanted: Any, title: str, args: list[Any], library: ScriptLibrary, engine: Engine, folder: Path) -> Result:
    is_img2img = hasattr(wanted.start, "images")
    script = library.find(title, is_img2img)
    request = replace(wanted, script=script.title(), script_args=filled_args(script, args))
    return run(request, engine, folder, library)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_script_makes_the_same_images(
    name: str, library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    case = RECORDED[name]
    payload = case["payload"]
    wanted = from_image(payload) if "init_images" in payload else noise_request(payload)
    settings = wanted.settings.with_changes({"return_grid": True})
    wanted = replace(wanted, settings=settings)
    result = made(wanted, payload["script_name"], payload["script_args"], library, engine, tmp_path)
    assert len(result.images) == len(case["images"])
    assert result.images[0].role is ImageRole.GRID
    assert result.images[0].image.size == tuple(case["images"][0]["size"])
    # One level of 8 bits in a loop's result moves the next one's by far; see the test below.
    compared = case["images"][1:2] if name == "script/loopback" else case["images"][1:]
    for image, recorded in zip(result.samples, compared, strict=False):
        apart = levels_apart(image.image, recorded["file"])
        assert apart.max() <= 8 and (apart <= 2).mean() >= 0.98, (apart.max(), (apart <= 2).mean())
    for image, text in zip(result.images, case["info"]["infotexts"], strict=True):
        ours, theirs = parse_infotext(image.infotext), parse_infotext(text)
        for key in theirs.keys() - {"Version"}:
            assert str(ours[key]).removesuffix(".0") == str(theirs[key]).removesuffix(".0"), key


def test_the_second_loop_goes_on_from_the_first_with_the_next_seed(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    case = RECORDED["script/loopback"]
    first = Image.open(REFERENCE / case["images"][1]["file"]).convert("RGB")
    wanted = from_image({**case["payload"], "seed": 1235})
    start = FromImage(images=(SourceImage.of(first),), denoising_strength=0.4)
    wanted = replace(wanted, start=start)
    result = made(wanted, "loopback", [1, 0.9, "Lazy", "None"], library, engine, tmp_path)
    apart = levels_apart(result.samples[0].image, case["images"][2]["file"])
    assert apart.max() <= 8 and (apart <= 2).mean() >= 0.98


def test_a_prompt_matrix_of_negative_prompts_at_the_start(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    wanted = small_request(negative_prompt="ugly|dark", settings={"samples_save": False})
    result = made(wanted, "prompt matrix", [True, True, "negative", "space", 4], library, engine, tmp_path)
    parsed = [parse_infotext(image.infotext) for image in result.samples]
    assert [fields["Negative prompt"] for fields in parsed] == ["ugly", "dark ugly"]
    assert [fields["Seed"] for fields in parsed] == ["5", "6"]


def test_lines_of_a_file_are_jobs(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    text = '# a comment\nblue\n\n--prompt a dog --steps 1 --seed 9 --sampler_name "DDIM"'
    wanted = small_request(prompt="on grass")
    result = made(wanted, "Prompts from file or textbox", [True, False, "end", text], library, engine, tmp_path)
    first, second = (parse_infotext(image.infotext) for image in result.samples)
    assert (first["Prompt"], first["Seed"], first["Steps"]) == ("on grass blue", "5", "2")
    assert (second["Prompt"], second["Seed"], second["Steps"]) == ("on grass a dog", "9", "1")
    assert second["Sampler"] == "DDIM"


def test_loopback_appends_what_it_sees(
    library: ScriptLibrary, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def caption(image: Image.Image, kind: str, settings: object) -> str:
        seen.append((image.width, kind))
        return f"sight {len(seen)}"

    monkeypatch.setattr(library.find("loopback", True), "program", Program(caption=caption))
    wanted = image_request(prompt="a dog", denoising_strength=0.5, settings={"samples_save": False})
    result = made(wanted, "loopback", [2, 0.5, "Linear", "DeepBooru"], library, engine, tmp_path)
    assert seen == [(64, "deepbooru")] * 2
    assert parse_infotext(result.samples[0].infotext)["Prompt"] == "a dog, sight 1"


def test_sd_upscale_joins_its_tiles(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    image = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    wanted = image_request(image=image, denoising_strength=0.2, settings={"samples_save": True})
    result = made(wanted, "sd upscale", ["", 16, "Lanczos", 1.75], library, engine, tmp_path)
    (whole,) = result.images
    assert whole.image.size == (112, 112) and whole.path is not None
    assert "SD upscale overlap: 16, SD upscale upscaler: Lanczos" in whole.infotext
    assert len(list(tmp_path.rglob("*.png"))) == 1


@pytest.mark.parametrize(
    ("title", "args", "sentence"),
    [
        ("prompt matrix", [False, False, "both", "comma", 0], "'both' is none of: positive, negative"),
        ("prompt matrix", [False, False, "positive", "dash", 0], "'dash' is none of: comma, space"),
        ("Prompts from file or textbox", [False, False, "start", "# only"], "There are no prompts"),
        ("Prompts from file or textbox", [False, False, "start", "--size 3"], "Line 1: unknown --size"),
        ("Prompts from file or textbox", [False, False, "start", "--steps two"], "Line 1: --steps 'two' is no number"),
        ("Prompts from file or textbox", [False, False, "start", '--prompt "a'], "Close every quote"),
        ("Prompts from file or textbox", [False, False, "start", "--outpath_grids x"], "is not supported here"),
        ("loopback", [4, 0.5, "Bent", "None"], "'Bent' is none of: Aggressive, Linear, Lazy"),
        ("loopback", [4, 0.5, "Linear", "Guess"], "appends captions by 'Guess'"),
        ("sd upscale", ["", 64, "Lanczos", 2.0], "tiles of 64x64 pixels can overlap by 0 to 63 pixels, not by 64"),
        ("sd upscale", ["", 8, "Magic", 2.0], "there is no upscaler 'Magic'"),
        ("poor man's outpainting", [16, 0, 0, []], "choose at least one direction"),
        ("poor man's outpainting", [16, 0, "grey", ["up"]], "'grey' is none of: fill, original"),
        ("outpainting mk2", ["", 16, 8, ["north"]], "choose at least one direction"),
        ("outpainting mk2", ["", 0, 8, ["up"]], "pixels to expand is 0; allowed is 1 to 4096"),
        ("outpainting mk2", ["", 16, 65, ["up"]], "mask blur is 65; allowed is 0 to 64"),
        ("outpainting mk2", ["", 16, 8, ["up"], 5], "the fall-off exponent is 5.0; allowed is 0 to 4.0"),
        ("outpainting mk2", ["", 16, 8, ["up"], 1, 2], "color variation is 2.0; allowed is 0 to 1"),
        (ALTERNATIVE, ["", True, True, "", "", True, 0], "decode steps is 0; allowed is 1 to 1000"),
        (ALTERNATIVE, ["", True, True, "", "", True, 5, True, 1, 2], "randomness is 2; allowed is 0 to 1"),
        (ALTERNATIVE, ["", True, True, "", "", True, 5, True, -1], "decode CFG scale is -1; allowed is"),
        ("sd upscale", ["", 8, "Lanczos", 0.5], "Make width and height smaller, or the image larger"),
    ],
)
def test_wrong_arguments_are_said_before_the_first_image(
    title: str, args: list[Any], sentence: str, library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    wanted = image_request() if title in IMAGE_SCRIPTS else small_request()
    with pytest.raises(FeatherweightError, match=sentence.replace("(", r"\(")):
        made(wanted, title, args, library, engine, tmp_path)


def test_poor_mans_outpainting_makes_only_the_tiles_at_the_borders(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    image = Image.linear_gradient("L").resize((128, 64)).convert("RGB")
    wanted = image_request(image=image)
    result = made(wanted, "poor man's outpainting", [32, 0, "original", ["right"]], library, engine, tmp_path)
    (whole,) = result.images
    assert whole.image.size == (192, 64)
    assert whole.image.crop((0, 0, 64, 64)).tobytes() == image.crop((0, 0, 64, 64)).tobytes()
    assert "Masked content" not in whole.infotext and "Mask sha256" in whole.infotext


def test_outpainting_mk2_grows_the_chosen_sides_and_keeps_the_rest(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    image = Image.radial_gradient("L").resize((64, 64)).convert("RGB")
    wanted = image_request(image=image, steps=1, settings={"samples_save": True})
    result = made(wanted, "outpainting mk2", ["", 32, 0, ["right", "up"]], library, engine, tmp_path)
    (whole,) = result.images
    assert whole.image.size == (128, 128) and len(list(tmp_path.rglob("*.png"))) == 1
    assert whole.image.crop((0, 64, 64, 128)).tobytes() == image.tobytes()


def matched(exponent: float, variation: float) -> Any:
    """A strip of noise right of a striped image, [64,64,3]."""
    script = sys.modules["featherweight_scripts.outpainting_mk2.outpainting_mk2"]
    stripes = np.tile((np.sin(np.arange(128) / 4) * 60 + 120)[None, :, None], (64, 1, 3)) * [1.0, 0.8, 0.5]
    image = Image.fromarray(stripes.astype(np.uint8))
    noise = script.Noise(exponent, variation)
    drawn = script.matched_noise(image, (192, 64), (0, 0), 0, noise, seed=3)
    return np.asarray(drawn, dtype=np.float64)[:, 128:], stripes


def test_noise_of_outpainting_has_the_images_colors_and_scale(library: ScriptLibrary) -> None:
    strip, stripes = matched(1.0, 0.0)
    assert np.allclose(strip.mean(axis=(0, 1)), stripes.mean(axis=(0, 1)), rtol=0.1)
    assert np.allclose(strip.std(axis=(0, 1)), stripes.std(axis=(0, 1)), rtol=0.25)

    def detail(values: Any) -> float:
        return float(np.abs(np.diff(values, axis=1)).mean())

    assert detail(strip) * 1.2 < detail(matched(0.2, 0.0)[0])

    def agreement(values: Any) -> float:
        return float(np.corrcoef(values[..., 0].ravel(), values[..., 2].ravel())[0, 1])

    assert agreement(matched(1.0, 1.0)[0]) < 0.5 < 0.95 < agreement(strip)


def test_the_noise_found_for_an_image_makes_it_again(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    image = run(small_request(steps=5), engine, tmp_path, library).samples[0].image
    wanted = image_request(image=image, cfg_scale=1.0, prompt="something else")
    model = engine.model(TINY.name, PrecisionOptions.of(wanted.settings))
    with model.computing():
        decoded = model.decode(model.encode(from_images([image])))[0]
    expected = (decoded.permute(1, 2, 0).numpy().clip(-1, 1) + 1) * 127.5

    def apart(other: Image.Image) -> float:
        return float(np.abs(np.asarray(other, dtype=float) - expected).mean())

    args = ["", True, True, "a red cat", "", True, 12, True, 1.0]
    again = made(wanted, ALTERNATIVE, [*args, 0.0, True], library, engine, tmp_path).samples[0]
    drawn = made(wanted, ALTERNATIVE, [*args, 1.0, True], library, engine, tmp_path).samples[0]
    assert apart(again.image) < 10 < 40 < apart(drawn.image)
    parsed = parse_infotext(again.infotext)
    assert parsed["Prompt"] == parsed["Decode prompt"] == "a red cat" and parsed["Sampler"] == "Euler"
    assert parsed["Decode steps"] == str(parsed["Steps"]) == "12" and parsed["Sigma Adjustment"] == "True"


@pytest.mark.parametrize("adjusts_sigma", [False, True])
def test_found_noise_leads_back_along_the_known_path_of_gaussian_data(
    adjusts_sigma: bool, library: ScriptLibrary
) -> None:
    """Data of deviation 0.8: the path from x to the level s is x * sqrt(1 + s^2 / 0.64)."""
    script = sys.modules["featherweight_scripts.img2img_alternative_test.img2img_alternative_test"]
    variance = 0.8**2
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(2)) * 0.8
    sigmas = torch.linspace(0, 14.6**0.5, 2001) ** 2
    noise = script.found_noise(
        lambda at, sigma: at * (variance / (variance + sigma**2)).view(-1, 1, 1, 1), x, sigmas, adjusts_sigma
    )
    expected = x / x.std() if not adjusts_sigma else x * (1 / 14.6**2 + 1 / variance) ** 0.5
    assert torch.allclose(noise, expected, rtol=0.01)


def test_custom_code_is_refused_with_the_reason(library: ScriptLibrary) -> None:
    for is_img2img in (False, True):
        with pytest.raises(FeatherweightError, match="would run any Python that a request sends"):
            library.find("Custom code", is_img2img)


def test_a_script_of_the_other_tab_is_refused_by_name(library: ScriptLibrary) -> None:
    with pytest.raises(FeatherweightError, match="'loopback' is not for txt2img, only for img2img"):
        library.find("loopback")


def test_soft_inpainting_takes_grey_masks_as_they_are(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    wanted = replace(image_request(LEFT, blur=6), alwayson_args=SOFT)
    result = run(wanted, engine, tmp_path, library)
    assert not result.notices
    parsed = parse_infotext(result.samples[0].infotext)
    assert parsed["Soft inpainting enabled"] == "True" and parsed["Soft inpainting difference contrast"] == "2.0"
    off = run(image_request(LEFT, blur=6), engine, tmp_path, library)
    assert "Soft inpainting" not in off.samples[0].infotext
    assert (np.asarray(result.samples[0].image) != np.asarray(off.samples[0].image)).any()


def test_soft_inpainting_without_a_mask_does_nothing(library: ScriptLibrary, engine: Engine, tmp_path: Path) -> None:
    wanted = replace(image_request(), alwayson_args=SOFT)
    result = run(wanted, engine, tmp_path, library)
    assert not result.notices and "Soft inpainting" not in result.samples[0].infotext
