"""`modules.interrogate` and `shared.interrogator`: what an image shows, in words."""

from __future__ import annotations

from typing import Any

from PIL import Image

from compat.facades.refusal import refusing
from compat.host import host_now


class InterrogateModels:
    """Writes captions by the models that the user has."""

    def __init__(self, content_dir: str = "") -> None:
        self.running_on_cpu = False

    def interrogate(self, pil_image: Image.Image) -> str:
        """One sentence."""
        return host_now().scripts.program.caption(pil_image.convert("RGB"), "clip", host_now().settings.current)

    def generate_caption(self, pil_image: Image.Image) -> str:
        """One sentence."""
        return self.interrogate(pil_image)

    def load(self) -> None:
        """Models are loaded when they are first used."""

    def send_blip_to_ram(self) -> None:
        """The program frees them by itself."""

    def send_clip_to_ram(self) -> None:
        """The program frees them by itself."""

    def unload(self) -> None:
        """The program frees them by itself."""

    def categories(self) -> list[Any]:
        """There are none."""
        return []


__getattr__ = refusing("interrogate", {})
