"""Checks that the names in a request exist and that its parts are affordable; edges call them before a job is queued,
so that a typo is answered at once."""

from collections.abc import Iterable, Iterator

from modules.models.files.catalogue import CheckpointCatalogue
from modules.processing.request.parameters import Choices
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS, GenerationRequest
from modules.processing.request.source_images import FromImage
from modules.processing.request.upscaling import check_image_upscaler, check_upscaler
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
    for name in _chosen(request, Choices.UPSCALERS):
        check_upscaler(name, upscalers)
    if isinstance(request.start, FromImage):
        check_image_upscaler(request.settings.upscaling.upscaler_for_img2img, upscalers)
    if request.checkpoint:
        catalogue.get(request.checkpoint)
    for name in _chosen(request, Choices.CHECKPOINTS):
        catalogue.get(name)


def check_names_of(request: GenerationRequest) -> None:
    """The names that need no list of files."""
    for name in _chosen(request, Choices.SAMPLERS):
        SAMPLERS.canonical(name)
    for name in _chosen(request, Choices.SCHEDULES):
        SCHEDULES.canonical(name)


def _chosen(request: GenerationRequest, choices: Choices) -> Iterator[str]:
    """The names that a request has of a list, those of the second pass last."""
    for part, rows in ((request, REQUEST_ROWS), (request.hires, HIRES_ROWS)):
        for row in rows:
            name = getattr(part, row.name) if part is not None and row.choices is choices else None
            if name or not (name is None or row.is_optional):  # an empty one that may be empty is none
                yield name
