"""What a LoRA learns from: images with captions, their latents and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from modules.models.loaded import LoadedModel
from modules.prompting.tokens import ClipTokenizer
from modules.training.options import TrainingError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LISTED = 3
TOKENS = 77  # of a caption, with start and end


@dataclass(frozen=True)
class CaptionedImage:
    """An RGB image and all its captions; training takes one of them at random each time."""

    image: Image.Image
    captions: tuple[str, ...]


@dataclass(frozen=True)
class LatentSet:
    """Scaled latents [n, C, h, w], float32 on the CPU, with the captions of each."""

    latents: Tensor
    captions: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.captions)

    def batch(self, size: int, rng: Random) -> tuple[Tensor, list[str]]:
        """`size` random latents [size, C, h, w], with one caption each."""
        picks = rng.choices(range(len(self)), k=size)
        return self.latents[picks], [rng.choice(self.captions[pick]) for pick in picks]


def read_images(folder: Path, side_px: int) -> list[CaptionedImage]:
    """Every image of `folder` with the captions in the .txt of its name, one per line.

    Images are cut to a square around the middle and reduced to `side_px`; transparency becomes white. Raises
    `TrainingError` for a folder without images, images without captions, and files that are no images.
    """
    if not folder.is_dir():
        raise TrainingError(f"{folder} is no folder. Name one with images and a .txt with the caption next to each.")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise TrainingError(f"{folder} holds no images (looked for {', '.join(SUFFIXES)}).")
    captions = [_captions(path.with_suffix(".txt")) for path in paths]
    without = [path.name for path, lines in zip(paths, captions, strict=True) if not lines]
    if without:
        raise TrainingError(
            f"{len(without)} of {len(paths)} images have no caption: {', '.join(without[:LISTED])}. Write what is in "
            f"an image into a text file of its name, for example {Path(without[0]).stem}.txt."
        )
    return [CaptionedImage(_read(path, side_px), lines) for path, lines in zip(paths, captions, strict=True)]


def write_images(folder: Path, images: Sequence[CaptionedImage]) -> None:
    """Write a folder as `read_images` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        image.image.save(folder / f"{number:05d}.png")
        (folder / f"{number:05d}.txt").write_text("\n".join(image.captions) + "\n", encoding="utf-8")


@torch.no_grad()
def encode_images(model: LoadedModel, images: Sequence[CaptionedImage], batch: int = 8) -> LatentSet:
    """The means of the images' latents, through the model's VAE; images must be of one size."""
    parts = []
    for start in range(0, len(images), batch):
        pixels = np.stack([np.asarray(image.image) for image in images[start : start + batch]])
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1
        parts.append(model.encode_moments(scaled)[0].float().cpu())
    return LatentSet(torch.cat(parts), tuple(image.captions for image in images))


def token_ids(tokenizer: ClipTokenizer, captions: Sequence[str]) -> Tensor:
    """Token ids [len(captions), 77], int64: start, words as far as they fit, end, padded with the end token."""
    rows = []
    for caption in captions:
        words = list(tokenizer.encode(caption))[: TOKENS - 2]
        rows.append([tokenizer.start_id, *words, *[tokenizer.end_id] * (TOKENS - 1 - len(words))])
    return torch.tensor(rows, dtype=torch.int64)


def _captions(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise TrainingError(f"{path.name} is not in UTF-8. Save it again in that encoding.") from error
    return tuple(line.strip() for line in lines if line.strip())


def _read(path: Path, side_px: int) -> Image.Image:
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened).convert("RGBA")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise TrainingError(f"{path.name} is no readable image ({error}). Take it out of the folder.") from error
    on_white = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")
    return ImageOps.fit(on_white, (side_px, side_px), Image.Resampling.LANCZOS)
