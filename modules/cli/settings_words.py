"""`--set KEY=VALUE` and `--fp8 [FORMAT]`: settings for one run of a command, without changing what is stored."""

import argparse
from collections.abc import Iterator

from modules.errors import InvalidValueError, SettingsError
from modules.settings.definitions import SETTINGS
from modules.settings.sections.optimizations import OptimizationSettings
from modules.settings.setting import SettingType
from modules.settings.values import Settings

EXAMPLE = "vae_tile_size=512"
FP8_AS_SET = ""
"""`--fp8` without a format: the one in the settings."""


def add_settings_words(parser: argparse.ArgumentParser, *, fp8: bool = True) -> None:
    """Give a command both words, or the first only."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"another setting for this run, by its name in config.json, such as {EXAMPLE}; repeatable",
    )
    if fp8:
        formats = OptimizationSettings.fp8_format.setting.choices
        assert isinstance(formats, tuple)
        parser.add_argument(
            "--fp8",
            nargs="?",
            const=FP8_AS_SET,
            metavar="FORMAT",
            help=f"keep the weights in 8 bits: {', '.join(formats)} (default: the one in the settings)",
        )


def settings_of(arguments: argparse.Namespace, settings: Settings) -> Settings:
    """The settings with what the arguments change.

    Raises `InvalidValueError` for a word without a value, and `SettingsError` for a value that a setting does not take
    and for an unknown key, naming the nearest ones.
    """
    changes: dict[str, object] = {}
    if getattr(arguments, "fp8", None) is not None:
        changes["fp8_storage"] = "Enable"
        if arguments.fp8 != FP8_AS_SET:
            changes["fp8_format"] = arguments.fp8
    for key, text in _words(arguments.set):
        settings[key]  # an unknown key raises here, and names the nearest ones
        changes[key] = _value(key, text)
    return settings.with_changes(changes)


def named_checkpoint(arguments: argparse.Namespace) -> str | None:
    """The checkpoint that the command names itself, by `--checkpoint` or `--set sd_model_checkpoint=...`."""
    words = [text for key, text in _words(arguments.set) if key == "sd_model_checkpoint"]
    named: str | None = arguments.checkpoint
    return named or (words[-1] if words else None) or None


def _words(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, sign, text = word.partition("=")
        if not sign:
            raise InvalidValueError(f"--set {word}: write KEY=VALUE, for example {EXAMPLE}.")
        yield key.strip(), text


def _value(key: str, text: str) -> object:
    setting = SETTINGS.get(key)
    if setting.type is SettingType.LIST:
        return [item.strip() for item in text.split(",") if item.strip()]
    try:
        return setting.from_text(text)
    except ValueError as error:
        raise SettingsError(f"--set {key}: {error}.") from error
