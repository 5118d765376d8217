"""Upscaling and what happens to a finished image."""

from modules.settings.group import SettingsGroup, choice, flag, whole
from modules.settings.setting import Section


class UpscalingSettings(SettingsGroup):
    """Tiles of the upscalers, and which one img2img uses."""

    section = Section(id="upscaling", title="Upscaling", category="Postprocessing")

    ESRGAN_tile = whole(
        "Tile size for ESRGAN upscalers",
        192,
        minimum=0,
        maximum=512,
        step=16,
        hint="0: no tiling, which needs the most memory.",
    )
    ESRGAN_tile_overlap = whole(
        "Tile overlap for ESRGAN upscalers", 8, minimum=0, maximum=48, step=1, hint="Low values may show seams."
    )
    DAT_tile = whole("Tile size for DAT upscalers", 192, minimum=0, maximum=512, step=16)
    DAT_tile_overlap = whole("Tile overlap for DAT upscalers", 8, minimum=0, maximum=48, step=1)
    SCUNET_tile = whole("Tile size for ScuNET upscalers", 256, minimum=0, maximum=512, step=16)
    SCUNET_tile_overlap = whole("Tile overlap for ScuNET upscalers", 8, minimum=0, maximum=64, step=1)
    SWIN_tile = whole("Tile size for SwinIR upscalers", 192, minimum=16, maximum=512, step=16)
    upscaler_for_img2img = choice(
        "Upscaler for img2img",
        None,
        "upscalers",
        optional=True,
        hint="Enlarges images to start from, where they are smaller than what is made. None: Lanczos.",
    )
    SWIN_tile_overlap = whole("Tile overlap for SwinIR upscalers", 8, minimum=0, maximum=48, step=1)


class FaceRestorationSettings(SettingsGroup):
    """Faces."""

    section = Section(id="face-restoration", title="Face restoration", category="Postprocessing")

    face_restoration = flag("Restore faces", False, infotext="Face restoration", hidden=True)
