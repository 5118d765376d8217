"""Workers that extensions add: on other servers, or elsewhere than in processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modules.errors import FeatherweightError, InvalidValueError
from modules.flags.flags import flag_name
from modules.jobs.computing import Computing
from modules.jobs.lanes import Lane
from modules.jobs.workers.executor import Transport, WorkerOptions
from modules.jobs.workers.group import Shown
from modules.jobs.workers.process import Build
from modules.processing.record.output import Output
from modules.scripts.callbacks import Moment

SERVED_BY = {"farm": "farm", "remote_worker": "remote-workers", "remote_workers_file": "remote-workers"}
"""Flags that do something only where an extension adds workers for them, and the built-in extension that does."""


@dataclass(frozen=True)
class WorkerPlace:
    """Place that workers are made in: the program, its folder, what saves their images, `build`, which makes what
    computes in a worker of our own, and what the settings say of workers."""

    computing: Computing
    root: Path
    output: Output
    build: Build
    options: Callable[[], WorkerOptions]


@dataclass(frozen=True)
class AddedWorkers:
    """Workers of extensions. `serves`: names of flags that were read for them. `others` compute elsewhere, each with
    its lane. `begins`: how each of the `--workers` is begun, by its name, in place of processes of this machine."""

    serves: Sequence[str] = ()
    others: Sequence[tuple[Shown, Lane]] = ()
    begins: Sequence[tuple[str, Callable[[], Transport]]] = ()


def added_workers(place: WorkerPlace) -> AddedWorkers:
    """Return the workers of all extensions together. Raises `FeatherweightError` for flags that an extension does not
    understand, and for those that none serves."""
    callbacks = place.computing.scripts.callbacks
    found = AddedWorkers()
    for entry in callbacks.at(Moment.WORKERS):
        try:
            more: AddedWorkers = callbacks.run(entry, place)
        except FeatherweightError:
            raise
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the program
            entry.failed(error)
            continue
        found = replace(
            found,
            serves=(*found.serves, *more.serves),
            others=(*found.others, *more.others),
            begins=(*found.begins, *more.begins),
        )
    for flag, extension in SERVED_BY.items():
        if getattr(place.computing.flags, flag) and flag not in found.serves:
            raise InvalidValueError(
                f"{flag_name(flag)} needs the built-in extension {extension}, which is switched off or failed. Switch "
                f"it on (setting disabled_extensions), or start without {flag_name(flag)}."
            )
    return found
