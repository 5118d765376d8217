"""Subcommands: known ones have a place, unknown ones a hint."""

import pytest

from modules.cli.commands import COMMANDS, require_command
from modules.errors import UnknownNameError


def test_commands_are_written_as_module_and_function() -> None:
    assert all(target.startswith(("modules.", "recipes.")) and target.count(":") == 1 for target in COMMANDS.values())


def test_unknown_command_names_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'txt2img'"):
        require_command("txt2imgs")
