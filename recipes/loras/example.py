"""An example: what is drawn, how it is trained, what its preview shows. A new one is a new entry in `EXAMPLES`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from lib_training.config import TrainingConfig
from lib_training.presets import preset_config
from modules.system.registry import Registry

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
SHIPPED = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
LORAS = ROOT / "models" / "Lora"


@dataclass(frozen=True)
class CaptionedImage:
    """An RGB image and all its captions; training takes one of them each time."""

    image: Image.Image
    captions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Example:
    """`draw` makes one image with its captions; the same random numbers give the same image. It is trained by a preset
    of the page, with `changes` to its sections."""

    draw: Callable[[Random], CaptionedImage]
    description: str
    activation: str  # what to write into the prompt
    images: int
    preset: str
    preview_prompt: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preview_seed: int = 1

    def config(self, folder: Path, name: str, checkpoint: Path = SHIPPED) -> TrainingConfig:
        """Of a training on the images that `write_images` put into `folder`."""
        changes = {**self.changes, "output": {"trigger": self.activation, **self.changes.get("output", {})}}
        return preset_config(self.preset, str(folder), name, str(checkpoint), self.images, changes=changes)


EXAMPLES: Registry[Example] = Registry("example")


def draw_images(example: Example, count: int | None = None) -> list[CaptionedImage]:
    """The example's training images, number i from seed i."""
    return [example.draw(Random(seed)) for seed in range(example.images if count is None else count)]


def write_images(folder: Path, images: Sequence[CaptionedImage]) -> None:
    """Write a folder as trainers read it: next to each image a .txt with its captions, one per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        image.image.save(folder / f"{number:05d}.png")
        (folder / f"{number:05d}.txt").write_text("\n".join(image.captions) + "\n", encoding="utf-8")
