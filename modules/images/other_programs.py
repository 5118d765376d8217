"""Infotexts from what programs write into images: the texts of a file that say most, and those of other programs by the
readers that extensions register."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from modules.images.infotext import quote, written_fields
from modules.system.bounded import read_json
from modules.system.registry import Registry

XMP = "XML:com.adobe.xmp"
"""The name of an image's XMP among its texts."""
MAIN = ("Steps", "Sampler", "CFG scale", "Seed", "Size", "Model")
"""Fields that say how an image was made: the record of a file with most of them is the one that counts."""
_SAYS_NOTHING = re.compile(r"|unknown|none|null|n/a|undefined|EMS-\d+-EMS|urn:air:.*", re.IGNORECASE)
_CUT_OFF = re.compile(r'\s*\{\s*"')
"""How a table of JSON begins; "{a|b}" of a prompt does not."""


@dataclass(frozen=True)
class InfotextReader:
    """A way to read what other programs say of an image, as infotexts; None for what no program that it knows has
    written. `of_file` receives the texts of an image file by name, and the image's width and height in pixels, and
    gives what each program says; `of_text` receives a text that was pasted or stood where an infotext does."""

    of_file: Callable[[Mapping[str, str], int, int], Iterable[str | None]]
    of_text: Callable[[str], str | None]


READERS: Registry[InfotextReader] = Registry("reader of infotexts")


def register_infotext_reader(name: str, reader: InfotextReader) -> None:
    """Have the program ask this reader too, from now on; one of the same name is replaced."""
    (READERS.replace if name in READERS else READERS.add)(name, reader)


def best_infotext(written: Iterable[str], items: Mapping[str, str], width: int, height: int) -> str | None:
    """Return the infotext that says most of how an image was made: of the texts that stand where infotexts do, the
    first of which counts where none says more, and of what programs have written elsewhere in the file. None where no
    text is one; JSON that no reader knows never is. What it leaves unsaid of the model, another record may say. Sizes
    are in pixels, of the image, for programs that do not record it.
    """
    given = [usual for text in written if (usual := usual_infotext(text))]
    found = [*given, *filter(None, _foreign_infotexts(items, width, height))]
    if not found:
        return None
    says = [_says(text) for text in found]
    best = max(range(len(found)), key=lambda at: (len(says[at]), -at))
    if "Model" in says[best]:
        return found[best]
    other = next((fields for fields in says if fields.get("Model")), {})
    return _with_model(found[best], other)


def _says(infotext: str) -> dict[str, str]:
    """The main fields and prompts of an infotext that say something."""
    prompt, _, fields = written_fields(infotext)
    usual = {key.lower(): value for key, value in fields.items()}
    found = {key: usual.get(key.lower(), "") for key in MAIN} | {"Prompt": prompt}
    found = {key: value for key, value in found.items() if not _SAYS_NOTHING.fullmatch(value.strip())}
    return {**found, **({"Model hash": usual["model hash"]} if "Model" in found and "model hash" in usual else {})}


def _with_model(infotext: str, other: Mapping[str, str]) -> str:
    """The infotext with another record's model, where it names none itself or one by a number."""
    head, _, line = infotext.rpartition("\n")
    if "Model" not in other or not written_fields(infotext)[2]:
        return infotext
    line = re.sub(r", Model(?: hash)?: [^,]*", "", line)
    added = "".join(f", {key}: {quote(other[key])}" for key in ("Model", "Model hash") if key in other)
    return f"{head}\n{line}{added}"


def _foreign_infotexts(items: Mapping[str, str], width: int, height: int) -> Iterator[str | None]:
    """Yield what known programs say in the texts of an image file."""
    for _, reader in READERS.items():
        yield from reader.of_file(items, width, height)


def usual_infotext(text: str) -> str:
    """Return a text in the words of an infotext where a known program wrote it, other texts unchanged, and nothing of
    JSON that no reader knows: it would become the prompt."""
    text = text.replace("\r\n", "\n").strip("\0")
    return infotext_of_text(text) or ("" if is_json(text) else text)


def is_json(text: str) -> bool:
    """Return whether a text is JSON, or begins as JSON that was cut off, and no prompt."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    return json_of(text) is not None or (
        _CUT_OFF.match(text) is not None and not set(written_fields(text)[2]) & {*MAIN}
    )


def infotext_of_text(text: str) -> str | None:
    """Return an infotext from a text of another program; None for any other text."""
    found = (reader.of_text(text) for _, reader in READERS.items())
    return next((infotext for infotext in found if infotext is not None), None)


def json_of(text: str) -> object:
    """Return what a text of JSON holds, None for any other text."""
    try:
        return read_json(text, constant=lambda name: None)  # ComfyUI writes NaN for nodes that always run
    except ValueError:
        return None
