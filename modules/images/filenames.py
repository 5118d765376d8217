"""Names of saved images: patterns filled in, counters, folders."""

import re
from collections.abc import Iterable
from pathlib import PurePath

from modules.images.patterns import PATTERNS, Source
from modules.settings.values import Settings
from modules.system.file_names import sanitize_name

_BRACKETED = re.compile(r"\[([^\[\]]+)\]")
_ARGUMENTS = re.compile(r"<([^<>]*)>")
# Shorter numbers are no counters of ours, but a seed or a name the user gave; longer ones are dates.
_COUNTER = re.compile(r"([0-9]{5,9})(?![0-9A-Za-z])")
_COUNTER_AFTER_BASENAME = re.compile(r"([0-9]{4,9})(?![0-9A-Za-z])")
_CALL = re.compile(r"(\w+)((?:<[^<>]*>)*)")


def apply_pattern(pattern: str, source: Source) -> str:
    """`pattern` with its known words in square brackets filled in; unknown ones stay as they are."""
    text = ""
    position = 0
    for match in _BRACKETED.finditer(pattern):
        before = pattern[position : match.start()]
        position = match.end()
        call = _CALL.fullmatch(match.group(1))
        if call is None or call.group(1) not in PATTERNS:
            text += before + match.group(0)
            continue
        filled = PATTERNS.get(call.group(1))(source, tuple(_ARGUMENTS.findall(call.group(2))))
        if filled is not None:
            text += before + filled
    return text + pattern[position:]


def image_pattern(settings: Settings, *, in_subfolder: bool) -> str:
    """The pattern for names of images: the setting, or what is sensible where it is empty."""
    default = "[seed]" if in_subfolder else "[seed]-[prompt_spaces]"
    return settings.saving.samples_filename_pattern or default


def subfolder_of(settings: Settings, source: Source) -> PurePath:
    """The folder inside the output folder that the directory pattern asks for; slashes make several levels.

    It never leads out of the output folder: "..", drives and leading slashes are not followed.
    """
    pattern = settings.saving_folders.directories_filename_pattern or "[prompt_words]"
    levels = re.split(r"[/\\]", apply_pattern(pattern, source))
    return PurePath(*filter(None, map(sanitize_name, levels)))


def numbered_stem(number: int, decoration: str, basename: str = "") -> str:
    """ "00000-SEED", or "grid-0000-SEED" with a basename; `decoration` may be empty."""
    prefix = counter_prefix(number, basename)
    return sanitize_name(f"{prefix}-{decoration}" if decoration else prefix)


def counter_prefix(number: int, basename: str = "") -> str:
    """The part of a name that holds its number: five digits, or the basename and four."""
    return f"{basename}-{number:04}" if basename else f"{number:05}"


def next_number(names: Iterable[str], basename: str = "") -> int:
    """One more than the largest number among `names`; 0 if there is none."""
    numbers = (number_of(name, basename) for name in names)
    return max((number for number in numbers if number is not None), default=-1) + 1


def number_of(name: str, basename: str = "") -> int | None:
    """The counter in a name of `numbered_stem`; None if it has none."""
    prefix = f"{basename}-" if basename else ""
    if not name.startswith(prefix):
        return None
    digits = _COUNTER_AFTER_BASENAME.match(name, len(prefix)) if basename else _COUNTER.match(name)
    return int(digits.group(1)) if digits else None
