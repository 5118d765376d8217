"""Captions of images: a sentence (clip) or tags (deepbooru), by the user's models, or where there is none by
what extensions offer; or a prompt by the language model of the chosen checkpoint (describe).

Torch, transformers and onnxruntime are imported on first use.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from modules.errors import CheckpointError, UnknownNameError
from modules.flags.flags import Flags
from modules.settings.values import Settings
from modules.system.devices import choose_device
from modules.system.model_folders import FilesBelow
from modules.system.paths import Paths

if TYPE_CHECKING:
    import torch

    from modules.captioning.blip import BlipCaptioner
    from modules.captioning.clip_ranks import ClipRanks
    from modules.captioning.deepdanbooru import DeepDanbooru
    from modules.captioning.tagger import Tagger

CLIP, DEEPBOORU, DESCRIBE = "clip", "deepbooru", "describe"
NAMES = {CLIP: CLIP, DEEPBOORU: DEEPBOORU, "deepdanbooru": DEEPBOORU, DESCRIBE: DESCRIBE}
"""What the API calls them."""
Progress = Callable[[int, int], None]
"""(tokens so far, at most so many)."""
Describe = Callable[[Image.Image, Settings, Progress], str]
TAGGER_FOLDERS = ("deepbooru", "torch_deepdanbooru", "taggers")
DESCRIBERS: dict[str, Callable[[Image.Image], str | None]] = {}
"""What describes an image where there is no model, by the name of the way; extensions add theirs. None: it cannot."""
_ARTICLE = re.compile(r"^(?:an?|the) ")


class Captioners:
    """Holds the models that were used last, where the settings want that. `models_dir` holds the folders BLIP, CLIP,
    interrogate and deepbooru; `find_device` maps a program part ("interrogate") to its device. `describe` has the
    engine describe an image."""

    def __init__(
        self,
        models_dir: Path,
        find_device: Callable[[str], torch.device],
        clip_dir: Path | None = None,
        describe: Describe | None = None,
    ) -> None:
        self._models_dir = models_dir
        self._clip_dir = clip_dir or models_dir / "CLIP"
        self._find_device = find_device
        self._describe = describe
        self._lock = threading.Lock()
        self._blip: BlipCaptioner | None = None
        self._ranks: ClipRanks | None = None
        self._tagger: Tagger | DeepDanbooru | None = None
        self._tagger_of: Path | None = None

    @classmethod
    def of(cls, flags: Flags, paths: Paths, describe: Describe | None = None) -> Captioners:
        """Use the models that the user has."""
        clip_dir = Path(flags.clip_models_path).expanduser().absolute() if flags.clip_models_path else None
        return cls(paths.models_dir, lambda part: choose_device(flags, part), clip_dir, describe)

    def caption(
        self, image: Image.Image, name: str, settings: Settings, progress: Progress = lambda done, most: None
    ) -> str:
        """`name`: clip, deepbooru, deepdanbooru or describe, which is asked to stop by what `progress` raises. Raises
        `UnknownNameError`, and `CheckpointError` for models that cannot be used, or that says what to put where if
        there is none."""
        captioner = NAMES.get(name.lower())
        if captioner is None:
            raise UnknownNameError.of("interrogate model", name, NAMES)
        if captioner == DESCRIBE and self._describe is not None:  # without the lock: it waits for the engine's
            return self._describe(image, settings, progress)
        with self._lock:
            try:
                return self._sentence(image, settings) if captioner == CLIP else self._tags(image, settings)
            finally:
                if not settings.interrogate.interrogate_keep_models_in_memory:
                    self._blip = self._ranks = self._tagger = None

    def release(self) -> None:
        """Let go of the models."""
        with self._lock:
            self._blip = self._ranks = self._tagger = None

    def _sentence(self, image: Image.Image, settings: Settings) -> str:
        folder = model_folder(self._models_dir / "BLIP") or file_in(self._models_dir / "BLIP", (".pth",))
        if folder is None:
            return self._seen(image) or _refuse(
                f"There is no captioning model: put a folder of BLIP in the layout of transformers (config.json, "
                f"model.safetensors, tokenizer.json), or BLIP's own .pth with vocab.txt of bert-base-uncased, into "
                f"{self._models_dir / 'BLIP'}. Nothing is downloaded. Without one only images like those of the "
                "bundled model are described."
            )
        from modules.captioning.blip import BlipCaptioner
        from modules.captioning.clip_ranks import ClipRanks

        device = self._find_device("interrogate")
        if self._blip is None or self._blip.folder != folder:
            self._blip = BlipCaptioner(folder, device)
        options = settings.interrogate
        parts = [
            self._blip.caption(
                image,
                beams=options.interrogate_clip_num_beams,
                min_tokens=options.interrogate_clip_min_length,
                max_tokens=max(options.interrogate_clip_max_length, options.interrogate_clip_min_length),
            )
        ]
        clip, lists = model_folder(self._clip_dir), self._models_dir / "interrogate"
        if clip is not None and lists.is_dir():
            if self._ranks is None or self._ranks.folder != clip:
                self._ranks = ClipRanks(clip, device)
            limit = options.interrogate_clip_dict_limit
            for text, score in self._ranks.best(image, lists, options.interrogate_clip_skip_categories, limit):
                parts.append(f"({text}:{score / 100:.3f})" if options.interrogate_return_ranks else text)
        return ", ".join(parts)

    def _tags(self, image: Image.Image, settings: Settings) -> str:
        from modules.captioning.tagger import Tagger, written

        places = [self._models_dir / name for name in TAGGER_FOLDERS]
        found = next((one for place in places if (one := tagger_folder(place))), None)
        found = found or next((one for place in places if (one := file_in(place, (".pt",)))), None)
        if found is None:
            seen = self._seen(image)
            if seen is not None:
                return ", ".join(_ARTICLE.sub("", part) for part in re.split(r" on | with | and |, ", seen))
            others = next((one for place in places if (one := file_in(place, (".safetensors", ".h5")))), None)
            refused = (
                f" {others.name} holds a tagger's weights, of which only the ONNX form can be used." if others else ""
            )
            return _refuse(
                "There is no tagging model: put a folder with model.onnx and selected_tags.csv (such as a WD14 "
                f"tagger), or DeepDanbooru's model-resnet_custom_v3.pt, into {places[0]}. Nothing is downloaded."
                f"{refused}"
            )
        if self._tagger is None or self._tagger_of != found:
            self._tagger = None
            if found.is_file():
                from modules.captioning.deepdanbooru import DeepDanbooru

                self._tagger = DeepDanbooru(found, self._find_device("interrogate"))
            else:
                self._tagger = Tagger(found)
            self._tagger_of = found
        return written(self._tagger.scores(image), settings.interrogate)

    @staticmethod
    def _seen(image: Image.Image) -> str | None:
        return next((text for way in DESCRIBERS.values() if (text := way(image))), None)


def model_folder(place: Path) -> Path | None:
    """The folder of a model in transformers' layout: `place` itself, or the first by name in it."""
    if (place / "config.json").is_file():
        return place
    found = sorted(path.parent for path in place.glob("*/config.json")) if place.is_dir() else []
    return found[0] if found else None


def file_in(place: Path, suffixes: tuple[str, ...]) -> Path | None:
    """The first file by name with one of these endings, in a folder or in those in it."""
    (found,) = FilesBelow().of((place,), suffixes)
    return min(found[1], default=None)


def tagger_folder(place: Path) -> Path | None:
    """The folder of a tagger: `place` itself, or the first by name in it."""
    if not place.is_dir():
        return None
    folders = [place, *sorted(path for path in place.iterdir() if path.is_dir())]
    return next((path for path in folders if (path / "model.onnx").is_file()), None)


def _refuse(text: str) -> str:
    raise CheckpointError(text)
