"""SD upscale and Ultimate SD upscale: a small image becomes one of 512 pixels, tile by tile, without seams."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from modules.errors import InvalidValueError
from modules.images.infotext import parse_infotext
from modules.images.masks import blur_mask
from modules.processing.engine.engine import Engine
from modules.processing.request.result import Result
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.library import ScriptLibrary, filled_args
from tests.scripts.toys import image_request, run

BUILT_IN = Path(__file__).parent.parent.parent / "extensions-builtin"
TITLE = "Ultimate SD upscale"
TILE_PX = 128


@pytest.fixture(scope="module")
def library() -> ScriptLibrary:
    return ScriptLibrary.load([BUILT_IN])


def scene() -> Image.Image:
    """A smooth image of 128 pixels: a sky and a disc."""
    y, x = np.mgrid[0:128, 0:128] / 128
    disc = np.clip((0.3 - np.hypot(x - 0.5, y - 0.55)) * 12, 0, 1)
    pixels = np.stack([80 + 120 * disc, 90 + 90 * y, 220 - 150 * disc], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def ultimate(**given: Any) -> list[Any]:
    """Arguments in the order in which clients send them."""
    values: dict[str, Any] = {
        "info": "",
        "tile_width": TILE_PX,
        "tile_height": 0,
        "mask_blur": 8,
        "padding": 32,
        "seams_fix_width": 64,
        "seams_fix_denoise": 0.35,
        "seams_fix_padding": 16,
        "upscaler_index": "Lanczos",
        "save_upscaled_image": True,
        "redraw_mode": 0,
        "save_seams_fix_image": False,
        "seams_fix_mask_blur": 4,
        "seams_fix_type": 0,
        "target_size_type": 2,
        "custom_width": 2048,
        "custom_height": 2048,
        "custom_scale": 2,
    }
    return list({**values, **given}.values())


class Restless:
    """In place of the model: each tile comes back with a texture and a brightness of its own, pasted under its blurred
    mask as processing does."""

    def __init__(self, result: Result) -> None:
        self.jobs: list[tuple[tuple[int, int], int, float]] = []  # size, seed, strength
        self._result = result
        self._texture = np.random.default_rng(1)

    def __call__(self, p: Job) -> Processed:
        assert isinstance(p, ImageJob)
        self.jobs.append(((p.width, p.height), p.seed, p.denoising_strength))
        made = [self._made(p, image, 6.0 * (-1) ** (len(self.jobs) + n)) for n, image in enumerate(p.init_images)]
        template = self._result.images[0]
        return Processed(replace(self._result, images=tuple(replace(template, image=image) for image in made)))

    def _made(self, p: ImageJob, image: Image.Image, brightness: float) -> Image.Image:
        assert image.size == (p.width, p.height)
        texture = self._texture.normal(0, 4, (p.height, p.width, 1))
        smooth = gaussian_filter(np.asarray(image, dtype=np.float64), (2, 2, 0))
        pixels = smooth + texture + brightness
        redrawn = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        if p.image_mask is None:
            return redrawn
        mask = blur_mask(p.image_mask, p.mask_blur_x, p.mask_blur_y)
        return Image.composite(redrawn, image, mask)


@pytest.fixture(scope="module")
def model(engine: Engine, tmp_path_factory: pytest.TempPathFactory, library: ScriptLibrary) -> Restless:
    return Restless(run(image_request(steps=1), engine, tmp_path_factory.mktemp("made"), library))


def job(model: Restless, **values: Any) -> Job:
    model.jobs.clear()
    given = {"image": scene(), "width": TILE_PX, "height": TILE_PX, "denoising_strength": 0.3, **values}
    return ImageJob(image_request(**given), model)


def steps_at(image: Image.Image, borders: list[int]) -> tuple[float, float]:
    """The mean difference of neighboring pixels across these borders, both ways, and that inside of tiles, where no two
    are mixed."""
    pixels = np.asarray(image, dtype=np.float64)
    across: list[NDArray[np.float64]] = [np.abs(np.diff(pixels, axis=axis)).mean(axis=(1 - axis, 2)) for axis in (0, 1)]
    distance = np.abs(np.arange(1, len(across[0]) + 1)[:, None] - borders).min(axis=1)
    at, inside = (float(np.mean([line[where] for line in across])) for where in (distance == 0, distance > 20))
    return at, inside


BORDERS = [128, 256, 384]


@pytest.mark.parametrize(
    ("title", "args", "borders"),
    [
        ("sd upscale", ["", 32, "Lanczos", 4], [96, 128, 192, 224, 288, 320, 384, 416]),
        ("ultimate sd upscale", ultimate(custom_scale=4), BORDERS),
        ("ultimate sd upscale", ultimate(custom_scale=4, redraw_mode="Chess", seams_fix_type="Band pass"), BORDERS),
    ],
)
def test_tiles_of_a_512_image_leave_no_seam(
    title: str, args: list[Any], borders: list[int], library: ScriptLibrary, model: Restless
) -> None:
    made = library.find(title, is_img2img=True).run(job(model), *args)
    assert made is not None
    for image in made.images:
        assert image.size == (512, 512)
        at_borders, inside = steps_at(image, borders)
        assert at_borders <= inside * 1.03, (at_borders, inside)  # the texture is random


@pytest.mark.parametrize("fix", [1, 2, 3])
def test_a_seams_fix_takes_the_seams_of_masks_without_blur(fix: int, library: ScriptLibrary, model: Restless) -> None:
    args = ultimate(custom_scale=4, mask_blur=0, seams_fix_type=fix)
    made = library.find(TITLE, is_img2img=True).run(job(model), *args)
    assert made is not None
    redrawn, fixed = made.images
    at_borders, inside = steps_at(redrawn, BORDERS)
    assert at_borders > inside * 1.5
    assert steps_at(fixed, BORDERS)[0] < at_borders * 0.75


@pytest.mark.parametrize(
    ("fix", "jobs", "sizes"),
    [
        (0, 4, {(192, 192)}),
        (1, 6, {(192, 192), (96, 256), (256, 96)}),
        (2, 8, {(192, 192), (160, 160)}),
        (3, 9, {(192, 192), (160, 160)}),
    ],
)
def test_each_seams_fix_redraws_its_patches(
    fix: int, jobs: int, sizes: set[tuple[int, int]], library: ScriptLibrary, model: Restless
) -> None:
    script = library.find(TITLE, is_img2img=True)
    args = ultimate(seams_fix_type=fix)
    made = script.run(job(model), *args)
    assert made is not None and len(made.images) == (2 if fix else 1)
    assert {size for size, _, _ in model.jobs} == sizes
    assert {strength for _, _, strength in model.jobs} == ({0.3, 0.35} if fix else {0.3})
    assert len(model.jobs) == jobs == script.expected_cells(job(model), *args)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"target_size_type": 0}, (128, 128)),
        ({"target_size_type": "Custom size", "custom_width": 320, "custom_height": 264}, (320, 264)),
        ({"custom_scale": 1.7}, (256, 256)),
    ],
)
def test_target_sizes(given: dict[str, Any], size: tuple[int, int], library: ScriptLibrary, model: Restless) -> None:
    made = library.find(TITLE, is_img2img=True).run(job(model), *ultimate(**given))
    assert made is not None and made.images[0].size == size


def test_tiles_are_redrawn_by_the_model_and_one_image_is_saved(
    library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    script = library.find(TITLE, is_img2img=True)
    args = filled_args(script, ultimate(tile_width=64, padding=0, mask_blur=2, custom_scale=1))
    settings = {"samples_save": True}
    image = scene().crop((0, 0, 128, 64))
    start = image_request(image=image, steps=1, denoising_strength=1.0, settings=settings)
    result = run(replace(start, script=script.title(), script_args=args), engine, tmp_path, library)
    (whole,) = result.images
    assert whole.image.size == (128, 64) and whole.image.tobytes() != image.tobytes()
    assert len(list(tmp_path.rglob("*.png"))) == 1
    fields = parse_infotext(whole.infotext)
    assert fields["Ultimate SD upscale upscaler"] == "Lanczos" and fields["Ultimate SD upscale tile_width"] == "64"
    assert fields["Ultimate SD upscale padding"] == "0" and fields["Ultimate SD upscale mask_blur"] == "2"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"upscaler_index": "Magic"}, "the upscaler 'Magic' is none of: None, "),
        ({"redraw_mode": 7}, "the type of redraw 7 is none of: Linear, Chess, None"),
        ({"seams_fix_type": "Glue"}, "the seams fix 'Glue' is none of: None, Band pass"),
        ({"target_size_type": 3}, "the target size type 3 is none of"),
        ({"tile_width": 0}, "a tile has 0x0 pixels; allowed are 64"),
        ({"target_size_type": 1, "custom_width": 300}, "the result would have 300x2048 pixels; allowed are multiples"),
        ({"redraw_mode": 2}, "nothing would be redrawn"),
        ({"seams_fix_type": 1, "seams_fix_width": 1}, "a band needs 2 pixels"),
    ],
)
def test_wrong_arguments_are_refused(
    given: dict[str, Any], sentence: str, library: ScriptLibrary, model: Restless
) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        library.find(TITLE, is_img2img=True).run(job(model), *ultimate(**given))
    assert not model.jobs
