"""The short list of models that ships, `configs/known-models.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from modules.downloads.addresses import Source, source_of
from modules.errors import SettingsError

FILE = "known-models.yaml"


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """An entry of the list. `size_gb` is that of its file; `parts` are the names of entries that belong to it.

    `tells`: tensors of a header, with their shapes (empty: any), that only this model has; `gguf`: what a GGUF file of
    it calls its architecture. `checked`: by what its
    address was checked, "page" or "lists". `image_cost`:
    billions of parameters times model calls times megapixels of one image."""

    name: str
    label: str
    repository: str
    file: str
    size_gb: float
    licence: str
    good_for: str = ""
    parts: tuple[str, ...] = ()
    tells: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    gguf: tuple[str, ...] = ()
    checked: str = ""
    sha256: str = ""
    image_cost: float = 0.0

    @property
    def source(self) -> Source:
        """Where its file is."""
        return source_of(f"{self.repository}/{self.file}")


def known_models(configs_dir: Path) -> dict[str, KnownModel]:
    """By name, in the order of the list. Raises `SettingsError` for a list that was changed and cannot be read."""
    path = configs_dir / FILE
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(path))
        models = {str(name): _entry(str(name), row) for name, row in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise SettingsError(f"{path} cannot be read: {error}. Get it again from the release.") from error
    for model in models.values():
        unknown = set(model.parts) - set(models)
        if unknown:
            raise SettingsError(
                f"{path}: {model.name} names parts that are not in the list: {', '.join(sorted(unknown))}."
            )
    return models


def _entry(name: str, row: Mapping[str, Any]) -> KnownModel:
    tells = {str(tensor): tuple(shape) for tensor, shape in row.get("tells", {}).items()}
    lists = {key: tuple(row.get(key, ())) for key in ("parts", "gguf")}
    return KnownModel(name=name, **{**row, **lists, "tells": tells})


def source_named(text: str, models: Mapping[str, KnownModel]) -> Source:
    """The file of an entry of the list, or what `source_of` makes of the text."""
    known = models.get(text.strip().lower())
    return known.source if known is not None else source_of(text)
