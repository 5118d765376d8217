"""What a request names must exist, and what it composes be payable; edges call this before a job is queued, so that a
typo is answered at once."""

from collections.abc import Iterable

from modules.models.reading.catalogue import CheckpointCatalogue
from modules.processing.pipeline.upscaling import check_upscaler
from modules.processing.request import GenerationRequest
from modules.prompting.composition import check_part_count
from modules.sampling.catalog import SAMPLERS, SCHEDULES


def check_names(request: GenerationRequest, catalogue: CheckpointCatalogue, upscalers: Iterable[str] = ()) -> None:
    """Raise `UnknownNameError` for a sampler, schedule type, upscaler or checkpoint that is not there, and
    `InvalidValueError` for a prompt of too many parts.

    `upscalers` are the names of upscaler files. The checkpoint in the settings may be gone, see `wanted_checkpoint`.
    """
    check_names_of(request)
    check_part_count(request.prompt)
    if request.hires is not None:
        check_part_count(request.hires.prompt)
        check_upscaler(request.hires.upscaler, upscalers)
    second = request.hires.checkpoint if request.hires else None
    for name in (request.checkpoint, request.refiner_checkpoint, second):
        if name:
            catalogue.get(name)


def check_names_of(request: GenerationRequest) -> None:
    """The names that need no list of files."""
    SAMPLERS.canonical(request.sampler)
    SCHEDULES.canonical(request.scheduler)
    if request.hires is not None:
        SAMPLERS.canonical(request.hires.sampler or request.sampler)
        SCHEDULES.canonical(request.hires.scheduler or request.scheduler)
