"""Images that an earlier try of a job has finished: named by data, read from their files, never made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from modules.processing.request.result import GeneratedImage, ImageRole


@dataclass(frozen=True)
class MadeImage:
    """One of them. `key`: see `GeneratedImage`."""

    key: str
    path: Path
    infotext: str
    seed: int
    subseed: int
    role: ImageRole = ImageRole.SAMPLE

    def read(self) -> GeneratedImage | None:
        """The image from its file; None where the user has taken that away or changed it into no image."""
        try:
            with Image.open(self.path) as file:
                image = file.convert("RGBA" if file.mode in ("RGBA", "LA") else "RGB")
        except OSError:
            return None
        return GeneratedImage(image, self.infotext, self.seed, self.subseed, self.path, self.role, key=self.key)


Made = Mapping[str, MadeImage]
"""By key."""


def made_in(made: Made, prefix: str) -> Made:
    """Return the images whose keys begin with `prefix`, by the rest of the key."""
    return {key.removeprefix(prefix): image for key, image in made.items() if key.startswith(prefix)}


def sample_key(batch: int, index: int, suffix: str = "") -> str:
    """The key of the image `index` of a batch, within one run; `suffix` as in the name of its file."""
    return f"{batch}/{index}{suffix}"


GRID_KEY = "grid"
