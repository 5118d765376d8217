"""An image much longer than the wanted size is cut into several that overlap."""

import math
from typing import Any

from PIL import Image

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing


class SplitOversized(ScriptPostprocessing):
    """The wanted size is that of Upscale."""

    name = "Split oversized images"
    order = 4000
    fields = (
        Field(name="enable", label=name, default=False, elem_id="postprocess_split", is_switch=True),
        Field(
            name="split_threshold",
            label="Threshold",
            default=0.5,
            elem_id="postprocess_split_size_threshold",
            low=0.0,
            high=1.0,
            step=0.05,
            hint="Split images that would keep less than this share when cropped",
        ),
        Field(
            name="overlap_ratio",
            label="Overlap ratio",
            default=0.2,
            elem_id="postprocess_overlap_ratio",
            low=0.0,
            high=0.9,
            step=0.05,
        ),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        width, height = pp.shared.target_width, pp.shared.target_height
        if not args["enable"] or not width or not height:
            return
        wanted, found = width / height, pp.image.width / pp.image.height
        share = min(wanted, found) / max(wanted, found)
        if share >= 1 or share > args["split_threshold"]:
            return
        first, *others = pieces(pp.image, width, height, args["overlap_ratio"])
        pp.image = first
        pp.extra_images += [pp.create_copy(other) for other in others]


def pieces(image: Image.Image, width: int, height: int, overlap: float) -> list[Image.Image]:
    """Windows of the wanted size along the longer side, evenly spread, which overlap by at least `overlap`."""
    scale = max(width / image.width, height / image.height)
    size = (max(round(image.width * scale), width), max(round(image.height * scale), height))
    resized = image.resize(size, Image.Resampling.LANCZOS)
    is_wide = size[0] * height > size[1] * width
    long, side = (size[0], width) if is_wide else (size[1], height)
    count = max(math.ceil((long - side * overlap) / (side * (1 - overlap))), 2)
    found = []
    for index in range(count):
        start = round((long - side) * index / (count - 1))
        left, top = (start, 0) if is_wide else (0, start)
        found.append(resized.crop((left, top, left + width, top + height)))
    return found
