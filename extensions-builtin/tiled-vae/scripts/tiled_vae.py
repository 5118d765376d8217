"""Tiled VAE: large images are encoded and decoded in tiles, which take less memory.

The program's own tiles are exact, with group norms over the whole image, so there are no seams to hide: the arguments
of the extension "Tiled VAE" for quicker estimates and for their colors are taken and have nothing to do.
"""

from __future__ import annotations

from typing import Any

from modules.scripts.fields import Field, FieldScript, switch

TITLE = "Tiled VAE"
LATENT_PX = 8
DECODER_BORDER, ENCODER_BORDER = 22, 64
"""What is larger than a tile by no more than this is not cut up: in cells of the latents, and in pixels."""


class TiledVae(FieldScript):
    """The script."""

    rows = (
        switch("tiled_vae"),
        Field(
            name="encoder", label="Encoder tile size", default=1536, elem_id="tiled_vae_encoder", low=16, high=4096,
            slider_low=256, step=16,
        ),
        Field(
            name="decoder", label="Decoder tile size", default=96, elem_id="tiled_vae_decoder", low=4, high=512,
            slider_low=16, step=4, hint="In cells of the latents, which are 8 pixels",
        ),
        Field(name="to_gpu", label="Move VAE to GPU", default=True, elem_id="tiled_vae_to_gpu"),
        Field(name="fast_decoder", label="Fast decoder", default=True, elem_id="tiled_vae_fast_decoder"),
        Field(name="fast_encoder", label="Fast encoder", default=True, elem_id="tiled_vae_fast_encoder"),
        Field(name="color_fix", label="Fast encoder color fix", default=False, elem_id="tiled_vae_color_fix"),
    )  # fmt: skip
    hidden = ("to_gpu", "fast_decoder", "fast_encoder", "color_fix")
    infotext_switch = "Tiled VAE"

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        request = p.to_request()
        sides = [*request.size_px]
        if request.hires is not None:
            hires = request.hires
            wanted = (hires.resize_width, hires.resize_height)
            sides += wanted if any(wanted) else [round(side * hires.scale) for side in sides]
        tiles = []
        if max(sides) // LATENT_PX > values["decoder"] + DECODER_BORDER:
            tiles.append(values["decoder"] * LATENT_PX)
        if getattr(p, "init_images", None) and max(sides) > values["encoder"] + ENCODER_BORDER:
            tiles.append(values["encoder"])
        if tiles:
            p.override_settings["vae_tile_size"] = max(min(tiles), 16 * LATENT_PX)
