"""Subcommands that extensions add to `launch.py`: rows of their `commands.toml`, read without importing anything."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from modules.errors import InvalidValueError

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("extensions-builtin", "extensions")


@dataclass(frozen=True)
class ExtensionCommand:
    """A subcommand: its function as "module:function" in the extension's folder, which takes the words behind the
    name and `foreign`, as `modules.cli.commands` says; and a few words for the help."""

    folder: Path
    function: str
    help: str


def extension_commands(root: Path = ROOT) -> dict[str, ExtensionCommand]:
    """Return the subcommands of all extensions in the program's folders by name; the first of a name counts. Raises
    `InvalidValueError` for a file that cannot be read."""
    found: dict[str, ExtensionCommand] = {}
    for file in (file for folder in FOLDERS for file in sorted((root / folder).glob("*/commands.toml"))):
        try:
            for name, row in tomllib.loads(file.read_text(encoding="utf-8")).items():
                found.setdefault(name, ExtensionCommand(file.parent, str(row["function"]), str(row["help"])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidValueError(
                f"{file} cannot be read: {error}. It needs a table for each command, with the texts function and help."
            ) from error
    return found
