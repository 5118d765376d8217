"""The short list of models that ships, `configs/known-models.yaml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from modules.downloads.addresses import Source, source_of
from modules.errors import SettingsError
from modules.models.detection.families import Need
from modules.models.detection.parts import Part

FILE = "known-models.yaml"


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """An entry of the list. `size_gb` is that of its file; `parts` are the names of entries that belong to it.

    `types` and `width` (0: any) are those of the part that a file of it holds, see `detection.parts.Part`. `checked`:
    by what its address was checked, "page" or "lists". `image_cost`: billions of parameters times model calls times
    megapixels of one image."""

    name: str
    label: str
    repository: str
    file: str
    size_gb: float
    licence: str
    good_for: str = ""
    parts: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    width: int = 0
    checked: str = ""
    sha256: str = ""
    image_cost: float = 0.0

    @property
    def source(self) -> Source:
        """Where its file is."""
        return source_of(f"{self.repository}/{self.file}")

    def is_among(self, parts: Iterable[Part | Need]) -> bool:
        """Return whether it is one of these parts of models; 0 as a width is any."""
        return any(part.type in self.types and (not self.width or part.width in (0, self.width)) for part in parts)


def entries_for(needs: Iterable[Need], known: Mapping[str, KnownModel]) -> tuple[KnownModel, ...]:
    """Return the entries for what models need, those that there are."""
    found = (next((entry for entry in known.values() if entry.is_among([need])), None) for need in needs)
    return tuple(entry for entry in found if entry is not None)


def known_models(configs_dir: Path) -> dict[str, KnownModel]:
    """Read the models by name, in the order of the list. Raises `SettingsError` for a list that was changed and cannot
    be read."""
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
    lists = {key: tuple(row.get(key, ())) for key in ("parts", "types")}
    return KnownModel(name=name, **{**row, **lists})


def source_named(text: str, models: Mapping[str, KnownModel]) -> Source:
    """The file of an entry of the list, or what `source_of` makes of the text."""
    known = models.get(text.strip().lower())
    return known.source if known is not None else source_of(text)
