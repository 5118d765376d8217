"""Programs that write how an image was made as a line of text: KoboldCpp, Mochi Diffusion, Midjourney."""

import re
from dataclasses import dataclass
from html import unescape

from lib_foreign_infotexts.record import ForeignRecord

PROMPT, NEGATIVE = "prompt", "negative prompt"


@dataclass(frozen=True)
class LineForm:
    """A program, how its line begins, a part of every line, what is between fields, and the infotext's words for
    theirs."""

    program: str
    begins: str
    mark: str
    between: str
    words: dict[str, str]


FORMS = (
    LineForm(
        "KoboldCpp",
        "Prompt: ",
        "| Version: KoboldCpp",
        r"\s*\|\s*",
        {
            **{"Prompt": PROMPT, "NegativePrompt": NEGATIVE, "CFGScale": "CFG scale"},
            **{"Guidance": "Distilled CFG Scale", "Flow Shift": "Shift"},
        },
    ),
    LineForm(
        "Mochi Diffusion",
        "Include in Image: ",
        "Generator: ",
        r";\s+|\n",
        {
            **{"Include in Image": PROMPT, "Exclude from Image": NEGATIVE},
            **{"Guidance Scale": "CFG scale", "Scheduler": "Sampler"},
        },
    ),
)
LEFT_OUT = ("Version", "Metadata Version")
_XMP_TEXT = re.compile(r"<(exif:UserComment|dc:description|tiff:ImageDescription)>(.*?)</\1>", re.DOTALL)
_TAGS = re.compile(r"</?rdf:[^>]*>")
_JOB = re.compile(r"\s*Job ID: [0-9a-f-]{36}\s*$")
_OPTION = re.compile(r"\s--([a-z]{1,16})(?:\s+((?:(?!\s--).){0,300}))?", re.DOTALL)


def xmp_texts(xmp: str) -> list[str]:
    """Return the comments and descriptions in an XMP block. Read as text: a file's XML is not to be trusted."""
    return [unescape(_TAGS.sub("", text)).strip() for _, text in _XMP_TEXT.findall(xmp)]


def line_record(text: str) -> ForeignRecord | None:
    """Return the record of a line of one of the programs; None for other texts."""
    form = next((form for form in FORMS if form.begins in text[:99] and form.mark in text), None)
    if form is None:
        return _midjourney(text)
    parts = re.split(rf"(?:^|{form.between})([A-Z][A-Za-z ]{{1,30}}): ", text.strip())
    values = {str(key): str(value).strip() for key, value in zip(parts[1::2], parts[2::2], strict=False)}
    named = {form.words.get(key, key): value for key, value in values.items() if value and key not in LEFT_OUT}
    record = ForeignRecord(form.program, named.pop(PROMPT, ""), named.pop(NEGATIVE, ""))
    record.fields |= named
    if str(named.get("Clip skip", "1")).startswith("-"):
        del record.fields["Clip skip"]
    return record


def _midjourney(text: str) -> ForeignRecord | None:
    """Return the record of a prompt of Midjourney, which ends with its options and the number of its job."""
    bare = _JOB.sub("", text)
    options = dict(_OPTION.findall(f" {bare}"))
    if bare == text and not {"ar", "v"} <= set(options):
        return None
    record = ForeignRecord("Midjourney", _OPTION.split(f" {bare}")[0], options.pop("no", ""))
    record.fields |= {"Seed": options.pop("seed")} if options.get("seed") else {}
    record.take_rest({f"Midjourney {name}": value or "on" for name, value in options.items()}, ())
    return record
