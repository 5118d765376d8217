"""Toy extensions and a tiny engine for tests of the extension API."""

from pathlib import Path
from typing import Any

from PIL import Image

from compat.foreign import Foreign
from modules.processing.engine.engine import Engine
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.scripts.library import ScriptLibrary
from modules.scripts.running import run_with_scripts
from modules.settings.values import Settings
from tests.recordings import TINY


def small_request(**values: Any) -> GenerationRequest:
    """Two Euler steps of a small image; `settings` is a mapping."""
    settings = Settings().with_changes({"samples_save": False, "grid_save": False, **values.pop("settings", {})})
    common: dict[str, Any] = {"prompt": "a red cat", "steps": 2, "sampler": "Euler", "seed": 5, "subseed": 1}
    common["checkpoint"] = TINY.name
    return GenerationRequest(**{**common, "width": 64, "height": 64, "settings": settings, **values})


def small_hires() -> HiresRequest:
    """A second pass of one step."""
    return HiresRequest(scale=1.5, steps=1, denoising_strength=1.0)


def extension(folder: Path, source: str, name: str = "toy") -> ScriptLibrary:
    """A library with one extension of one file."""
    path = folder / name / "scripts"
    path.mkdir(parents=True)
    (path / "script.py").write_text(source)
    return ScriptLibrary.load([folder], foreign=Foreign())


def run(wanted: GenerationRequest, engine: Engine, folder: Path, library: ScriptLibrary) -> Result:
    """Run a request with the library's scripts."""
    return run_with_scripts(wanted, engine, Output(folder), Silent(), library)


def image_request(mask_px: tuple[int, int, int, int] | None = None, **values: Any) -> GenerationRequest:
    """As `small_request` from a red image; `mask_px` (left, top, right, bottom) is painted anew."""
    mask = None
    if mask_px is not None:
        drawn = Image.new("L", (64, 64))
        drawn.paste(255, mask_px)
        mask = Mask(image=SourceImage.of(drawn), blur_x=values.pop("blur", 0), blur_y=0)
    strength = values.pop("denoising_strength", 1.0)
    image = SourceImage.of(values.pop("image", Image.new("RGB", (64, 64), "red")))
    start = FromImage(images=(image,), mask=mask, denoising_strength=strength)
    return small_request(start=start, **values)
