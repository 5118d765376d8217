"""Facts of an image that can be searched for: its words, and its values by key, the keys of its infotext and some of
ours."""

import re
from dataclasses import dataclass

from modules.images.infotext import unquote, written_fields

ALIASES = {
    "cfg": "cfgscale",
    "scheduler": "scheduletype",
    "schedule": "scheduletype",
    "hash": "modelhash",
    "checkpoint": "model",
    "denoising": "denoisingstrength",
    "denoise": "denoisingstrength",
    "negative": "negativeprompt",
    "fp8": "fp8",
}
LORA = re.compile(r"<(?:lora|lyco):([^:>]+)", re.IGNORECASE)
FP8_WEIGHT, FP8_FORMAT = "FP8 weight", "FP8 format"
OFF = ("Disable", "False", "None", "")
MAX_VALUE_CHARS = 300
MAX_TEXT_CHARS = 100_000


@dataclass(frozen=True)
class Searchable:
    """The words of an image's prompts, and its values as (key, text)."""

    prompt: str
    negative_prompt: str
    values: frozenset[tuple[str, str]]


def key_of(name: str) -> str:
    """A key as it is compared: letters and digits, small; common short names stand for the long ones."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    return ALIASES.get(plain, plain)


def searchable(infotext: str, size_px: tuple[int, int], user: str = "", tags: tuple[str, ...] = ()) -> Searchable:
    """All of it, for an image of this size."""
    prompt, negative, fields = written_fields(infotext[:MAX_TEXT_CHARS]) if infotext else ("", "", {})
    values = {(key_of(key), unquote(text)) for key, text in fields.items()}
    values |= {("lora", name.strip()) for name in LORA.findall(prompt)}
    weight = unquote(fields.get(FP8_WEIGHT, ""))
    values.add(("fp8", "off" if weight in OFF else "on"))
    if weight not in OFF and FP8_FORMAT in fields:
        values.add(("fp8", unquote(fields[FP8_FORMAT])))
    width, height = size_px
    values |= {("width", str(width)), ("height", str(height)), ("size", f"{width}x{height}")}
    values |= {("user", user)} if user else set()
    values |= {("tag", tag) for tag in tags}
    kept = frozenset((key, text[:MAX_VALUE_CHARS]) for key, text in values if key and text)
    return Searchable(prompt, negative, kept)


def number_of(text: str) -> float | None:
    """A value as a number; None where it is none, or nothing finite."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None
