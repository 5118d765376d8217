"""The extensions that ship with the program, for tests that build a part of it by hand."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from modules.model_cards.cards import CardPage
from modules.processing.engine.adapter_files import AdapterFiles
from modules.processing.engine.adapters import Adapters
from modules.scripts.built_in import load_built_in
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program


@cache
def built_in() -> ScriptLibrary:
    """Their library; from now on their settings are there too."""
    library = load_built_in()
    assert not library.faults, library.faults
    return library


def lora_script(name: str) -> Any:
    """A module of the extension Lora."""
    built_in()
    return sys.modules[f"featherweight_scripts.Lora.{name}"]


def lora_page(adapters: AdapterFiles, folder: Path) -> CardPage:
    """The page of LoRA cards over these networks, which lie in this folder."""
    program = Program(adapters=lambda: adapters, folders=lambda kind: (folder,))
    page: CardPage = lora_script("lora_page").lora_page(program)
    return page


def adapters_of(
    folder: Path | None = None, embeddings: Path | None = None, hypernetworks: Path | None = None
) -> Adapters:
    """Adapters of these folders, with the kinds of tags that ship with the program."""
    return Adapters((folder,) if folder else (), embeddings, hypernetworks, built_in().adapters.types)
