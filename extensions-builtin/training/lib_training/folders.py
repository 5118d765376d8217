"""Folders of images with captions: what is in them, in any encoding, and what is wrong with them, in words.

Names follow kohya's trainer: a subfolder `10_cat` repeats its images 10 times, and where an image has no caption file
its words are the caption.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lib_training.config import DataConfig, FolderConfig
from lib_training.failures import TrainingError
from lib_training.presets import SUFFIXES
from modules.errors import first_line
from modules.images.reading import in_8_bits
from modules.system.atomic_files import output_error, write_atomic
from modules.system.decoding import decode_text
from modules.system.file_names import given_path
from modules.system.texts import page_text

CAPTION_SUFFIXES = (".txt", ".caption")
MASK_END = ".mask.png"
REPEATS = re.compile(r"^(\d+)_(.*)$")
NAMED = 5
MIN_IMAGES = 5
ALIKE_SIDE = 8


@dataclass(frozen=True)
class Sample:
    """One image. `captions` are its wordings; `repeats` and `weight` as its folder says."""

    path: Path
    captions: tuple[str, ...]
    size_px: tuple[int, int]
    repeats: int = 1
    weight: float = 1.0
    mask: Path | None = None
    is_regularization: bool = False


@dataclass(frozen=True)
class FolderReport:
    """Findings in the folders: the images, the sentences about what is wrong, and the tags with their
    counts."""

    samples: tuple[Sample, ...]
    problems: tuple[str, ...]
    tags: tuple[tuple[str, int], ...] = field(default=())


def read_folders(data: DataConfig, resolution: int) -> FolderReport:
    """All images that can be used. Broken ones are named and left out.

    Raises `TrainingError` where a folder is missing or nothing is left.
    """
    if not data.folders:
        raise TrainingError("No folder of images is given. Name one in data.folders.")
    samples: list[Sample] = []
    problems: list[str] = []
    hashes: dict[str, str] = {}
    looks: dict[bytes, str] = {}
    broken, doubles, alike, small = [], [], [], []
    for folder in data.folders:
        place = given_path(folder.path)
        if not place.is_dir():
            raise TrainingError(f"{folder.path or 'data.folders'} is no folder. Name one with images and captions.")
        for path, repeats, words in _images(place):
            try:
                size, look = _look(path)
            except (OSError, ValueError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
                broken.append(f"{path.name} ({_reason(error)})")
                continue
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest in hashes:
                doubles.append(f"{path.name} = {hashes[digest]}")
            elif look in looks:
                alike.append(f"{path.name} and {looks[look]}")
            hashes.setdefault(digest, path.name)
            looks.setdefault(look, path.name)
            if size[0] * size[1] < (0.75 * resolution) ** 2:
                small.append(f"{path.name} ({size[0]} x {size[1]})")
            captions = read_captions(path) or ((folder.caption or words,) if folder.caption or words else ())
            mask = path.with_name(path.stem + MASK_END)
            samples.append(
                Sample(
                    path,
                    captions,
                    size,
                    folder.repeats or repeats,
                    folder.weight,
                    mask if data.masks and mask.is_file() else None,
                    folder.regularization,
                )
            )
    if broken:
        problems.append(page_text(f"Unreadable and left out ({len(broken)}): {_some(broken)}."))
    if not any(not sample.is_regularization for sample in samples):
        where = ", ".join(folder.path for folder in data.folders)
        found = f" {problems[-1]}" if broken else ""
        raise TrainingError(f"{where}: there are no images to learn from (looked for {', '.join(SUFFIXES)}).{found}")
    without = [sample.path.name for sample in samples if not sample.captions]
    if without:
        problems.append(
            page_text(
                f"Without a caption ({len(without)}): {_some(without)}. "
                "What is not said in words becomes part of the adapter."
            )
        )
    if doubles:
        problems.append(page_text(f"Duplicates ({len(doubles)}): {_some(doubles)}. Delete one of each."))
    if alike:
        problems.append(page_text(f"Images that look alike ({len(alike)}): {_some(alike)}. They count double."))
    if small:
        problems.append(
            page_text(
                f"Much smaller than {resolution} px and will be enlarged ({len(small)}): {_some(small)}. "
                "Adapters learn the blur."
            )
        )
    trained = [sample for sample in samples if not sample.is_regularization]
    if len(trained) < MIN_IMAGES:
        problems.append(page_text(f"Few images ({len(trained)}): expect copies of them."))
    if data.masks and not any(sample.mask for sample in samples):
        problems.append(page_text(f"data.masks is on, and no image has a mask. One is called NAME{MASK_END}."))
    return FolderReport(tuple(samples), tuple(problems), tuple(tag_counts(samples)))


def tag_counts(samples: Sequence[Sample]) -> list[tuple[str, int]]:
    """How many images have a tag (what is between commas), the most frequent first."""
    counter: Counter[str] = Counter()
    for sample in samples:
        counter.update({tag.strip() for caption in sample.captions for tag in caption.split(",") if tag.strip()})
    return counter.most_common()


def read_captions(image: Path) -> tuple[str, ...]:
    """The wordings in the text file of an image's name, one per line; none without such a file."""
    for suffix in CAPTION_SUFFIXES:
        path = image.with_suffix(suffix)
        if path.is_file():
            lines = decode_text(path.read_bytes()).splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    return ()


def write_captions(image: Path, captions: Sequence[str]) -> None:
    """Replace the text file of an image's name; UTF-8. Raises `OutputError`."""
    path = image.with_suffix(CAPTION_SUFFIXES[0])
    try:
        write_atomic(path, ("\n".join(captions) + "\n").encode())
    except OSError as error:
        raise output_error(path.name, path.parent, error) from error


def open_image(path: Path) -> Image.Image:
    """An RGB image, upright, transparency on white. Raises `TrainingError` for a file that cannot be read any more."""
    try:
        with Image.open(path) as opened:
            upright = in_8_bits(ImageOps.exif_transpose(opened)).convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise TrainingError(
            f"{path.name} can no longer be read ({_reason(error)}). Take it out of the folder."
        ) from error
    return Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")


def _images(place: Path) -> Iterator[tuple[Path, int, str]]:
    """Every image, its repeats, and the words of its folder's name."""
    yield from ((path, *_repeats_of(place)) for path in _in(place))
    for inner in sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")):
        yield from ((path, *_repeats_of(inner)) for path in _in(inner))


def _in(place: Path) -> list[Path]:
    found = [path for path in place.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    return sorted(path for path in found if not path.name.endswith(MASK_END))


def _repeats_of(place: Path) -> tuple[int, str]:
    found = REPEATS.match(place.name)
    return (max(int(found[1]), 1), found[2].strip()) if found else (1, "")


def _look(path: Path) -> tuple[tuple[int, int], bytes]:
    """Size, upright, and how it looks from far: whether it gets brighter to the right, in 8 x 8 places. Reads all of
    the file, so that one that is cut off is found."""
    with Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened)
        upright.load()
        upright = in_8_bits(upright)
        grey = np.asarray(upright.convert("L").resize((ALIKE_SIDE + 1, ALIKE_SIDE), Image.Resampling.BOX), np.int16)
        color = np.asarray(upright.convert("RGB").resize((4, 4), Image.Resampling.BOX), np.uint8) // 16
        return upright.size, np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes() + color.tobytes()


def _reason(error: BaseException) -> str:
    return "no image" if isinstance(error, UnidentifiedImageError) else first_line(error)[:80]


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:NAMED])
    return listed if len(names) <= NAMED else f"{listed} ... (+{len(names) - NAMED})"


def folder_config(path: str) -> DataConfig:
    """The options that look at one folder."""
    return DataConfig(folders=[FolderConfig(path=path)])
