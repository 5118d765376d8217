"""What an extension may ask the running program: which files and names there are, looked up when it asks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from modules.errors import InvalidValueError
from modules.faces.face import Face
from modules.processing.engine.adapters import Adapters
from modules.prompting.styles import StyleBook
from modules.scripts.loading import loading_now
from modules.settings.values import Settings

Names = Callable[[], list[str]]


def _none() -> list[str]:
    return []


@dataclass(frozen=True)
class Program:
    """The names that a user can choose from; empty for a library that was loaded without a program."""

    checkpoints: Names = _none  # titles
    checkpoint: Callable[[str], str] = str  # the title of a name, title or hash; raises `UnknownNameError`
    vaes: Names = _none  # as the setting sd_vae takes them: Automatic, None, file names
    upscalers: Names = _none  # for hires fix, latent modes included
    loras: Names = _none
    styles: Callable[[], StyleBook] = lambda: StyleBook(())
    adapters: Callable[[], Adapters] = Adapters  # what finds, reads and applies LoRA files and their like
    folders: Callable[[str], tuple[Path, ...]] = lambda kind: ()  # of a kind of models, as below models/: "Lora"
    caption: Callable[[Image.Image, str, Settings], str] = lambda image, kind, settings: ""
    """What an image shows, by "clip" (a sentence) or "deepbooru" (tags)."""
    find_faces: Callable[[Image.Image], list[Face]] = lambda image: []
    """The faces of an image, the largest first."""


def program_now() -> Program:
    """The program that loads the extension's file, to be kept for what the file registers. At the top level of the
    file; raises `InvalidValueError` at any other time."""
    return loading_now("program_now").program


def one_of(kind: str, text: str, names: list[str]) -> str:
    """The name that is meant, in its own case; raises `InvalidValueError` that lists what there is."""
    for name in names:
        if name.lower() == text.lower():
            return name
    raise InvalidValueError(f"{kind}: {text!r} is none of: {', '.join(names)}.")
