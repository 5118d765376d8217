"""Translations of the page: flat JSON files of "text of the page": "translation", ours and those of users.

A file `NAME.json` in the folder of localizations, or in `localizations/` of an extension, is the translation NAME;
several files of one name are taken together, later ones first. A text may hold `{0}` where the page puts something in.
`"rtl": true` in a file says that its language is written from right to left.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.bounded import read_json_file
from modules.system.paths import Paths
from modules.system.texts import page_text

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[1] / "localizations"
NONE = "None"
"""The name of no translation: the page in English."""
MAX_FILE_BYTES = 8_000_000
LANGUAGES = {
    "zh-CN": "简体中文",
    "zh-TW": "繁體中文",
    "ja": "日本語",
    "ko": "한국어",
    "de": "Deutsch",
    "fr": "Français",
    "es": "Español",
    "pt-BR": "Português (Brasil)",
    "ru": "Русский",
    "it": "Italiano",
}
"""The shipped languages, as they call themselves."""

_RIGHT_TO_LEFT = ("ar", "dv", "fa", "he", "ps", "ur", "yi")
_TRADITIONAL = ("zh-tw", "zh-hk", "zh-mo", "zh-hant")


@dataclass(frozen=True)
class Localization:
    """One translation, and what of its files could not be read."""

    name: str
    texts: Mapping[str, str]
    is_rtl: bool = False
    faults: tuple[str, ...] = ()


def localization_folders(paths: Paths) -> list[Path]:
    """Where translations lie: ours, those of extensions, the user's own."""
    extensions = [
        extension / "localizations"
        for folder in paths.extension_dirs
        if folder.is_dir()
        for extension in sorted(folder.iterdir())
    ]
    return [SHIPPED, *extensions, paths.localizations_dir]


def find_localizations(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of each translation by its name, ours first."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            found.setdefault(file.stem, []).append(file)
    return found


def read_localization(name: str, files: Sequence[Path]) -> Localization:
    """The translation of these files. A broken file is left out and named in `faults`; nothing is raised."""
    texts: dict[str, str] = {}
    faults: list[str] = []
    is_rtl = name.lower().replace("_", "-").split("-")[0] in _RIGHT_TO_LEFT
    for file in files:
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1_000_000} MB")
            read = read_json_file(file)
            if not isinstance(read, dict):
                raise ValueError("it is no JSON object of texts")
        except (OSError, ValueError) as error:
            fault = page_text(f"The translation {file.name} was left out: {error}. Correct the file in {file.parent}.")
            log.warning("%s", fault)
            faults.append(fault)
            continue
        is_rtl = bool(read.get("rtl", is_rtl))
        texts |= {key: value for key, value in read.items() if isinstance(value, str) and value}
    return Localization(name, texts, is_rtl, tuple(faults))


def preferred(languages: Iterable[str], names: Iterable[str]) -> str:
    """The translation that suits a browser's languages best ("de-AT", "en"), from those that are there."""
    known = {name.lower().replace("_", "-"): name for name in names}
    for language in languages:
        wanted = language.lower().replace("_", "-")
        if wanted.split("-")[0] == "en":
            return NONE
        if wanted.split("-")[0] == "zh":
            wanted = "zh-tw" if wanted.startswith(_TRADITIONAL) else "zh-cn"
        main = wanted.split("-")[0]
        for key in (wanted, main, *(name for name in known if name.split("-")[0] == main)):
            if key in known:
                return known[key]
    return NONE


def chosen(choice: str, setting: str, languages: Iterable[str], names: Iterable[str]) -> str:
    """Return what a page is shown in: as chosen in its header, else as the setting says, else as the browser
    prefers."""
    there = list(names)
    for name in (choice, setting if setting != NONE else ""):
        if name == NONE or name in there:
            return name
    return preferred(languages, there)
