"""Models of extensions that compute outside of an image's passes, such as what finds things in images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.settings.values import Settings

if TYPE_CHECKING:
    from modules.models.loading.auxiliary import Auxiliary, Builder


@contextmanager
def lent(engine: Engine, path: Path, build: Builder, settings: Settings) -> Iterator[Auxiliary]:
    """Lend what `Engine.auxiliary` gives, ready to compute without gradients, next to the model in use. Where there is
    none, that of the settings is loaded first, since its plan says how others are stored. Raises as `Engine.model` and
    `Engine.auxiliary`."""
    import torch

    with engine.lock:
        if engine.status.model is None:
            engine.model(stored_checkpoint(settings, engine.catalogue).name, PrecisionOptions.of(settings))
        found = engine.auxiliary(path, build)
        try:
            with torch.no_grad(), found.computing():
                yield found
        finally:
            found.let_go()
