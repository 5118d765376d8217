"""All operations, in which order they run, and one image run through them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modules.errors import InvalidValueError
from modules.postprocessing.operation import OnProgress, PostprocessedImage, ScriptPostprocessing
from modules.settings.values import Settings

log = logging.getLogger(__name__)

Arguments = Mapping[str, Mapping[str, Any]]
"""By the name of an operation: the values of its arguments. Operations that are not named do not run."""


class Operations:
    """The operations of the program and of extensions. Built once; a name that is taken is refused."""

    def __init__(self, operations: Iterable[ScriptPostprocessing] = ()) -> None:
        self._by_name: dict[str, ScriptPostprocessing] = {}
        for operation in operations:
            self.add(operation)

    def add(self, operation: ScriptPostprocessing) -> None:
        """Raises `InvalidValueError` for an operation without a name or with one that is taken."""
        if not operation.name:
            raise InvalidValueError(f"The postprocessing script {type(operation).__name__} has no name.")
        if operation.name in self._by_name:
            raise InvalidValueError(f"There is a postprocessing operation {operation.name!r} already.")
        self._by_name[operation.name] = operation

    def add_others(self, operations: Iterable[ScriptPostprocessing]) -> list[str]:
        """Add those of extensions; one that cannot be added is left out. Returns what is wrong, by files."""
        faults = []
        for operation in operations:
            try:
                self.add(operation)
            except InvalidValueError as error:
                log.error("%s: %s", operation.filename, error)
                faults.append(f"{operation.filename}: {error}")
        return faults

    @property
    def names(self) -> tuple[str, ...]:
        """List the names of all, by their own order."""
        return tuple(operation.name for operation in sorted(self._by_name.values(), key=lambda one: one.order))

    def get(self, name: str) -> ScriptPostprocessing | None:
        """The operation of this name."""
        return self._by_name.get(name)

    def in_order(self, settings: Settings) -> list[ScriptPostprocessing]:
        """List those of the Extras tab: the names that the setting lists first, then the others by their own order."""
        off = settings.postprocessing.postprocessing_disable_in_extras
        return [operation for operation in self._ordered(settings) if operation.name not in off]

    def in_form(self, settings: Settings) -> list[ScriptPostprocessing]:
        """List those that the settings put below the form of txt2img and img2img, in the same order."""
        on = settings.postprocessing.postprocessing_enable_in_main_ui
        return [operation for operation in self._ordered(settings) if operation.name in on]

    def _ordered(self, settings: Settings) -> list[ScriptPostprocessing]:
        chosen = settings.postprocessing.postprocessing_operation_order
        ranks = {name: rank for rank, name in enumerate(chosen)}
        return sorted(self._by_name.values(), key=lambda one: (ranks.get(one.name, len(ranks)), one.order, one.name))

    def run_in_form(self, image: PostprocessedImage, arguments: Arguments) -> list[PostprocessedImage]:
        """Run the operations in order, also those that the settings hide from the Extras tab."""
        return self._run(image, arguments, self._ordered(image.settings))

    def run(self, image: PostprocessedImage, arguments: Arguments) -> list[PostprocessedImage]:
        """The image after all operations that `arguments` names, and those that came of it on the way.

        Raises the error of an operation; `Interrupted` when the user stopped it.
        """
        return self._run(image, arguments, self.in_order(image.settings))

    def _run(
        self, image: PostprocessedImage, arguments: Arguments, operations: Iterable[ScriptPostprocessing]
    ) -> list[PostprocessedImage]:
        work = [
            (operation, operation.checked(dict(arguments[operation.name])))
            for operation in operations
            if operation.name in arguments
        ]
        for operation, args in work:
            operation.process_firstpass(image, **args)
        images = [image]
        watch = image.on_progress
        for place, (operation, args) in enumerate(work):
            for index, one in enumerate(tuple(images)):
                if one.disable_processing:
                    continue
                done = place + index / len(images)
                one.on_progress = _part(watch, done / len(work), 1 / len(work) / len(images), operation.name)
                one.on_progress(0.0, "")
                operation.process(one, **args)
                images += _taken(one)
        return images


def check_arguments(operations: Operations, arguments: Arguments) -> dict[str, dict[str, Any]]:
    """All arguments, complete; raises `InvalidValueError` for a value that is not allowed."""
    found = {}
    for name, args in arguments.items():
        operation = operations.get(name)
        if operation is not None:
            found[name] = operation.checked(dict(args))
    return found


def infotext_of(info: Mapping[str, Any]) -> str:
    """The facts that operations recorded, as images carry them under `postprocessing`."""
    from modules.images.infotext import quote

    parts = []
    for key, value in info.items():
        if value is not None:
            parts.append(key if key == value else f"{key}: {quote(value)}")
    return ", ".join(parts)


def _taken(image: PostprocessedImage) -> Sequence[PostprocessedImage]:
    """The images that an operation has added, which then are no longer with the first."""
    added = [one if isinstance(one, PostprocessedImage) else image.create_copy(one) for one in image.extra_images]
    image.extra_images.clear()
    return added


def _part(watch: OnProgress, start: float, width: float, name: str) -> OnProgress:
    def tell(fraction: float, phase: str) -> None:
        watch(start + min(max(fraction, 0.0), 1.0) * width, f"{name}: {phase}" if phase else name)

    return tell
