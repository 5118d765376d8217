"""The pages of cards that are ours: embeddings, hypernetworks, checkpoints; and how adapter files are called."""

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from modules.adapters.adapter_facts import EMBEDDING_IMAGE_SUFFIXES, EMBEDDING_SUFFIXES, AdapterError
from modules.adapters.catalogue import AdapterCatalogue, AdapterInfo
from modules.model_cards.cards import CardPage, ModelFile
from modules.model_cards.few_steps import checkpoint_few_steps
from modules.models.files.catalogue import CHECKPOINT_SUFFIXES, CheckpointCatalogue
from modules.system.model_folders import Listing, as_folders

NOTES_IN_TAG = (*("description", "sd version", "activation text"), *("preferred weight", "negative text", "notes"))
"""What is noted of files that a tag uses."""


def embedding_page(folders: Path | Iterable[Path]) -> CardPage:
    """Textual inversion embeddings; the word in the prompt is the file's name."""
    files = EmbeddingFiles()
    return CardPage(
        id="textual_inversion",
        title="Textual Inversion",
        folders=as_folders(folders),
        suffixes=EMBEDDING_SUFFIXES,
        list_files=lambda listing, settings: files.of(listing),
    )


def hypernetwork_page(folders: Path | Iterable[Path], catalogue: AdapterCatalogue) -> CardPage:
    """`<hypernet:name:weight>`."""
    return CardPage(
        id="hypernetworks",
        title="Hypernetworks",
        folders=as_folders(folders),
        suffixes=(".pt",),
        tag="hypernet",
        notes=tuple(note for note in NOTES_IN_TAG if note != "sd version"),
        list_files=lambda listing, settings: adapter_files(catalogue, listing, by_alias=False),
        hash_of=lambda file: adapter_hash_of(catalogue, file),
    )


def checkpoint_page(folders: Sequence[Path], catalogue: CheckpointCatalogue) -> CardPage:
    """A click chooses the checkpoint."""
    return CardPage(
        id="checkpoints",
        title="Checkpoints",
        folders=tuple(folders),
        suffixes=CHECKPOINT_SUFFIXES,
        is_for_prompt=False,
        is_of_files_only=False,  # titles also hold hashes, which are taken at some time
        notes=("description", "vae", "notes"),
        list_files=lambda listing, settings: checkpoint_files(catalogue),
        hash_of=lambda file: file.search[0][:10],
        few_steps=lambda file: checkpoint_few_steps(file.name),
    )


def adapter_files(catalogue: AdapterCatalogue, listing: Listing, by_alias: bool) -> list[ModelFile]:
    """The files of a catalogue, each with a reference that finds exactly it."""
    entries = catalogue.refresh(listing)
    names: dict[str, AdapterInfo] = {}
    aliases: dict[str, AdapterInfo] = {}
    for info in entries:
        names.setdefault(info.name, info)
        aliases.setdefault(info.alias, info)

    def reference(info: AdapterInfo) -> str:
        for text in (info.alias, info.name) if by_alias else (info.name,):
            if (names.get(text) or aliases.get(text)) is info and fits_tag(text):
                return text
        return catalogue.short_hash_of(info) or info.name

    return [
        ModelFile(
            path=info.path,
            name=info.name,
            reference=reference(info),
            metadata=info.metadata,
            version=info.version,
            search=(info.alias, info.metadata.get("sshs_model_hash", "")[:12]),
            has_embedded_preview=info.has_embedded_preview,
        )
        for info in entries
    ]


def adapter_hash_of(catalogue: AdapterCatalogue, file: ModelFile) -> str:
    """The short hash of an adapter file; taken now, if nobody asked before."""
    return next((catalogue.short_hash_of(info) for info in catalogue.entries if info.path == file.path), "")


def fits_tag(text: str) -> bool:
    """Whether a name can stand in `<lora:name:1>`: signs that divide a tag or begin a comment may not be in it."""
    return bool(text) and not any(sign in text for sign in ":<>#=\n") and text == text.strip()


def checkpoint_files(catalogue: CheckpointCatalogue) -> list[ModelFile]:
    """All checkpoints, by title."""
    return [
        ModelFile(
            info.path.absolute(),
            info.stem,
            reference=info.title,
            search=(info.sha256 or "",),
            size_bytes=info.size_bytes,
        )
        for info in catalogue.refresh()
    ]


class EmbeddingFiles:
    """Embedding files by their names alone; only images are opened, to see whether one is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._images: dict[str, tuple[tuple[int, int], str]] = {}

    def of(self, listing: Listing) -> list[ModelFile]:
        """Tensor files by name, images that carry an embedding by the name in it."""
        found = []
        for entry in listing.with_suffix((*EMBEDDING_SUFFIXES, *EMBEDDING_IMAGE_SUFFIXES)):
            path = Path(entry.path)
            if path.suffix.lower() in EMBEDDING_SUFFIXES:
                found.append(ModelFile(path, path.stem, path.stem))
            elif ".preview." not in entry.name:
                name = self._name_inside(entry)
                if name:
                    found.append(ModelFile(path, name, name, search=(path.name,)))
        return found

    def _name_inside(self, entry: os.DirEntry[str]) -> str:
        """The name of the embedding in an image; "" for an image without one."""
        stat = entry.stat()
        stamp = (stat.st_size, stat.st_mtime_ns)
        known = self._images.get(entry.path)
        if known is None or known[0] != stamp:
            from modules.adapters.embeddings import read_embedding  # torch, where there are images at all

            try:
                embedding = read_embedding(Path(entry.path))
            except AdapterError:  # the list of embeddings names it with the reason
                embedding = None
            known = (stamp, embedding.name if embedding else "")
            with self._lock:
                self._images[entry.path] = known
        return known[1]
