"""Running a module on images that a caller gives: for the route that does so, and where images are computed."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np

from lib_controlnet.files import preprocessor_file
from lib_controlnet.job import UNUSED, Job
from lib_controlnet.maps import made_with_mask, shown, with_mask
from lib_controlnet.pixels import Pixels, fitted_size
from lib_controlnet.preprocessors import INPAINTING, Module, module_of
from lib_controlnet.reading import UnitReader
from lib_controlnet.units import Given
from modules.errors import InvalidValueError
from modules.scripts import script_callbacks
from modules.scripts.program import Program

MAX_IMAGES = 32
DETECT = "ControlNet preprocessor"
"""The work of a module with weights, by the name that the queue shows."""


@dataclass(frozen=True)
class Detection:
    """A body of the route that runs a module: its images, the short side to work at, its numbers."""

    module: Module
    images: tuple[Given, ...]
    side: int
    a: float
    b: float

    @property
    def pixels(self) -> int:
        """How many the images or their maps have, the larger of both of each. Raises `InvalidValueError` for an image
        that is too narrow."""
        sizes = ((given.image.shape[:2], fitted_size(given.image, self.side)) for given in self.images)
        return sum(max(math.prod(own), math.prod(fitted)) for own, fitted in sizes)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Detection:
        """Raises `InvalidValueError` for what cannot be read, `UnknownNameError`."""
        module = module_of(str(body.get("controlnet_module") or "none"))
        given = body.get("controlnet_input_images") or []
        if not isinstance(given, list) or not given:
            raise InvalidValueError("controlnet_input_images is empty; give at least one image as base64.")
        if len(given) > MAX_IMAGES:
            raise InvalidValueError(
                f"controlnet_input_images has {len(given)} images; allowed are {MAX_IMAGES}. Send several calls."
            )
        read = UnitReader(body, "detect")
        first, second = module.numbers
        side = (module.resolution or UNUSED).read(read.number("controlnet_processor_res", 512))
        a = first.read(read.number("controlnet_threshold_a", -1))
        b = second.read(read.number("controlnet_threshold_b", -1))
        masks = body.get("controlnet_masks") or []
        counts = (len(given),) if module.name in INPAINTING else (0, len(given))
        if not isinstance(masks, list) or len(masks) not in counts:
            least = f"; {module.label} needs them" if 0 not in counts else ", or none"
            raise InvalidValueError(f"controlnet_masks takes one mask for each image{least}.")
        images = []
        for number, value in enumerate(given):
            one = UnitReader({"image": value, "mask": masks[number] if masks else None}, f"image {number}").images()
            if not one:
                raise InvalidValueError(f"controlnet_input_images: image {number} is empty; give it as base64.")
            images.append(one[0])
        return cls(module, tuple(images), int(side), a, b)

    def run(self, **more: Any) -> dict[str, Any]:
        """The reply of the route; `more` is what a `Job` has of the program. Raises as `Module.run`."""
        images = []
        poses: list[Any] = []
        for given in self.images:
            seed = int(np.random.default_rng().integers(2**32))
            job = Job(given.image, self.side, self.a, self.b, seed, poses=poses, **more)
            if given.mask is None:
                images.append(as_base64(self.module.run(job)))
            else:
                masked = replace(job, image=with_mask(self.module, given))
                images.append(as_base64(made_with_mask(self.module, masked)))
        return {"images": images, "info": "Success"} | ({"poses": poses} if poses else {})


def add_work(program: Program) -> None:
    """Have modules with weights run where images are computed. At the top level of the script's file."""
    find = partial(preprocessor_file, program)
    script_callbacks.on_work(lambda values: Detection.read(values).run(find=find, detect=program.detect), name=DETECT)


def as_base64(pixels: Pixels) -> str:
    """A PNG."""
    file = BytesIO()
    shown(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
