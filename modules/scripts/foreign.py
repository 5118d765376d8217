"""How user extensions are loaded. Those that were written for the reference UI need the habits of that program around
them, which whoever starts this one hands in as `ForeignLoading`; without it they are loaded as built-in ones are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from modules.processing.request.events import Events
from modules.processing.request.hooks import NO_HOOKS, Hooks
from modules.processing.request.request import GenerationRequest
from modules.scripts.callbacks import Moment
from modules.scripts.extension import Extension
from modules.scripts.job import Job, Making, job_of
from modules.scripts.script import Script

T = TypeVar("T")
ScriptArgs = tuple[Script, Sequence[Any]]
"""A script of a job with its arguments."""


class Told(Protocol):
    """Callbacks that take part in a job."""

    def tell(self, moment: Moment, params: Any) -> None:
        """Call the callbacks of a moment."""

    def listens(self, *moments: Moment) -> bool:
        """Return whether there is a callback for one of these moments."""

    def may_listen(self, hook: str) -> bool:
        """Return whether a user script has this hook, in which it may register callbacks."""


class ForeignLoading(Protocol):
    """The habits of another program that its extensions await: while they are loaded, in their forms and in jobs.
    Methods that a subclass does not have add nothing."""

    def begin(self, folders: Sequence[Path]) -> None:
        """Prepare this process, before the first extension of these folders is loaded."""
        return

    def read_flags(self, extensions: Iterable[Extension]) -> Mapping[str, Any]:
        """Return the values of the flags that extensions add to the command line, by name."""
        return {}

    def twin_of(self, name: str, loaded: set[str]) -> str:
        """Name the loaded extension in whose favor this one is left out; "" for none."""
        return ""

    def instead_of(self, name: str, loaded: set[str]) -> str:
        """Name the loaded extension that does the work of this one where it fails; "" for none."""
        return ""

    def load(self, extension: Extension, run: Callable[[], T], patched: Callable[[str], None]) -> T:
        """Run a file of an extension; `patched` receives what it replaced for all models. Raises what `run` raises."""
        return run()

    def limited(self, call: Callable[[], T]) -> T:
        """Return what code of an extension gives; raise what it raises, and an error where it takes too long."""
        return call()

    def before_form(self, script: Script) -> None:
        """Tell a script of controls that it awaits before its own are built outside of any page."""
        return

    def begin_job(
        self,
        job: Job,
        given: Sequence[ScriptArgs],
        selectable: Sequence[Script],
        selected: ScriptArgs | None,
    ) -> None:
        """Show a job the scripts that take part in it (`given`), those that can be selected, and the one that is."""
        return

    def run(self, making: Making, events: Events) -> AbstractContextManager[Events]:
        """Give the events of a job that runs while this is open: extensions may look at them and stop the job, and jobs
        that they build are made by `making`."""
        return nullcontext(events)

    def job_of(self, request: GenerationRequest, making: Making, extensions: Iterable[Extension]) -> Job:
        """Return a request as the scripts of these extensions see it."""
        return job_of(request, making)

    def listener(self, told: Told, job: Job) -> Hooks:
        """Return what has callbacks called (`told`) at the moments of one run of a job."""
        return NO_HOOKS

    def loaded(self, model: Any) -> Any:
        """Return a model that was loaded as callbacks of extensions see it."""
        return model


class PlainLoading(ForeignLoading):
    """`ForeignLoading` that adds nothing."""


PLAIN = PlainLoading()
