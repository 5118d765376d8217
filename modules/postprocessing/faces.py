"""GFPGAN and CodeFormer: faces restored, and blended with the image as far as they should be seen."""

from __future__ import annotations

from typing import Any

from PIL import Image

from modules.faces.restorer_types import CODEFORMER, GFPGAN
from modules.faces.restorers import FaceRestorers
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing


def _enable(name: str) -> Field:
    return Field(name="enable", label=name, default=False, elem_id=f"extras_{name.lower()}", is_switch=True)


def _share(name: str, label: str, infotext: str, default: float, hint: str = "") -> Field:
    """Return a field from 0 to 1."""
    return Field(
        name=name,
        infotext=infotext,
        label=label,
        default=default,
        elem_id=f"extras_{name}",
        low=0.0,
        high=1.0,
        step=0.001,
        hint=hint,
    )


class GfpganOperation(ScriptPostprocessing):
    """GFPGAN with its visibility."""

    name = GFPGAN.name
    order = 2000
    fields = (
        _enable(GFPGAN.name),
        _share("gfpgan_visibility", "Visibility", "GFPGAN visibility", 1.0),
    )

    def __init__(self, faces: FaceRestorers) -> None:
        self._faces = faces

    def process_firstpass(self, pp: PostprocessedImage, **args: Any) -> None:
        if args["enable"] and args["gfpgan_visibility"] > 0:
            self._faces.check(self.name)

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        visibility = args["gfpgan_visibility"]
        if args["enable"] and visibility > 0:
            pp.image = _restored(self._faces, pp, self.name, visibility)
            pp.info["GFPGAN visibility"] = round(visibility, 3)


class CodeFormerOperation(ScriptPostprocessing):
    """CodeFormer with its visibility and weight."""

    name = CODEFORMER.name
    order = 3000
    fields = (
        _enable(CODEFORMER.name),
        _share("codeformer_visibility", "Visibility", "CodeFormer visibility", 1.0),
        _share(
            "codeformer_weight", "Weight", "CodeFormer weight", 0.0, "0: the most restored; 1: the closest to the image"
        ),
    )

    def __init__(self, faces: FaceRestorers) -> None:
        self._faces = faces

    def process_firstpass(self, pp: PostprocessedImage, **args: Any) -> None:
        if args["enable"] and args["codeformer_visibility"] > 0:
            self._faces.check(self.name)

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        visibility, weight = args["codeformer_visibility"], args["codeformer_weight"]
        if args["enable"] and visibility > 0:
            pp.image = _restored(self._faces, pp, self.name, visibility, weight)
            pp.info["CodeFormer visibility"] = round(visibility, 3)
            pp.info["CodeFormer weight"] = round(weight, 3)


def _restored(
    faces: FaceRestorers, pp: PostprocessedImage, name: str, visibility: float, weight: float = 0.5
) -> Image.Image:
    def on_face(index: int, count: int) -> None:
        pp.on_progress(index / count, f"face {index + 1} of {count}")

    unload = pp.settings.face_restoration.face_restoration_unload
    image = pp.image.convert("RGB")
    found = faces.restore(image, name, weight, on_face, unload=unload)
    return found if visibility >= 1 else Image.blend(image, found, visibility)
