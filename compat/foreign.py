"""The one object of this package that the program is given, by whoever starts the server, a command or a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compat import finder
from compat.callbacks import CallbackHooks
from compat.host import PROCESS
from compat.job_scripts import JobScripts
from compat.loading.guards import LOADING_LIMIT_S, limit_printing, unpatched_torch, watch_acts, within
from compat.loading.own_folder import offer_folders, own_folder
from compat.loading.preload import extension_flags
from compat.loading.twins import instead_of, twin_of
from compat.processing import Processed, StableDiffusionProcessing, job_of, making_jobs, model_in_use
from compat.watched import Watched
from modules.jobs.computing import Computing
from modules.processing.request.events import Events
from modules.processing.request.hooks import Hooks
from modules.processing.request.request import GenerationRequest
from modules.scripts.extension import Extension
from modules.scripts.foreign import ScriptArgs, Told
from modules.scripts.job import ImageJob, Job, Making
from modules.scripts.job import Processed as OwnProcessed
from modules.scripts.job import job_of as own_job_of
from modules.scripts.library import ScriptLibrary
from modules.scripts.script import Script
from modules.services import Services

if TYPE_CHECKING:
    from fastapi import APIRouter

T = TypeVar("T")


class LoadedView:
    """A model that was loaded: what `shared.sd_model` offers (`view`), and the attributes of the program's own."""

    def __init__(self, view: Any, model: Any) -> None:
        self._view = view
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._view, name)
        except AttributeError:
            if not hasattr(self._model, name):
                raise
        return getattr(self._model, name)


class Foreign:
    """The `ForeignProgram` (`modules.services`) of extensions of the reference UI. It has no state, so that a worker's
    process gets it as it is; what a process holds is `compat.host.PROCESS`."""

    # -- loading

    def begin(self, folders: Sequence[Path]) -> None:
        from compat.habits import gradio_habits
        from compat.habits.old_packages import understand_old_templates

        finder.install()
        offer_folders(folders)
        limit_printing()
        watch_acts()
        gradio_habits.understand()
        understand_old_templates()

    def read_flags(self, extensions: Iterable[Extension]) -> Mapping[str, Any]:
        return extension_flags(extensions)

    def twin_of(self, name: str, loaded: set[str]) -> str:
        return twin_of(name, loaded)

    def instead_of(self, name: str, loaded: set[str]) -> str:
        return instead_of(name, loaded)

    def load(self, extension: Extension, run: Callable[[], T], patched: Callable[[str], None]) -> T:
        with own_folder(extension.folder), unpatched_torch(patched):
            return within(LOADING_LIMIT_S, run)

    def limited(self, call: Callable[[], T]) -> T:
        return within(LOADING_LIMIT_S, call)

    def before_form(self, script: Script) -> None:
        from compat.loading.form_stand_in import tell_of_form

        tell_of_form(script)

    # -- jobs

    def begin_job(
        self,
        job: Job,
        given: Sequence[ScriptArgs],
        selectable: Sequence[Script],
        selected: ScriptArgs | None,
    ) -> None:
        assert isinstance(job, StableDiffusionProcessing)
        job.scripts = JobScripts.of(given, selectable, isinstance(job, ImageJob), selected)
        job.script_args = job.scripts.args

    @contextmanager
    def run(self, making: Making, events: Events) -> Iterator[Events]:
        watched = Watched(events)
        PROCESS.running.append(watched)
        try:
            with making_jobs(making):
                yield watched
        finally:
            PROCESS.running.remove(watched)

    def job_of(self, request: GenerationRequest, making: Making, extensions: Iterable[Extension]) -> Job:
        is_asked = any(one.files and not one.is_built_in for one in extensions)
        return job_of(request, making) if is_asked else own_job_of(request, making)

    def listener(self, told: Told, job: Job) -> Hooks:
        return CallbackHooks(told, job)

    def loaded(self, model: Any) -> Any:
        return LoadedView(model_in_use(), model)

    # -- the program

    def enter(self, computing: Computing) -> None:
        PROCESS.computing, PROCESS.services, PROCESS.making = computing, None, None

    def serve(self, services: Services) -> None:
        PROCESS.computing = PROCESS.services = services

        def make(job: Job) -> OwnProcessed:
            assert isinstance(job, StableDiffusionProcessing)
            waiting = services.queue.submit(job.for_queue())
            waiting.wait()
            return Processed(waiting.result())

        PROCESS.making = Making(make, lambda: services.settings.current, None, services.scripts.program.styles)

    # -- page and API

    def api_routes(self, services: Services) -> Sequence[APIRouter]:
        from compat.store.routes import extension_store_routes, installed_routes

        return installed_routes(services), extension_store_routes(services)

    def page_routes(self, services: Services) -> APIRouter:
        from compat.page.extension_files import extension_files

        return extension_files(services)

    def frame_hosts(self, library: ScriptLibrary) -> tuple[str, ...]:
        from compat.page.extension_files import frame_hosts

        return frame_hosts(library)

    def page_facts(self, library: ScriptLibrary) -> Mapping[str, Any]:
        from compat.page.extension_files import extension_scripts, places_wanted

        theirs = extension_scripts(library)
        return {"extensionScripts": theirs, "extensionPlaces": places_wanted(library)} if theirs else {}

    def telling_of_components(self, library: ScriptLibrary) -> AbstractContextManager[None]:
        from compat.habits.gradio_habits import telling_of_components

        return telling_of_components(library.page_component) if library.is_page_extended else nullcontext()

    def build_tab(self) -> None:
        from compat.page.extensions_tab import build_extensions_tab

        build_extensions_tab()

    def build_results(self, tab: str) -> None:
        from compat.page.stand_ins import build_result_stand_ins

        build_result_stand_ins(tab)

    def build_sources(self) -> None:
        from compat.page.stand_ins import build_source_stand_ins

        build_source_stand_ins()
