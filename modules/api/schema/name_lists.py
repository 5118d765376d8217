"""The lists of names that a parameter may be chosen from, as the running program has them."""

from collections.abc import Callable

from modules.processing.request.parameters import Choices
from modules.processing.request.upscaling import hires_upscalers
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.services import Services


def shown_samplers(services: Services) -> list[str]:
    """All samplers that the settings do not hide."""
    hidden = services.settings.current.sampler.hide_samplers
    return [name for name in SAMPLERS if name not in hidden]


NAMES: dict[Choices, Callable[[Services], list[str]]] = {
    Choices.SAMPLERS: shown_samplers,
    Choices.SCHEDULES: lambda services: [spec.label for _, spec in SCHEDULES.items()],
    Choices.UPSCALERS: lambda services: hires_upscalers(services.engine.upscalers.catalogue.names),
    Choices.CHECKPOINTS: lambda services: [info.title for info in services.catalogue.entries],
    Choices.STYLES: lambda services: list(StyleBook.read(services.paths.styles_files).styles),
}
"""Where the lists of names come from."""
