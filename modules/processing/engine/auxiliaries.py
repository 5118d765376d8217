"""Models of extensions that compute next to the loaded one, from files of their own: kept between images, counted by
the estimate, given less memory by the fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from modules.errors import CheckpointError
from modules.processing.request.request import GenerationRequest
from modules.processing.request.stages import Stage

if TYPE_CHECKING:
    from modules.memory.recovery import Fallback
    from modules.models.loading.auxiliary import Auxiliary, Builder
    from modules.models.loading.loaded import LoadedModel
    from modules.models.loading.precision import PrecisionPlan

NO_ROOM = "Switch FP8 weight on (control models are stored in it too), use fewer control models, or stream weights."
NO_ROOM_ALONE = "Choose a smaller model or a smaller working size, or close other programs."
ALONE = "finished image"
"""Stage of a model that computes by itself."""
Wanted = Callable[[GenerationRequest], Sequence[Path]]
"""The files of auxiliary models that a request will ask for."""
MakeFallback = Callable[["LoadedModel", "Auxiliaries"], "Fallback"]


@dataclass(frozen=True)
class Alone:
    """Facts of a loaded model that one reads which computes by itself: how it is stored and placed."""

    plan: PrecisionPlan


def _none(request: GenerationRequest) -> Sequence[Path]:
    return ()


@dataclass
class Auxiliaries:
    """The auxiliary models in memory, in the order of their last use. Used under the engine's lock, except for
    `bytes_for`.

    `limit` is how many stay for the next job; one job may use more. `wanted` says for the memory estimate which files
    a request will ask for; `fallbacks` make what extensions can do when memory runs out.
    """

    limit: int = 2
    wanted: Wanted = _none
    fallbacks: list[MakeFallback] = field(default_factory=list)
    _kept: dict[tuple[object, ...], Auxiliary] = field(default_factory=dict)
    _job: int = 0

    @property
    def here(self) -> tuple[Auxiliary, ...]:
        """Return the models in memory."""
        return tuple(self._kept.values())

    def begin_job(self) -> None:
        """Begin a job: models that no later job asks for may leave memory."""
        self._job += 1

    def get(
        self, path: Path, build: Builder, model: LoadedModel, free: Callable[[], object], *, key: object = None
    ) -> Auxiliary:
        """The model of this file for `model`. What is there already is used again where it is stored and placed as
        it would be now; `key` is what else the built module depends on. `free` gives memory back after some have left.
        Raises `CheckpointError`."""
        from modules.memory.recovery import Recovery
        from modules.models.loading.auxiliary import load_auxiliary

        try:
            stat = path.stat()
        except OSError as error:
            raise CheckpointError(f"{path.name}: cannot be opened ({error.strerror or error}).") from error
        name = getattr(build, "__qualname__", type(build).__name__)
        wanted = (path, stat.st_mtime_ns, stat.st_size, name, key, model.plan.load_key)
        found = self._kept.pop(wanted, None)
        if found is None:
            self._make_room(free)
            found = Recovery((), free, advice=NO_ROOM).run(Stage.LOAD, lambda: load_auxiliary(path, build, model))
        self._kept[wanted] = found
        found.used_in = self._job
        return found

    def _make_room(self, free: Callable[[], object]) -> None:
        """Have those leave that were used the longest ago, but none of this job."""
        old = [key for key, each in self._kept.items() if each.used_in != self._job]
        leaving = old[: max(0, len(self._kept) + 1 - self.limit)]
        for key in leaving:
            self._kept.pop(key).close()
        if leaving:
            free()

    def let_go(self) -> None:
        """The device needs none of them for now: what is streamed leaves it."""
        for each in self._kept.values():
            each.let_go()

    def release(self) -> None:
        """Free all."""
        for each in self._kept.values():
            each.close()
        self._kept.clear()

    def bytes_for(self, request: GenerationRequest, bits: float, at_once: int | None = None) -> tuple[int, int]:
        """Return the bytes on the device while a request is sampled, and those that wait elsewhere: of those that are
        there, and of the files that it will ask for, where 16 bits of a file become `bits`. `at_once`: what is on the
        device at once of a model that is streamed; None: they are not. Never waits."""
        here = list(self._kept.values())
        on_device, waiting = sum(each.stored_bytes for each in here), sum(each.offloaded_bytes for each in here)
        for path in self.wanted(request):
            if path.is_file() and all(each.path != path for each in here):
                size = round(path.stat().st_size * bits / 16)
                on_device += size if at_once is None else min(size, at_once)
                waiting += 0 if at_once is None else size
        return on_device, waiting


def auxiliary_fallbacks(model: LoadedModel, auxiliaries: Auxiliaries) -> list[Fallback]:
    """Return what auxiliary models can do with less memory (their weights come layer by layer), and what extensions
    have added."""
    from modules.memory.recovery import Fallback, Step

    def apply() -> Step | None:
        backs = [back for each in auxiliaries.here if (back := each.make_finer()) is not None]

        def undo() -> None:
            while backs:
                backs.pop()()

        return Step("with the layers of control models streamed", undo) if backs else None

    own = Fallback("streamed control models", frozenset({Stage.SAMPLE}), apply)
    return [own, *(make(model, auxiliaries) for make in auxiliaries.fallbacks)]


def alone_fallbacks(auxiliary: Auxiliary, leave: Callable[[], bool]) -> list[Fallback]:
    """Return what a model that computes by itself can do with less memory; `leave` frees the model in use, and says
    whether there was one."""
    import torch

    from modules.memory.recovery import Fallback, Step

    def without_model() -> Step | None:
        return Step("without the model in use", lambda: None) if leave() else None

    def streamed() -> Step | None:
        back = None if auxiliary.device.type == "cpu" else auxiliary.make_finer()
        return None if back is None else Step("with its layers streamed", back)

    def on_cpu() -> Step | None:
        if auxiliary.device.type == "cpu":
            return None
        return Step("on the CPU", auxiliary.compute_on(torch.device("cpu"), torch.float32))

    stages = frozenset({ALONE})
    ways = (("model in use freed", without_model), ("streamed layers", streamed), ("CPU", on_cpu))
    return [Fallback(name, stages, apply) for name, apply in ways]
