"""The extensions that ship with the program, for what makes images without assembling all of it."""

from pathlib import Path

from modules.scripts.library import ScriptLibrary
from modules.scripts.settings import add_settings

BUILT_IN = Path(__file__).resolve().parents[2] / "extensions-builtin"


def load_built_in(folder: Path = BUILT_IN) -> ScriptLibrary:
    """Their library; their settings are known from now on."""
    library = ScriptLibrary.load([folder])
    add_settings(library.callbacks)
    return library
