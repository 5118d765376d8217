"""Which checkpoint a job is made with: the one that it names, else the one in the settings while that is there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modules.errors import FeatherweightError
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.processing.engine.precision import PRECISION_KEYS, check_patterns, split_patterns
from modules.processing.request.request import GenerationRequest
from modules.settings.store import SettingsStore
from modules.settings.values import Settings

if TYPE_CHECKING:
    from modules.processing.engine.engine import Engine

KEY = "sd_model_checkpoint"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """A name for `CheckpointCatalogue.default`, None where none is named. `notice`: what is used instead of what."""

    name: str | None = None
    notice: str = ""


def wanted_checkpoint(request: GenerationRequest, catalogue: CheckpointCatalogue) -> Wanted:
    """Return the checkpoint that a request names, existing or not; else that of `stored_checkpoint`."""
    return Wanted(request.checkpoint) if request.checkpoint else stored_checkpoint(request.settings, catalogue)


def checkpoint_of(request: GenerationRequest, catalogue: CheckpointCatalogue) -> CheckpointInfo | None:
    """The checkpoint that a request is made with; None where it is missing, or where there is none at all."""
    name = wanted_checkpoint(request, catalogue).name
    return catalogue.find(name) if name else catalogue.first


def stored_checkpoint(settings: Settings, catalogue: CheckpointCatalogue) -> Wanted:
    """The checkpoint in the settings; where that is missing the first there is, with a notice. The setting stays, for
    the day when the file is back."""
    name = settings.stable_diffusion.sd_model_checkpoint
    if not name or catalogue.find(name) is not None:
        return Wanted(name or None)
    if catalogue.first is None:
        return Wanted()
    first = catalogue.first.title
    return Wanted(first, f"The checkpoint {name!r} of the settings is missing; {first} was used. Choose another one.")


def store_first_loaded(settings: SettingsStore, catalogue: CheckpointCatalogue, loaded: CheckpointInfo) -> None:
    """Where nobody has chosen yet, the checkpoint that is used by default becomes the choice as soon as it is loaded:
    a file that is added later and sorts before it changes nothing."""
    first = catalogue.first
    if (
        settings.current.stable_diffusion.sd_model_checkpoint
        or KEY in settings.locked
        or first is None
        or first.path != loaded.path
    ):
        return
    try:
        settings.update({KEY: loaded.title})
    except FeatherweightError as error:
        log.warning("The checkpoint in use could not be stored as the choice: %s", error)


def load_again(engine: Engine, settings: Settings, changed: Collection[str], loads: bool) -> None:
    """After a change of checkpoint or precision: load in the background, after the job that runs now, unless workers
    do that. Raises `InvalidValueError` for patterns that are none."""
    if "fp8_skip" in changed:
        check_patterns(split_patterns(settings.optimizations.fp8_skip))
    if loads and {"sd_model_checkpoint", "sd_checkpoints_limit", *PRECISION_KEYS}.intersection(changed):
        engine.request_load(stored_checkpoint(settings, engine.catalogue).name)
