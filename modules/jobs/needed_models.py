"""Which models a job needs, and whether they are there: what the queue groups jobs by and has them wait for."""

from collections.abc import Sequence

from modules.jobs.line import Models
from modules.models.files.catalogue import CheckpointCatalogue
from modules.processing.engine.chosen_checkpoint import wanted_checkpoint
from modules.processing.request.request import GenerationRequest


def models_of(catalogue: CheckpointCatalogue) -> Models:
    """Over the program's catalogue of checkpoints."""

    def of(request: GenerationRequest) -> tuple[str, tuple[str, ...]]:
        optimizations = request.settings.optimizations
        main = wanted_checkpoint(request, catalogue).name or ""
        hires = request.hires.checkpoint if request.hires else None
        named = (main, request.refiner_checkpoint or "", hires or "")
        found = (catalogue.find(name) for name in named if name)
        needs = tuple(dict.fromkeys(info.name for info in found if info is not None))
        precision = f"{optimizations.fp8_storage} {optimizations.fp8_format}"
        return f"{needs[0]} {precision}" if needs else "", needs

    def is_gone(name: str) -> bool:
        info = catalogue.find(name)
        return info is None or not info.path.exists()  # deleted since it was listed

    def missing(needs: Sequence[str]) -> str:
        gone = [name for name in needs if is_gone(name)]
        if gone:
            catalogue.refresh()
            gone = [name for name in gone if is_gone(name)]
        if not gone:
            return ""
        return f"for the checkpoint {gone[0]}, which is no longer there. Put it back, or change or cancel the job."

    return Models(of, missing)
