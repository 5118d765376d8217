"""The subcommands of `launch.py`: name -> "module:function", imported only when called.

A function takes the words after its name and returns the exit code: `main(argv: Sequence[str]) -> int`. Those in
`WITH_EXTENSIONS` also take what loads extensions of another program, as `foreign`.
"""

from collections.abc import Callable
from importlib import import_module

from modules.errors import UnknownNameError

Command = Callable[..., int]

COMMANDS: dict[str, str] = {
    "txt2img": "modules.cli.txt2img:main",
    "img2img": "modules.cli.img2img:main",
    "plan": "modules.cli.plan:main",
    "precision-report": "modules.cli.precision:report",
    "precision-compare": "modules.cli.comparison:main",
    "convert": "modules.cli.precision:convert",
    "lora": "recipes.loras.command:main",
    "merge": "modules.cli.merge:main",
    "user": "modules.cli.user:main",
    "texts": "modules.ui.list_texts:main",
    "train": "modules.cli.train:main",
    "offload-clean": "modules.cli.offload:main",
    "get": "modules.cli.get:main",
    "import": "modules.cli.import_folder:main",
    "doctor": "modules.setup.doctor:main",
    "update": "modules.setup.update:main",
}
WITH_EXTENSIONS = frozenset({"txt2img", "img2img", "plan", "convert", "merge", "texts", "train", "import"})
WITH_EXTENSIONS |= {"precision-report", "precision-compare"}
WITHOUT_SET_UP = frozenset({"doctor", "update"})
"""Those that need nothing installed: they run in the Python that was started, before any set-up."""


def require_command(name: str) -> str:
    """The "module:function" of a command; an unknown name raises `UnknownNameError` naming the nearest one."""
    if name not in COMMANDS:
        raise UnknownNameError.of("command", name, COMMANDS)
    return COMMANDS[name]


def load_command(name: str) -> Command:
    """Import a command's function."""
    module, _, function = require_command(name).partition(":")
    command: Command = getattr(import_module(module), function)
    return command
