"""Tiled VAE: large images are encoded and decoded in tiles, which take less memory.

Images are those of the extension of this name (`modules.models.autoencoders.separate_tiles`). The setting *VAE tile
size* cuts without a difference to the whole image; the fast modes here need no main memory for whole feature maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from modules.scripts.fields import Field, FieldScript, switch
from modules.system.bounded import read_json

TITLE = "Tiled VAE"
LATENT_PX = 8
DECODER_BORDER, ENCODER_BORDER = 22, 64
"""What is larger than a tile by no more than this is not cut up: in cells of the latents, and in pixels."""
INFO = {
    "encoder": "Encoder tile size",
    "decoder": "Decoder tile size",
    "fast_encoder": "Fast encoder",
    "fast_decoder": "Fast decoder",
    "color_fix": "Color fix",
}
"""What an image records, in one field."""


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
            slider_low=16, step=4, hint="In latent cells of 8 pixels",
        ),
        Field(name="to_gpu", label="Move VAE to GPU", default=True, elem_id="tiled_vae_to_gpu"),
        Field(
            name="fast_decoder", label="Fast decoder", default=True, elem_id="tiled_vae_fast_decoder",
            hint="Estimates instead of whole feature maps in main memory; colors may shift slightly",
        ),
        Field(name="fast_encoder", label="Fast encoder", default=True, elem_id="tiled_vae_fast_encoder"),
        Field(name="color_fix", label="Fast encoder color fix", default=False, elem_id="tiled_vae_color_fix"),
    )  # fmt: skip
    hidden = ("to_gpu",)
    infotext_switch = TITLE

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Any:
        return partial(_pasted, INFO[row.name]) if row.name in INFO else None

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        from modules.models.autoencoders.separate_tiles import SeparateTiles  # PyTorch, which the page does without

        p.vae_tiles = SeparateTiles(
            decoder=values["decoder"],
            encoder=values["encoder"],
            estimates_decoder=values["fast_decoder"],
            estimates_encoder=values["fast_encoder"],
            color_fix=values["color_fix"],
        )
        if _is_cut(p, values):
            p.extra_generation_params[TITLE] = json.dumps({name: values[key] for key, name in INFO.items()})


def _is_cut(p: Any, values: Mapping[str, Any]) -> bool:
    """Whether any image of the job is larger than a tile."""
    request = p.to_request()
    sides = [*request.size_px]
    if request.hires is not None:
        wanted = (request.hires.resize_width, request.hires.resize_height)
        sides += wanted if any(wanted) else [round(side * request.hires.scale) for side in sides]
    if max(sides) // LATENT_PX > values["decoder"] + DECODER_BORDER:
        return True
    return bool(getattr(p, "init_images", None)) and max(sides) > values["encoder"] + ENCODER_BORDER


def _pasted(key: str, parsed: Mapping[str, Any]) -> Any:
    try:
        info = read_json(str(parsed.get(TITLE, "")))
    except ValueError:
        return None
    return info.get(key) if isinstance(info, dict) else None
