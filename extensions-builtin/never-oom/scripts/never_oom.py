"""Never OOM: streamed weights and a VAE in tiles for a job, by the names of Forge's built-in.

Both are settings of the program; where those are finer already, they stay.
"""

from __future__ import annotations

from typing import Any

from modules.scripts.fields import Field, FieldScript

TITLE = "Never OOM Integrated"
TILE_PX = 512
FINE = ("Blocks", "Layers")


class NeverOom(FieldScript):
    """The script."""

    rows = (
        Field(name="unet", label="Stream the denoiser's weights", default=False, elem_id="never_oom_unet"),
        Field(name="vae", label="VAE always in tiles", default=False, elem_id="never_oom_vae"),
    )

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Any:
        """An image does not say so: it is the same with and without."""
        return lambda parsed: None

    def process(self, p: Any, *args: Any) -> None:
        unet, vae = self.checked(args)
        if unet and p.settings.optimizations.stream_weights not in FINE:
            p.override_settings["stream_weights"] = FINE[0]
        if vae and not p.settings.vae.vae_tile_size:
            p.override_settings["vae_tile_size"] = TILE_PX
