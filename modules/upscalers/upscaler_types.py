"""The types of upscaler files, each with its folder, its settings for tiles and its word for --use-cpu. No torch."""

from dataclasses import dataclass

from modules.settings.group import SettingAttribute
from modules.settings.sections.postprocessing import UpscalingSettings
from modules.settings.values import Settings


@dataclass(frozen=True)
class Tiling:
    """Side and overlap of the squares an image is cut into, in pixels of the input; `size` 0: not cut."""

    size: int
    overlap: int


TileSettings = tuple[SettingAttribute[int], SettingAttribute[int]]
"""The settings of a tile's size and overlap."""
ESRGAN_TILES: TileSettings = (UpscalingSettings.ESRGAN_tile, UpscalingSettings.ESRGAN_tile_overlap)
DAT_TILES: TileSettings = (UpscalingSettings.DAT_tile, UpscalingSettings.DAT_tile_overlap)
SCUNET_TILES: TileSettings = (UpscalingSettings.SCUNET_tile, UpscalingSettings.SCUNET_tile_overlap)
SWIN_TILES: TileSettings = (UpscalingSettings.SWIN_tile, UpscalingSettings.SWIN_tile_overlap)


@dataclass(frozen=True)
class UpscalerType:
    """`folder` is the name below models/, `part` the program part whose device is used, `tiles` the settings."""

    folder: str
    part: str = "esrgan"
    tiles: TileSettings = ESRGAN_TILES

    def tiling(self, settings: Settings) -> Tiling:
        """How the settings have images cut for this type."""
        size, overlap = self.tiles
        return Tiling(size.of(settings), overlap.of(settings))


UPSCALER_TYPES = (
    UpscalerType("ESRGAN"),
    UpscalerType("RealESRGAN", part="realesrgan"),
    UpscalerType("BSRGAN", part="bsrgan"),
    UpscalerType("DAT", tiles=DAT_TILES),
    UpscalerType("HAT"),
    UpscalerType("ScuNET", part="scunet", tiles=SCUNET_TILES),
    UpscalerType("SwinIR", part="swinir", tiles=SWIN_TILES),
)

# What the reference UI calls well-known files, so that its infotexts find them here.
KNOWN_NAMES = {
    "RealESRGAN_x4plus": "R-ESRGAN 4x+",
    "RealESRGAN_x4plus_anime_6B": "R-ESRGAN 4x+ Anime6B",
    "RealESRGAN_x2plus": "R-ESRGAN 2x+",
    "realesr-general-x4v3": "R-ESRGAN General 4xV3",
    "realesr-general-wdn-x4v3": "R-ESRGAN General WDN 4xV3",
    "realesr-animevideov3": "R-ESRGAN AnimeVideo",
    "ESRGAN": "ESRGAN_4x",
    "DAT_x2": "DAT x2",
    "DAT_x3": "DAT x3",
    "DAT_x4": "DAT x4",
    "scunet_color_real_gan": "ScuNET GAN",
    "scunet_color_real_psnr": "ScuNET PSNR",
    "003_realSR_BSRGAN_DFOWMFC_s64w8_SwinIR-L_x4_GAN": "SwinIR 4x",
}
