"""`modules.deepbooru`: tags of an image."""

from __future__ import annotations

import re

from PIL import Image

from compat.facades.refusal import refusing
from compat.host import host_now


class DeepDanbooru:
    """Writes tags by the model that the user has."""

    def start(self) -> None:
        """The model is loaded when it is first used."""

    def stop(self) -> None:
        """The program frees it by itself."""

    def load(self) -> None:
        """The model is loaded when it is first used."""

    def tag(self, pil_image: Image.Image) -> str:
        """Tags separated by commas."""
        return host_now().scripts.program.caption(pil_image.convert("RGB"), "deepbooru", host_now().settings.current)

    def tag_multi(self, pil_image: Image.Image, force_disable_ranks: bool = False) -> str:
        """Return the same."""
        return self.tag(pil_image)


re_special = re.compile(r"([\\()])")
model = DeepDanbooru()
__getattr__ = refusing("deepbooru", {})
