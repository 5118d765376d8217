"""SD upscale and Ultimate SD upscale: a small image becomes one of 512 pixels, tile by tile, without seams."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.infotext import parse_infotext
from modules.processing.engine.engine import Engine
from modules.processing.record.result import Result
from modules.scripts.library import ScriptLibrary, filled_args
from tests.scripts.toys import image_request, run

BUILT_IN = Path(__file__).parent.parent.parent / "extensions-builtin"
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


def made(
    title: str, args: list[Any], library: ScriptLibrary, engine: Engine, folder: Path, **values: Any
) -> Result:
    script = library.find(title, is_img2img=True)
    given = {"image": scene(), "width": TILE_PX, "height": TILE_PX, "steps": 4, "denoising_strength": 0.3, **values}
    wanted = replace(image_request(**given), script=script.title(), script_args=filled_args(script, args))
    return run(wanted, engine, folder, library)


def steps_at(image: Image.Image, borders: list[int]) -> tuple[float, float]:
    """The mean difference of neighboring pixels across these borders, both ways, and that at all other places."""
    pixels = np.asarray(image, dtype=np.float64)
    across: list[NDArray[np.float64]] = [np.abs(np.diff(pixels, axis=axis)).mean(axis=(1 - axis, 2)) for axis in (0, 1)]
    at = np.zeros(len(across[0]), dtype=bool)
    at[[border - 1 for border in borders]] = True
    return float(np.mean([line[at] for line in across])), float(np.mean([line[~at] for line in across]))


@pytest.mark.parametrize(
    ("title", "args", "borders"),
    [
        ("sd upscale", ["", 32, "Lanczos", 4], [96, 128, 192, 224, 288, 320, 384, 416]),
        ("ultimate sd upscale", ultimate(custom_scale=4), [128, 256, 384]),
    ],
)
def test_tiles_of_a_512_image_leave_no_seam(
    title: str, args: list[Any], borders: list[int], library: ScriptLibrary, engine: Engine, tmp_path: Path
) -> None:
    result = made(title, args, library, engine, tmp_path)
    (whole,) = result.images
    assert whole.image.size == (512, 512)
    at_borders, inside = steps_at(whole.image, borders)
    print(title, at_borders, inside)
    assert at_borders <= inside * 1.02
