"""Which checkpoint a job is made with: the one that it names, else the one in the settings while that is there."""

from dataclasses import dataclass

from modules.models.reading.catalogue import CheckpointCatalogue
from modules.processing.request import GenerationRequest
from modules.settings.values import Settings


@dataclass(frozen=True)
class Wanted:
    """A name for `CheckpointCatalogue.default`, None where none is named. `notice`: what is used in place of what."""

    name: str | None = None
    notice: str = ""


def wanted_checkpoint(request: GenerationRequest, catalogue: CheckpointCatalogue) -> Wanted:
    """What a request names stays as it is, there or not; else as `stored_checkpoint`."""
    return Wanted(request.checkpoint) if request.checkpoint else stored_checkpoint(request.settings, catalogue)


def stored_checkpoint(settings: Settings, catalogue: CheckpointCatalogue) -> Wanted:
    """The checkpoint in the settings; where that is missing the first there is, with a notice. The setting stays, for
    the day when the file is back."""
    name = settings.text("sd_model_checkpoint")
    if not name or catalogue.find(name) is not None:
        return Wanted(name or None)
    if not catalogue.entries:
        return Wanted()
    first = catalogue.default(None).title
    return Wanted(first, f"The checkpoint {name!r} of the settings is missing; {first} was used. Choose another one.")
