"""Cropping around what an image is about: faces, detail, edges."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing

GRID_PX = 64  # detail and edges are looked for in an image of this size
Point = tuple[float, float]
Floats = NDArray[np.float64]


def _weight(name: str, label: str, default: float) -> Field:
    return Field(
        name=f"{name}_weight",
        label=label,
        default=default,
        elem_id=f"postprocess_focal_crop_{name}_weight",
        low=0.0,
        high=1.0,
        step=0.05,
    )


class FocalCrop(ScriptPostprocessing):
    """The wanted size is that of Upscale."""

    name = "Auto focal point crop"
    order = 4010
    fields = (
        Field(name="enable", label=name, default=False, elem_id="postprocess_focal_crop", is_switch=True),
        _weight("face", "Focal point face weight", 0.9),
        _weight("entropy", "Focal point entropy weight", 0.15),
        _weight("edges", "Focal point edges weight", 0.5),
        Field(name="debug", label="Create debug image", default=False, elem_id="train_process_focal_crop_debug"),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        width, height = pp.shared.target_width, pp.shared.target_height
        if not args["enable"] or not width or not height:
            return
        points: list[tuple[Point, float]] = []
        if args["face_weight"] > 0 and self.program is not None:
            faces = self.program.find_faces(pp.image.convert("RGB"))
            points += [(_middle(face.box), args["face_weight"] / len(faces)) for face in faces]
        grey = np.asarray(pp.image.convert("L").resize((GRID_PX, GRID_PX), Image.Resampling.BOX), np.float64)
        for kind, looked in (("entropy", _detail), ("edges", _edges)):
            found = looked(grey)
            if args[f"{kind}_weight"] > 0 and found is not None:
                place = (found[0] / GRID_PX * pp.image.width, found[1] / GRID_PX * pp.image.height)
                points.append((place, args[f"{kind}_weight"]))
        focus = _mean(points) or (pp.image.width / 2, pp.image.height / 2)
        cropped = crop_around(pp.image, focus, width, height)
        if args["debug"]:
            shown = pp.image.convert("RGB")
            pen = ImageDraw.Draw(shown)
            for place, _ in points:
                _mark(pen, place, "yellow", shown.width)
            _mark(pen, focus, "red", shown.width)
            pp.extra_images.append(pp.create_copy(shown, nametags=["focal-crop-debug"], disable_processing=True))
        pp.image = cropped


def crop_around(image: Image.Image, focus: Point, width: int, height: int) -> Image.Image:
    """The largest part of the wanted shape whose middle is as near to `focus` as its borders allow, in that size."""
    scale = min(image.width / width, image.height / height)
    part = (width * scale, height * scale)
    left = min(max(focus[0] - part[0] / 2, 0), image.width - part[0])
    top = min(max(focus[1] - part[1] / 2, 0), image.height - part[1])
    box = (left, top, left + part[0], top + part[1])
    return image.resize((width, height), Image.Resampling.LANCZOS, box=box)


def _detail(grey: Floats) -> Point | None:
    """The middle of the eighth-sized window whose values have the highest entropy; None for a plain image."""
    side, best, found = GRID_PX // 4, 0.0, None
    for top in range(0, GRID_PX - side + 1, side // 2):
        for left in range(0, GRID_PX - side + 1, side // 2):
            counts = np.histogram(grey[top : top + side, left : left + side], 32, (0, 256))[0]
            shares = counts[counts > 0] / counts.sum()
            entropy = float(-(shares * np.log2(shares)).sum())
            if entropy > best + 1e-9:
                best, found = entropy, (left + side / 2, top + side / 2)
    return found


def _edges(grey: Floats) -> Point | None:
    """The centre of mass of the strongest edges; None for a plain image."""
    image = Image.fromarray(grey.astype(np.uint8)).filter(ImageFilter.FIND_EDGES)
    strength = np.asarray(image, np.float64)[1:-1, 1:-1]
    limit = max(float(np.quantile(strength, 0.95)), 16.0)
    rows, columns = np.nonzero(strength >= limit)
    return (float(columns.mean()) + 1.5, float(rows.mean()) + 1.5) if len(rows) else None


def _middle(box: tuple[float, float, float, float]) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _mean(points: list[tuple[Point, float]]) -> Point | None:
    total = sum(weight for _, weight in points)
    if total <= 0:
        return None
    x = sum(place[0] * weight for place, weight in points) / total
    y = sum(place[1] * weight for place, weight in points) / total
    return x, y


def _mark(pen: ImageDraw.ImageDraw, place: Point, color: str, width: int) -> None:
    radius = max(width * 0.02, 3)
    box = (place[0] - radius, place[1] - radius, place[0] + radius, place[1] + radius)
    pen.ellipse(box, outline=color, width=max(int(radius / 4), 1))
