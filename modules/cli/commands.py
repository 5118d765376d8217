"""The subcommands of `launch.py`: name -> "module:function", imported only when called.

A function takes the words after its name and returns the exit code: `main(argv: Sequence[str]) -> int`. Those in
`WITH_EXTENSIONS`, and those of extensions (`modules.flags.extension_commands`), also take what loads extensions of
another program, as `foreign`.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib import import_module

from modules.errors import InvalidValueError, UnknownNameError
from modules.flags.extension_commands import ROOT, ExtensionCommand, extension_commands
from modules.flags.flags import PATHS, add_arguments, flags_from
from modules.system.bounded import read_json_file
from modules.system.paths import resolve_paths

Command = Callable[..., int]

COMMANDS: dict[str, str] = {
    "txt2img": "modules.cli.txt2img:main",
    "img2img": "modules.cli.img2img:main",
    "plan": "modules.cli.plan:main",
    "lora": "recipes.loras.command:main",
    "user": "modules.cli.user:main",
    "texts": "modules.ui.list_texts:main",
    "offload-clean": "modules.cli.offload:main",
    "get": "modules.cli.get:main",
    "extensions": "compat.store.command:main",
    "doctor": "modules.setup.doctor:main",
    "update": "modules.setup.update:main",
}
WITH_EXTENSIONS = frozenset({"txt2img", "img2img", "plan", "texts"})
WITHOUT_SET_UP = frozenset({"doctor", "update"})
"""Those that need nothing installed: they run in the Python that was started, before any set-up."""


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, those of extensions last."""
    return (*COMMANDS, *(name for name in extension_commands() if name not in COMMANDS))


def require_command(name: str) -> str | ExtensionCommand:
    """Return the "module:function" of a command, or what an extension says of its own; an unknown name raises
    `UnknownNameError` naming the nearest one."""
    if name in COMMANDS:
        return COMMANDS[name]
    added = extension_commands()
    if name not in added:
        raise UnknownNameError.of("command", name, command_names())
    return added[name]


def takes_extensions(name: str) -> bool:
    """Return whether a command takes what loads extensions of another program."""
    return name in WITH_EXTENSIONS or name not in COMMANDS


def load_command(name: str, words: Sequence[str] = ()) -> Command:
    """Import a command's function. `words` name the folders whose settings may switch its extension off; then it
    raises `InvalidValueError`."""
    found = require_command(name)
    if isinstance(found, ExtensionCommand):
        if found.folder.name in _switched_off(words):
            raise InvalidValueError(
                f"The command {name} belongs to the extension {found.folder.name}, which is switched off. Switch it on "
                "in the tab Extensions (setting disabled_extensions)."
            )
        sys.path.append(str(found.folder))
        found = found.function
    module, _, function = found.partition(":")
    command: Command = getattr(import_module(module), function)
    return command


def _switched_off(words: Sequence[str]) -> Sequence[str]:
    """Return the names of extensions that the settings switch off. A file that cannot be read is reported later, by
    what reads all settings."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser, (PATHS,))
    file = resolve_paths(flags_from(parser.parse_known_args(words)[0]), ROOT).config_file
    try:
        return tuple(read_json_file(file)["disabled_extensions"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
