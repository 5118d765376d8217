"""Segmentation: masks by clicks, boxes and words, from the page, over HTTP, and by `<segment:word>` in prompts."""

import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_segmentation.segmenter import Segmenter  # noqa: E402
from lib_segmentation.work import SEGMENT, WordDetectors, mask_of, segment, tags_of  # noqa: E402

from modules import scripts  # noqa: E402
from modules.errors import InvalidValueError  # noqa: E402
from modules.scripts import extra_networks, program_now, script_callbacks  # noqa: E402

PROGRAM = program_now()
SEGMENTER = Segmenter(PROGRAM)
"""Keeps the images that it saw last, for all who ask in this process."""


class Segmentation(scripts.Script):
    """Masks what `<segment:word>` in the prompt of img2img names."""

    takes_part_inside = False

    def title(self) -> str:
        return "Segmentation"

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def before_process(self, p: Any, *args: Any) -> None:
        """Add what the tags name to the mask. Raises `InvalidValueError` where there is no image, or nothing of it."""
        from PIL import ImageChops

        for asked in tags_of(p.prompt):
            if not hasattr(p, "init_images"):
                raise InvalidValueError(
                    "<segment:...> masks a part of an image: use it in img2img, or in the prompt of ADetailer."
                )
            image = p.init_images[0]
            mask, _ = mask_of(SEGMENTER, image, asked)
            before = p.image_mask
            p.image_mask = mask if before is None else ImageChops.lighter(before.convert("L").resize(image.size), mask)


class SegmentTag(extra_networks.ExtraNetwork):
    """Has the tag known; the script reads it before anything is computed."""

    def activate(self, job: Any, tags: Any) -> None:
        """Change nothing."""

    def deactivate(self, job: Any) -> None:
        """Change nothing."""


def add_routes(app: Any, services: Any) -> None:
    """Add the route to the API; only in a server, which has FastAPI."""
    from lib_segmentation.routes import segment_routes

    app.include_router(segment_routes(SEGMENTER, PROGRAM.compute))


script_callbacks.on_work(lambda values: segment(SEGMENTER, values), name=SEGMENT)
script_callbacks.on_detectors(lambda program: WordDetectors(Segmenter(program, SEGMENTER.seen)))
script_callbacks.on_api(add_routes)
extra_networks.register_extra_network(SegmentTag("segment"))
