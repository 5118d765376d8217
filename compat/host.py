"""What names of the reference UI stand for in this process: `compat.facades` asks `host_now()`.

The one place of a process that extensions reach without being given it. It is filled by the assembly, in the server
and in each worker, before extensions are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.model_cards.cards import CardLibrary
from modules.paths import Paths
from modules.processing.engine.engine import Engine
from modules.processing.engine.status import ModelFacts
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.settings.store import SettingsStore


@dataclass(frozen=True)
class JobView:
    """What `shared.state` shows of the job that runs."""

    job: str = ""
    step: int = 0
    steps: int = 0
    images_done: int = 0
    images: int = 0
    text: str = ""
    preview: Any = None
    is_interrupted: bool = False
    is_skipped: bool = False


def _no_job() -> JobView:
    return JobView()


def _nothing() -> None:
    return


@dataclass
class Host:
    """The long-lived objects of this process. `run` puts a request in line and waits for its result (None in a worker,
    where `process_images` computes inside of the running job)."""

    flags: Flags
    paths: Paths
    settings: SettingsStore
    engine: Engine
    program: Program
    library: ScriptLibrary = field(default_factory=ScriptLibrary)
    run: Callable[[GenerationRequest], Result] | None = None
    compute: Callable[[str, Mapping[str, Any], str], Mapping[str, Any]] | None = None  # work in line; None in a worker
    job: Callable[[], JobView] = _no_job
    interrupt: Callable[[], None] = _nothing
    skip: Callable[[], None] = _nothing
    facts: Callable[[], ModelFacts | None] = lambda: None  # of the model that is loaded
    page: Any = None  # the Gradio page, once it is built
    output_folders: tuple[Path, ...] | None = None  # that images may go into; None: any
    unload: Callable[[], None] = _nothing
    reload_page: Callable[[], None] = _nothing
    cards: CardLibrary = field(default_factory=lambda: CardLibrary(()))  # empty in a worker
    embeddings: Callable[[], Mapping[str, Any]] | None = None  # as GET /sdapi/v1/embeddings; None in a worker


_HOSTS: list[Host] = []


def set_host(host: Host) -> None:
    """From now on this process is `host`; the last one counts."""
    _HOSTS[:] = [host]


def host_now() -> Host:
    """The host of this process. Raises `InvalidValueError` where no program was built."""
    if not _HOSTS:
        raise InvalidValueError("No program runs in this process: names of modules.shared stand for nothing yet.")
    return _HOSTS[0]


def has_host() -> bool:
    """Whether this process has one."""
    return bool(_HOSTS)
