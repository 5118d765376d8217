"""`modules.textual_inversion.textual_inversion`: the embeddings that there are, as the reference UI lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compat.facades.refusal import refusing
from compat.host import host_now, services_now
from modules.system.model_folders import files_below

SUFFIXES = (".pt", ".safetensors", ".bin", ".png", ".webp", ".jxl", ".avif")


class Embedding:
    """One embedding by its facts; its vectors stay in its file."""

    def __init__(self, vec: Any, name: str, step: int | None = None) -> None:
        self.vec = vec
        self.name = name
        self.step = step
        self.shape: int | None = None
        self.vectors = 0
        self.sd_checkpoint: str | None = None
        self.sd_checkpoint_name: str | None = None
        self.filename: str | None = None
        self.hash: str | None = None
        self.shorthash: str | None = None

    @classmethod
    def of(cls, name: str, facts: Mapping[str, Any]) -> Embedding:
        """From what GET /sdapi/v1/embeddings says."""
        found = cls(None, name, facts.get("step"))
        found.shape, found.vectors = facts.get("shape"), int(facts.get("vectors") or 0)
        found.sd_checkpoint, found.sd_checkpoint_name = facts.get("sd_checkpoint"), facts.get("sd_checkpoint_name")
        file = _files().get(name)
        found.filename = str(file) if file is not None else None
        return found


def _files() -> dict[str, Path]:
    """The files in the folders of embeddings by the names that prompts call them."""
    files = (file for folder in host_now().paths.embeddings_dirs for file in sorted(files_below(folder)))
    return {file.stem: file for file in files if file.suffix.lower() in SUFFIXES}


class EmbeddingDatabase:
    """`model_hijack.embedding_db`: `word_embeddings` fit the model in use, `skipped_embeddings` do not."""

    def __init__(self) -> None:
        self.ids_lookup: dict[int, Any] = {}
        self.embedding_dirs: dict[str, Any] = {}

    def _listed(self, part: str) -> dict[str, Embedding]:
        services = services_now()
        if services is None:  # a worker, which is not asked for lists
            return {name: Embedding(None, name) for name in _files()} if part == "loaded" else {}
        found = services.models.list_embeddings().get(part, {})
        return {name: Embedding.of(name, facts) for name, facts in found.items()}

    @property
    def word_embeddings(self) -> dict[str, Embedding]:
        """Look them up by name each time."""
        return self._listed("loaded")

    @property
    def skipped_embeddings(self) -> dict[str, Embedding]:
        """Look them up by name each time."""
        return self._listed("skipped")

    def load_textual_inversion_embeddings(self, force_reload: bool = False, sync_with_sd_model: bool = True) -> None:
        """The program looks at its folders by itself."""

    def add_embedding_dir(self, path: str) -> None:
        """The folders of embeddings are those of the settings."""

    def clear_embedding_dirs(self) -> None:
        """Do as above."""

    def find_embedding_at_position(self, tokens: Any, offset: int) -> tuple[None, None]:
        """Prompts are tokenized by the program."""
        return None, None


_TRAINING = "the Train tab and POST /featherweight/v1/train train embeddings."
_NAMES: tuple[str, ...] = ("create_embedding", "train_embedding", "validate_train_inputs", "TextualInversionTemplate")
_NAMES += ("list_textual_inversion_templates", "DirWithTextualInversionEmbeddings", "PersonalizedBase")
textual_inversion_templates: dict[str, Any] = {}
__getattr__ = refusing(
    "textual_inversion.textual_inversion",
    dict.fromkeys(_NAMES, _TRAINING),
)
