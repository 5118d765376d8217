"""Infotext: the text in an image that says how it was made, in the reference UI's format, written and read.

    a prompt, over any number of lines
    Negative prompt: what should not be there
    Steps: 20, Sampler: Euler, Seed: 1, Size: 512x512, Lora hashes: "a: 1234, b: 5678"

The last line holds the fields. What images of older versions mean by it is in `infotext_defaults.py`.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from modules.errors import InvalidValueError
from modules.images.infotext_defaults import add_defaults, convert_old_fields
from modules.system.bounded import read_json, read_json_at

InfotextValue: TypeAlias = str | int | bool
"""Values read from text are texts; only filled-in defaults may be numbers or booleans, as in the reference UI."""

NEGATIVE_MARK = "Negative prompt:"

FIELD_ORDER = (
    "Steps",
    "Sampler",
    "Schedule type",
    "CFG scale",
    "Distilled CFG Scale",
    "Image CFG scale",
    "Seed",
    "Face restoration",
    "Size",
    "Model hash",
    "Model",
    "FP8 weight",
    "Cache FP16 weight for LoRA",
    "FP8 format",
    "FP8 skip",
    "FP8 text encoder",
    "Compute dtype",
    "Compute mode",
    "VAE hash",
    "VAE",
    "Variation seed",
    "Variation seed strength",
    "Seed resize from",
    "Denoising strength",
    "Conditional mask weight",
    "Clip skip",
    "ENSD",
    "Token merging ratio",
    "Token merging ratio hr",
    "Init image hash",
    "RNG",
    "Tiling",
    # all other fields stand here, in the order in which they came up
    "Version",
    "User",
)
"""The order of the main fields in an image."""

_USUAL_KEYS = {
    key.lower(): key for key in (*FIELD_ORDER[: FIELD_ORDER.index("Model") + 1], "Denoising strength", "Clip skip")
}
"""The fields of a form by their names in lower case, as other programs write them otherwise: "CFG Scale"."""

MAX_TEXT_CHARS = 4_000_000
"""Of an infotext, and of all texts in an image together: reading them takes less than a second."""

_MAX_OBJECT_CHARS = 4096
_MIN_FIELDS = 3  # a last line with fewer is taken for a line of the prompt
_KEY_CHARACTER = re.compile(r"[\w \-/]")
_QUOTED = re.compile(r'\s*("(?:\\.|[^\\"])+")(?:,|$)')
_PLAIN = re.compile(r"\s*([^,]*)(?:,|$)")
_SIZE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")


def quote(value: object) -> str:
    """A field's value as it is written: as a JSON text if it holds a comma, a colon or a line break.

    Beyond the reference UI also what a reader would otherwise change: leading quotes, outer blanks, control
    characters.
    """
    if isinstance(value, Mapping):  # as the reference UI writes it
        return json.dumps(value, ensure_ascii=False)
    text = str(value)
    ambiguous = text.startswith('"') or text != text.strip() or any(character < " " for character in text)
    return json.dumps(text, ensure_ascii=False) if ambiguous or "," in text or ":" in text else text


def unquote(text: str) -> str:
    """The inverse of `quote`; text in quotes that is not valid JSON comes back unchanged."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        value = read_json(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def order_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields with the main ones in `FIELD_ORDER` and all others, in their own order, before "Version"."""
    tail = ("Version", "User")
    first = {key: fields[key] for key in FIELD_ORDER if key in fields and key not in tail}
    others = {key: value for key, value in fields.items() if key not in FIELD_ORDER}
    return first | others | {key: fields[key] for key in tail if key in fields}


def with_fields(text: str, fields: Mapping[str, object]) -> str:
    """An infotext with more fields in its last line, before the version."""
    added = ", ".join(f"{key}: {quote(value)}" for key, value in fields.items() if value is not None)
    head, mark, tail = text.rpartition(", Version: ")
    return f"{head}, {added}{mark}{tail}" if mark else f"{text}, {added}"


def format_infotext(prompt: str, negative_prompt: str, fields: Mapping[str, object]) -> str:
    """The infotext of one image, its fields in the order of the mapping.

    Fields that are None are left out; a field whose value equals its key is written as the key alone.
    """
    written = ", ".join(
        key if key == value else f"{key}: {quote(value)}" for key, value in fields.items() if value is not None
    )
    negative = f"\n{NEGATIVE_MARK} {negative_prompt}" if negative_prompt else ""
    return f"{prompt}{negative}\n{written}".strip()


def parse_infotext(
    text: str,
    *,
    skip_fields: Collection[str] = (),
    backward_compatible: bool = True,
    old_hires_sizes: bool = False,
) -> dict[str, InfotextValue]:
    """The fields of an infotext with "Prompt" and "Negative prompt", missing ones filled with their defaults.

    Sizes such as "512x768" under a key become key-1 and key-2. `skip_fields` are left out (setting
    `infotext_skip_pasting`); `backward_compatible` switches on what the version in the text needs (setting
    `auto_backcompat`); `old_hires_sizes` reads hires fix sizes the way of the setting
    `use_old_hires_fix_width_height`. Any text is accepted up to `MAX_TEXT_CHARS`; InvalidValueError beyond.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidValueError(
            f"The infotext has {len(text):,} characters; allowed are {MAX_TEXT_CHARS:,}. Shorten it."
        )
    prompt, negative_prompt, written = written_fields(text)
    fields: dict[str, InfotextValue] = {}
    for key, value in written.items():
        usual = _USUAL_KEYS.get(key.lower(), key)
        key = key if usual in written else usual
        size = _SIZE.fullmatch(value)
        if size:
            fields[f"{key}-1"], fields[f"{key}-2"] = size.groups()
        else:
            fields[key] = unquote(value)
    fields["Prompt"], fields["Negative prompt"] = prompt, negative_prompt
    convert_old_fields(fields, old_hires_sizes=old_hires_sizes)
    add_defaults(fields, backward_compatible=backward_compatible)
    return {key: value for key, value in fields.items() if key not in skip_fields}


def written_fields(text: str) -> tuple[str, str, dict[str, str]]:
    """Prompt, negative prompt, and the fields of an infotext as they are written: quoted, nothing filled in."""
    *lines, last = text.strip().split("\n")
    pairs = list(_pairs(last))
    if len(pairs) < _MIN_FIELDS:
        lines.append(last)
        pairs = []
    return *_split_prompts(lines), dict(pairs)


def _split_prompts(lines: list[str]) -> tuple[str, str]:
    """Prompt and negative prompt, which begins at the line with its mark and goes to the end."""
    prompt: list[str] = []
    negative: list[str] = []
    current = prompt
    for line in map(str.strip, lines):
        if line.startswith(NEGATIVE_MARK):
            current = negative
            line = line.removeprefix(NEGATIVE_MARK).strip()
        if line or current:  # empty lines before the first text are dropped
            current.append(line)
    return "\n".join(prompt), "\n".join(negative)


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """The "key: value" pairs of a line, left to right; what is no pair is passed over.

    A key is two or more letters, digits, underscores, blanks, minus signs or slashes before a colon, the first of
    them a letter, digit or underscore. Linear in the length of the line, also for text that is no infotext: a regular
    expression for the whole pair would look at each word of a long prompt as a possible key, to its end.
    """
    position = 0
    while (colon := line.find(":", position)) >= 0:
        key = _key_before(line, position, colon)
        if key is None:
            position = colon + 1
            continue
        match = _object_at(line, colon + 1) or _QUOTED.match(line, colon + 1) or _PLAIN.match(line, colon + 1)
        assert match is not None  # _PLAIN matches anywhere
        yield key, match.group(1)
        position = match.end()


def _object_at(line: str, start: int) -> re.Match[str] | None:
    """A JSON object as a field's value, which may hold commas; None for anything else."""
    begin = start + (line[start : start + 1] == " ")
    if line[begin : begin + 1] != "{":
        return None
    try:
        _, length = read_json_at(line[begin : begin + _MAX_OBJECT_CHARS])
    except ValueError:
        return None
    return re.compile(rf"\s*(.{{{length}}})(?:,|$)").match(line, start)


def _key_before(line: str, start: int, colon: int) -> str | None:
    begin = colon
    while begin > start and _KEY_CHARACTER.match(line, begin - 1):
        begin -= 1
    key = line[begin:colon].lstrip(" -/")
    return key if len(key) > 1 else None
