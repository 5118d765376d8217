"""Runs an extension's install.py, which finds the reference UI's names: `python -m compat.store.run_installer FILE`."""

import runpy
import sys
from pathlib import Path

from compat.finder import install
from modules.scripts.acting import Acting, acting
from modules.scripts.extension import Extension

if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    folder = Path(sys.argv[0]).parent
    with acting(Acting(f"{folder.name}/install.py", owner=Extension(folder.name, folder))):
        runpy.run_path(sys.argv[0], run_name="__main__")
