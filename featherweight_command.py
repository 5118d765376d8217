"""The command `featherweight` of an installed package: `launch.py` of the package's folder, with settings, models and
the virtual environment in the user's home. Standard library only."""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

FOLDER = "featherweight"


def home_of(environ: MutableMapping[str, str]) -> Path:
    """The data folder: FEATHERWEIGHT_DATA, else `featherweight` in the user's home."""
    given = environ.get("FEATHERWEIGHT_DATA")
    return Path(given).expanduser().absolute() if given else Path.home() / FOLDER


def prepare_environ(environ: MutableMapping[str, str]) -> None:
    """Have this process and those that it becomes keep everything in the data folder, unless told otherwise."""
    home = home_of(environ)
    home.mkdir(parents=True, exist_ok=True)
    environ.setdefault("FEATHERWEIGHT_DATA", str(home))
    environ.setdefault("FEATHERWEIGHT_VENV", str(home / ".venv"))


def main() -> int:
    """What the installed command runs; returns the exit code of `launch.py`."""
    root = Path(__file__).resolve().parent
    prepare_environ(os.environ)
    sys.path.insert(0, str(root))  # the program's own imports begin at its folder
    from launch import main as launch

    return launch(sys.argv[1:])
