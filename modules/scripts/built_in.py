"""The extensions that ship with the program, for what makes images without assembling all of it."""

from pathlib import Path

from modules.scripts.library import BUILT_IN, ScriptLibrary
from modules.scripts.settings import add_settings

__all__ = ["BUILT_IN", "load_built_in"]


def load_built_in(folder: Path = BUILT_IN) -> ScriptLibrary:
    """Their library; their settings are known from now on."""
    library = ScriptLibrary.load([folder])
    add_settings(library.callbacks)
    return library
