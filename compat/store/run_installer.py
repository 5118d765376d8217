"""Runs an extension's install.py, which finds the reference UI's names: `python -m compat.store.run_installer FILE`."""

import runpy
import sys

from compat.finder import install

if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
