"""Mirrored copies of each image."""

from typing import Any

from PIL import Image

from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing

FLIPS = {
    "horizontal": Image.Transpose.FLIP_LEFT_RIGHT,
    "vertical": Image.Transpose.FLIP_TOP_BOTTOM,
    "both": Image.Transpose.ROTATE_180,
}


class FlippedCopies(ScriptPostprocessing):
    """Beside the image as it is."""

    name = "Create flipped copies"
    order = 4030
    fields = (
        Field(name="enable", label=name, default=False, elem_id="postprocess_flip", is_switch=True),
        *(
            Field(name=kind, label=kind.capitalize(), default=kind == "horizontal", elem_id=f"postprocess_flip_{kind}")
            for kind in FLIPS
        ),
    )

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if args["enable"]:
            flipped = [pp.image.transpose(how) for kind, how in FLIPS.items() if args[kind]]
            pp.extra_images += [pp.create_copy(image) for image in flipped]
