"""Remove background: the foreground of an image on nothing, in Extras and below the forms."""

import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from modules.errors import CheckpointError, UnknownNameError  # noqa: E402
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing  # noqa: E402

FOLDER = "background_removal"  # below models/
AUTOMATIC = "Automatic"
TRANSPARENT, WHITE, MASK = "Transparent", "White", "Mask"


class RemoveBackground(ScriptPostprocessing):
    """Background removal by a file in `models/background_removal`."""

    name = "Remove background"
    order = 3500  # behind what enlarges and restores, which knows no transparency

    def __init__(self) -> None:
        self.fields = (
            Field(name="enable", label=self.name, default=False, elem_id="extras_background", is_switch=True),
            Field(
                name="model",
                label="Model",
                default=AUTOMATIC,
                elem_id="extras_background_model",
                choices=lambda: [AUTOMATIC, *self._files()],
                infotext="Background removed by",
                hint="Automatic: the largest file",
            ),
            Field(
                name="background",
                label="Background",
                default=TRANSPARENT,
                elem_id="extras_background_output",
                choices=(TRANSPARENT, WHITE, MASK),
                infotext="New background",
            ),
            Field(
                name="clean_edges",
                label="Clean colors of edges",
                default=True,
                elem_id="extras_background_edges",
                infotext="Clean edges",
            ),
            Field(
                name="side",
                label="Working size",
                default=0,
                elem_id="extras_background_side",
                low=0,
                high=2048,
                step=32,
                hint="0: as the model was trained",
            ),
        )

    def checked(self, args: dict[str, Any]) -> dict[str, Any]:
        """Check also that the model is there."""
        found = super().checked(args)
        if found["enable"]:
            self._file(found["model"])
        found["side"] -= found["side"] % 32
        return found

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if not args["enable"]:
            return
        from lib_background.edges import decontaminated
        from lib_background.networks import build_network, foreground

        path = self._file(args["model"])
        pp.on_progress(0.0, path.stem)
        image = pp.image
        mask = self.program.compute_alone(path, build_network, lambda net: foreground(net, image, args["side"]))
        if image.mode == "RGBA":
            mask = ImageChops.multiply(mask, image.getchannel("A"))
        pp.on_progress(0.5, "edges")
        colors = decontaminated(image, mask) if args["clean_edges"] and args["background"] != MASK else image
        pp.image = _put_on(colors.convert("RGB"), mask, args["background"])
        pp.info["Background removed by"] = path.stem
        pp.info["New background"] = args["background"]
        pp.info["Clean edges"] = args["clean_edges"]

    def _files(self) -> dict[str, Path]:
        from modules.system.model_folders import files_below

        suffixes = (".safetensors", ".pth", ".pt", ".ckpt", ".bin")
        folders = () if self.program is None else self.program.folders(FOLDER)
        paths = [path for folder in reversed(folders) for path in sorted(files_below(folder), reverse=True)]
        found = {path.stem: path for path in paths if path.suffix.lower() in suffixes and path.is_file()}
        return dict(sorted(found.items()))

    def _file(self, name: str) -> Path:
        """The file of a name. Raises `UnknownNameError`, and `CheckpointError` that says where files belong."""
        files = self._files()
        if not files:
            raise CheckpointError(
                f"There is no model that removes backgrounds: put one (BiRefNet, RMBG, IS-Net or U-2-Net) into "
                f"models/{FOLDER}, or get one in the tab Get models."
            )
        if name == AUTOMATIC:
            return max(files.values(), key=lambda path: path.stat().st_size)
        if name not in files:
            raise UnknownNameError.of("background model", name, [AUTOMATIC, *files])
        return files[name]


def _put_on(colors: Image.Image, mask: Image.Image, background: str) -> Image.Image:
    if background == MASK:
        return mask.convert("RGB")
    if background == WHITE:
        white = Image.new("RGB", colors.size, "white")
        white.paste(colors, mask=mask)
        return white
    colors.putalpha(mask)
    return colors
