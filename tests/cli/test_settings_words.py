"""`--set` and `--fp8` on their own."""

import argparse

import pytest

from modules.cli.settings_words import add_settings_words, settings_of
from modules.errors import InvalidValueError, SettingsError
from modules.settings.values import Settings, UnknownSettingError


def changed(*words: str, settings: Settings | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    add_settings_words(parser)
    return settings_of(parser.parse_args(words), settings or Settings())


def test_nothing_said_changes_nothing() -> None:
    assert changed() == Settings()


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("vae_tile_size=512", "vae_tile_size", 512),
        ("s_noise=1.05", "s_noise", 1.05),
        ("tiling=true", "tiling", True),
        ("tiling=False", "tiling", False),
        ("fp8_skip=^conv_in$; a=b", "fp8_skip", "^conv_in$; a=b"),
        ("sd_vae=12", "sd_vae", "12"),
        ("sd_vae=", "sd_vae", ""),
        ("quicksettings_list=sd_vae, fp8_storage", "quicksettings_list", ("sd_vae", "fp8_storage")),
    ],
)
def test_words_become_values_of_the_settings_kind(word: str, key: str, value: object) -> None:
    assert changed("--set", word)[key] == value


def test_fp8_takes_the_format_of_the_settings_or_its_own() -> None:
    current = Settings().changed(fp8_format="int8_row")
    assert changed("--fp8", settings=current).differences() == {"fp8_storage": "Enable", "fp8_format": "int8_row"}
    assert changed("--fp8", "fp8_e5m2", settings=current)["fp8_format"] == "fp8_e5m2"
    assert changed("--fp8", "--set", "fp8_storage=Enable for SDXL")["fp8_storage"] == "Enable for SDXL"


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidValueError, match="--set tiling: write KEY=VALUE"):
        changed("--set", "tiling")
    with pytest.raises(UnknownSettingError, match="did you mean fp8_storage"):
        changed("--set", "fp8_storag=Enable")
    with pytest.raises(SettingsError, match="--set s_noise: s_noise is 'x', but takes a number"):
        changed("--set", "s_noise=x")
    with pytest.raises(SettingsError, match="takes one of 'fp8_e4m3fn_row'"):
        changed("--fp8", "fp9")
