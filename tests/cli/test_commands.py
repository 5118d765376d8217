"""Subcommands: known ones have a place, unknown ones a hint."""

import sys
from functools import partial
from pathlib import Path

import pytest

from modules.cli import commands
from modules.cli.commands import COMMANDS, command_names, load_command, require_command, takes_extensions
from modules.errors import InvalidValueError, UnknownNameError
from modules.flags.extension_commands import extension_commands


def test_commands_are_written_as_module_and_function() -> None:
    assert all(
        target.startswith(("modules.", "recipes.", "compat.")) and target.count(":") == 1
        for target in COMMANDS.values()
    )


def test_unknown_command_names_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'txt2img'"):
        require_command("txt2imgs")


def test_extensions_add_commands_by_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "extensions" / "toys"
    folder.mkdir(parents=True)
    table = '[toy]\nfunction = "lib_toys_of_a_test:main"\nhelp = "play"\n[txt2img]\nfunction = "a:b"\nhelp = ""\n'
    (folder / "commands.toml").write_text(table)
    (folder / "lib_toys_of_a_test.py").write_text("def main(argv, foreign=None):\n    return len(argv)\n")
    monkeypatch.setattr(commands, "extension_commands", partial(extension_commands, tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert command_names() == (*COMMANDS, "toy") and takes_extensions("toy")
    assert load_command("toy")(["a", "b"]) == 2
    (tmp_path / "config.json").write_text('{"disabled_extensions": ["toys"]}')
    with pytest.raises(InvalidValueError, match="The command toy belongs to the extension toys, which is switched off"):
        load_command("toy", ["a", f"--data-dir={tmp_path}"])
    assert require_command("txt2img") == COMMANDS["txt2img"], "the program's own stay"
    with pytest.raises(UnknownNameError, match="Did you mean 'toy'"):
        require_command("toys")
    (folder / "commands.toml").write_text('[toy]\nfunction = "a:b"\n')
    with pytest.raises(InvalidValueError, match=r"commands.toml cannot be read: 'help'.*texts function and help"):
        require_command("toy")


def test_training_is_a_command_of_its_extension() -> None:
    assert set(extension_commands()) >= {"train"}
    assert load_command("train").__module__ == "lib_training.command"
