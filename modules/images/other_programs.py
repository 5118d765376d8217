"""Infotexts from what other programs write into images: by readers that extensions register."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.registry import Registry


@dataclass(frozen=True)
class InfotextReader:
    """A way to read what other programs say of an image, as an infotext; each function returns None for what no program
    that it knows has written. `of_file` receives the texts of an image file by name, and the image's width and height
    in pixels; `of_text` a text that was pasted or lay in the infotext's place."""

    of_file: Callable[[Mapping[str, str], int, int], str | None]
    of_text: Callable[[str], str | None]


READERS: Registry[InfotextReader] = Registry("reader of infotexts")


def register_infotext_reader(name: str, reader: InfotextReader) -> None:
    """Have the program ask this reader too, from now on; one of the same name is replaced."""
    (READERS.replace if name in READERS else READERS.add)(name, reader)


def foreign_infotext(items: Mapping[str, str], width: int, height: int) -> str | None:
    """Return an infotext from the texts of an image file, of the first reader that knows them; None if none does."""
    found = (reader.of_file(items, width, height) for _, reader in READERS.items())
    return next((text for text in found if text is not None), None)


def infotext_of_text(text: str) -> str | None:
    """Return an infotext from a text of another program; None for any other text."""
    found = (reader.of_text(text) for _, reader in READERS.items())
    return next((infotext for infotext in found if infotext is not None), None)
