"""Cropping to the size, in steps of 64 pixels, that loses least of an image."""

from typing import Any

from PIL import Image

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing

STEP_PX = 64
AREA, ERROR = "Maximize area", "Minimize error"


class AutoSizedCrop(ScriptPostprocessing):
    """Crop to the best of all sizes within the bounds."""

    name = "Auto-sized crop"
    order = 4020
    fields = (
        Field(name="enable", label=name, default=False, elem_id="postprocess_multicrop", is_switch=True),
        Field(
            name="mindim",
            label="Dimension lower bound",
            default=384,
            elem_id="postprocess_multicrop_mindim",
            low=64,
            high=2048,
            step=8,
        ),
        Field(
            name="maxdim",
            label="Dimension upper bound",
            default=768,
            elem_id="postprocess_multicrop_maxdim",
            low=64,
            high=2048,
            step=8,
        ),
        Field(
            name="minarea",
            label="Area lower bound",
            default=64 * 64,
            elem_id="postprocess_multicrop_minarea",
            low=64 * 64,
            high=2048 * 2048,
            step=1,
        ),
        Field(
            name="maxarea",
            label="Area upper bound",
            default=640 * 640,
            elem_id="postprocess_multicrop_maxarea",
            low=64 * 64,
            high=2048 * 2048,
            step=1,
        ),
        Field(
            name="objective",
            label="Resizing objective",
            default=AREA,
            elem_id="postprocess_multicrop_objective",
            choices=(AREA, ERROR),
        ),
        Field(
            name="threshold",
            label="Error threshold",
            default=0.1,
            elem_id="postprocess_multicrop_threshold",
            low=0.0,
            high=1.0,
            step=0.01,
        ),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if not args["enable"]:
            return
        size = best_size(pp.image.size, **{key: value for key, value in args.items() if key != "enable"})
        if size is None:
            pp.info["Auto-sized crop"] = "no size fits"
            return
        pp.image = _cropped(pp.image, *size)


def best_size(
    size_px: tuple[int, int], *, mindim: int, maxdim: int, minarea: int, maxarea: int, objective: str, threshold: float
) -> tuple[int, int] | None:
    """Width and height; None where no size is within the bounds. The error is the share of the image that is lost."""
    best: tuple[tuple[float, float], tuple[int, int]] | None = None
    sides = range(-(-mindim // STEP_PX) * STEP_PX, maxdim + 1, STEP_PX)
    for width in sides:
        for height in sides:
            ratio = size_px[0] / size_px[1] / (width / height)
            error, area = 1 - min(ratio, 1 / ratio), width * height
            if not (minarea <= area <= maxarea and error <= threshold):
                continue
            rank = (float(area), -error) if objective == AREA else (-error, float(area))
            if best is None or rank > best[0]:
                best = rank, (width, height)
    return best[1] if best else None


def _cropped(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle of the image, as much of it as the shape allows."""
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    box = (left, top, left + width * scale, top + height * scale)
    return image.resize((width, height), Image.Resampling.LANCZOS, box=box)
