"""`modules.script_loading`: running a file as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

loaded_scripts: dict[str, ModuleType] = {}


def load_module(path: str) -> ModuleType:
    """The module of a file, which is run now."""
    spec = importlib.util.spec_from_file_location(Path(path).name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def preload_extensions(extensions_dir: str, parser: Any, extension_list: Any = None) -> None:
    """preload.py of extensions is asked before the command line is read."""
