"""The kinds of upscaler files, each with its folder, its settings for tiles and its word for --use-cpu. No torch."""

from dataclasses import dataclass

from modules.settings.values import Settings


@dataclass(frozen=True)
class Tiling:
    """Side and overlap of the squares an image is cut into, in pixels of the input; `size` 0: not cut."""

    size: int
    overlap: int


@dataclass(frozen=True)
class UpscalerType:
    """`folder` is the name below models/, `part` the program part whose device is used, `tile` a settings prefix."""

    folder: str
    part: str = "esrgan"
    tile: str = "ESRGAN"

    def tiling(self, settings: Settings) -> Tiling:
        """How the settings have images cut for this kind."""
        return Tiling(settings.whole(f"{self.tile}_tile"), settings.whole(f"{self.tile}_tile_overlap"))


KINDS = (
    UpscalerType("ESRGAN"),
    UpscalerType("RealESRGAN", part="realesrgan"),
    UpscalerType("BSRGAN", part="bsrgan"),
    UpscalerType("DAT", tile="DAT"),
    UpscalerType("HAT"),
    UpscalerType("ScuNET", part="scunet", tile="SCUNET"),
    UpscalerType("SwinIR", part="swinir", tile="SWIN"),
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
