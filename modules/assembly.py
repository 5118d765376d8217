"""Builds the long-lived objects of one running program and wires them; the server and the command line share it."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modules.access import access_of
from modules.captioning.captioners import Captioners
from modules.downloads.downloads import Downloads
from modules.downloads.transport import TOKENS_FILE, FileTransport, Tokens
from modules.faces.restorers import FaceRestorers
from modules.flags.flags import Flags
from modules.history.service import HistoryService
from modules.images.saving import check_output_folders, output_folders
from modules.jobs.computing import Computing
from modules.jobs.dispatch import Dispatcher
from modules.jobs.lanes import Lane
from modules.jobs.line import Line, QueueOptions
from modules.jobs.needed_models import models_of
from modules.jobs.store import JobStore
from modules.jobs.tasks import Starter
from modules.jobs.work.calls import call, call_starters
from modules.jobs.work.captions import interrogation_starters
from modules.jobs.work.downloads import download_starters, with_downloads
from modules.jobs.work.extras import extras_of
from modules.jobs.workers.added import WorkerPlace, added_workers
from modules.jobs.workers.executor import ServerSide, WorkerExecutor, WorkerOptions
from modules.jobs.workers.group import Workers, worker_lane
from modules.jobs.workers.host import EngineHost, files_known, refresh_files
from modules.jobs.workers.in_process import InProcessExecutor
from modules.jobs.workers.loop import Asking, AskingOutput
from modules.jobs.workers.process import processes
from modules.model_cards.card_pages import checkpoint_page, embedding_page, hypernetwork_page
from modules.model_cards.cards import CardLibrary
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.autoencoders.tiny_vae_files import TinyVaeFolders
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.postprocessing.faces import CodeFormerOperation, GfpganOperation
from modules.postprocessing.operations import Operations
from modules.postprocessing.upscale import UpscaleOperation
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.chosen_checkpoint import load_again, store_first_loaded
from modules.processing.engine.engine import Engine, EngineOptions, ExtraModels
from modules.processing.engine.model_shelf import KeepOptions
from modules.processing.engine.precision import (
    PrecisionOptions,
    machine_of,
)
from modules.processing.engine.writing import describe_image
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.memory_estimate.planner import LocalPlanner
from modules.processing.record.output import Output
from modules.processing.record.recordings import Recordings
from modules.processing.record.spool import Spool, temporary_spool
from modules.prompting.styles import StyleBook
from modules.scripts.foreign import PLAIN
from modules.scripts.form_operations import form_operations
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import program_of
from modules.scripts.settings import add_settings
from modules.services import ForeignProgram, Services
from modules.settings.definitions import locked_settings
from modules.settings.store import SettingsStore
from modules.system.devices import choose_device, gpu_count, tune_allocator
from modules.system.paths import Paths, resolve_paths
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from modules.version import PROGRAM_VERSION

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
RESUME_FOLDER = "resume"  # of the data folder


def build_services(flags: Flags, root: Path = ROOT, foreign: ForeignProgram | None = None) -> Services:
    """Everything a page, an API or a command needs. Creates folders, reads the settings, loads no model. `foreign`:
    what loads extensions of another program.

    Raises `FeatherweightError` for folders that cannot be made and checkpoint files that are not there.
    """
    access = access_of(flags)
    paths = resolve_paths(flags, root)
    paths.ensure()
    settings = SettingsStore(paths.config_file, locked=locked_settings(flags))
    allowed = None if access.is_local else output_folders(flags, paths, settings.current)
    settings.subscribe(lambda after, changed: check_output_folders(after, changed, paths.data_dir, allowed))
    store = JobStore(paths.jobs_file)
    recordings = Recordings(paths.data_dir / RESUME_FOLDER)

    def line(catalogue: CheckpointCatalogue) -> Line:
        return Line(store, lambda: QueueOptions.of(settings.current), models_of(catalogue), recordings)

    computing = build_computing(flags, paths, settings, line, allowed, foreign, loads=not flags.workers)
    catalogue, engine, scripts, queue = computing.catalogue, computing.engine, computing.scripts, computing.queue
    spool = Spool((paths.data_dir / "spool", temporary_spool(paths.data_dir)), allowed)
    output = Output(paths.data_dir, allowed=allowed, spool=spool, recordings=recordings)
    workers = workers_of(computing, root, output, foreign)
    settings.subscribe(lambda after, changed: workers.change_settings(after))
    lanes = workers.lanes or (Lane(InProcessExecutor(engine, output, scripts, computing.estimator)),)
    transport = FileTransport(Tokens.read(paths.data_dir / TOKENS_FILE, os.environ))
    downloads = Downloads(paths, transport, remember=catalogue.cache.remember, on_done=lambda: refresh_files(engine))
    dispatcher = Dispatcher(queue, with_downloads(lanes, downloads))
    workers.wakes(dispatcher.wake)
    history = HistoryService.open(
        paths.data_dir / "history.sqlite", paths.cache_dir / "thumbnails.sqlite", paths.outputs_dir / "trash"
    )
    queue.images.listen(history)
    spool.on_pressure = queue.pause
    spool.listen(queue.images.saved_late)
    scripts.in_line = partial(call, queue, scripts.callbacks.compute)
    services = Services(
        **vars(computing),
        version=PROGRAM_VERSION,
        dispatcher=dispatcher,
        history=history,
        spool=spool,
        access=access,
        cards=cards_of(paths, catalogue, engine, scripts),
        workers=workers,
        downloads=downloads,
        foreign=foreign,
        notices=(
            *paths.notices,
            *settings.notices,
            *store.notices,
            *history.history.notices,
            *StyleBook.read(paths.styles_files).notices,
            *access.notices,
        ),
    )
    queue.repeats.add({**task_starters(services), **download_starters(downloads)})
    if foreign is not None:
        foreign.serve(services)
    return services


def task_starters(computing: Computing) -> dict[str, Starter]:
    """How each type of task is begun from its request, in the server and in workers."""
    return {
        **computing.scripts.callbacks.task_starters(computing),
        **extras_of(computing).starters,
        **interrogation_starters(computing.captioners),
        **call_starters(computing.scripts.callbacks.compute),
    }


def build_computing(
    flags: Flags,
    paths: Paths,
    settings: SettingsStore,
    line: Callable[[CheckpointCatalogue], Line],
    allowed: tuple[Path, ...] | None,
    foreign: ForeignProgram | None = None,
    loads: bool = True,
) -> Computing:
    """The engine with everything that it finds files by, and the scripts of extensions. `line` makes the queue,
    `loads`: a change of settings has the model loaded again."""
    tune_allocator()
    hashes = HashCache(paths.cache_dir / "hashes.json")
    catalogue = CheckpointCatalogue(
        paths.checkpoint_dirs,
        hashes,
        files=(Path(flags.ckpt),) if flags.ckpt else (),
    )
    if flags.ckpt and "sd_model_checkpoint" not in settings.locked:
        settings.update({"sd_model_checkpoint": catalogue.get(str(Path(flags.ckpt))).title})
    engine = Engine(
        catalogue,
        paths.root / "configs",
        lambda: machine_of(flags, paths.offload_dir, paths.cache_dir),
        models=ExtraModels(
            adapters=Adapters(paths.lora_dirs, paths.embeddings_dirs, paths.hypernetwork_dirs),
            vaes=VaeCatalogue(
                paths.vae_dirs,
                paths.checkpoint_dirs,
                cache=None if flags.no_hashing else hashes,
                fixed=Path(flags.vae_path) if flags.vae_path else None,
            ),
            modules=ModuleCatalogue(paths.module_dirs),
            tiny_vaes=TinyVaeFolders(paths.tiny_vae_dirs, paths.approx_vae_dirs),
            upscalers=Upscalers(UpscalerCatalogue(paths.all_upscaler_dirs), lambda part: choose_device(flags, part)),
            faces=FaceRestorers(paths.all_face_dirs, lambda part: choose_device(flags, part), paths.face_files),
        ),
        options=EngineOptions(
            precision=lambda: PrecisionOptions.of(settings.current),
            hashing=not flags.no_hashing,
            default_yaml=paths.model_config if flags.config else None,
            prompts_dir=paths.cache_dir / "prompts",
            keep=lambda: KeepOptions.of(settings.current),
        ),
    )
    settings.subscribe(lambda after, changed: load_again(engine, after, changed, loads))
    captioners = Captioners.of(
        flags, paths, lambda image, settings, progress: describe_image(engine, image, settings, progress).text
    )
    scripts = ScriptLibrary(foreign=foreign or PLAIN)
    scripts.program = program_of(
        paths,
        catalogue,
        engine,
        settings,
        captioners,
        compute=scripts.compute,
        report=partial(scripts.callbacks.report, paths),
        detectors=scripts.detectors,
    )
    computing = Computing(
        flags=flags,
        paths=paths,
        settings=settings,
        catalogue=catalogue,
        engine=engine,
        estimator=_estimator_of(flags, paths, engine),
        captioners=captioners,
        queue=line(catalogue),
        scripts=scripts,
        operations=Operations(
            (UpscaleOperation(engine.upscalers), GfpganOperation(engine.faces), CodeFormerOperation(engine.faces))
        ),
        history_folders=allowed,
    )
    if foreign is not None:
        foreign.enter(computing)
    scripts.add_enabled(flags, paths, settings.current)
    add_settings(scripts.callbacks)
    settings.locked = locked_settings(flags)  # those of extensions too
    settings.adopt()
    engine.adapters.add_types(scripts.adapters.types)
    engine.auxiliaries.wanted = scripts.auxiliary_files
    engine.on_loaded(lambda model: scripts.callbacks.model_loaded(model, scripts.foreign.loaded))
    scripts.faults += computing.operations.add_others(scripts.operations)
    names = scripts.program.pixel_upscalers
    scripts.form_operations = form_operations(computing.operations, names, lambda: settings.current)
    return computing


def worker_host(
    flags: Flags,
    root: Path,
    allowed: tuple[Path, ...] | None,
    foreign: ForeignProgram | None,
    data_dir: Path,
    ask: Asking,
) -> EngineHost:
    """Build what computes in a worker, from the same flags and folders as the server. Images of jobs are the server's
    to write, so the settings are a mirror, and there is no history. `allowed`: see `Computing.history_folders`."""
    paths = resolve_paths(flags, root)
    settings = SettingsStore(paths.config_file, locked=locked_settings(flags), is_mirror=True)
    found = build_computing(flags, paths, settings, lambda catalogue: Line(JobStore(None)), allowed, foreign)
    estimator = found.estimator
    output = AskingOutput(data_dir, ask=ask, recordings=Recordings(data_dir / RESUME_FOLDER))
    executor = InProcessExecutor(found.engine, output, found.scripts, estimator)
    return EngineHost(
        found.engine, settings, executor, LocalPlanner(estimator), estimator.fits_beside, task_starters(found)
    )


def _estimator_of(flags: Flags, paths: Paths, engine: Engine) -> MemoryEstimator:
    yaml = paths.model_config if flags.config else None
    return MemoryEstimator(engine, paths.root / "configs", paths.cache_dir / "memory.json", yaml)


def workers_of(computing: Computing, root: Path, output: Output, foreign: ForeignProgram | None) -> Workers:
    """The workers that the command line asks for, not yet begun."""
    flags, engine, settings, catalogue = computing.flags, computing.engine, computing.settings, computing.catalogue

    def loaded(title: str) -> None:
        catalogue.cache.read_again()  # the worker may have computed its hash
        catalogue.refresh()
        info = catalogue.find(title)
        if info is not None:
            store_first_loaded(settings, catalogue, info)

    def options() -> WorkerOptions:
        return WorkerOptions(settings.current.system.worker_interrupt_grace)

    server = ServerSide(
        settings=lambda: settings.current,
        files=lambda: files_known(engine),
        loaded=loaded,
        after_task=lambda: refresh_files(engine),
    )

    count = flags.workers or 0
    build = partial(worker_host, flags, root, computing.history_folders, foreign)
    added = added_workers(WorkerPlace(computing, root, output, build, options))
    begins = added.begins or processes(count, build, computing.paths.data_dir, lambda: gpu_count(flags))
    does_tasks = not added.begins  # other machines may have other folders
    executors = [
        WorkerExecutor(name, begin, output, options, server, does_tasks=does_tasks, carries_images=bool(added.begins))
        for name, begin in begins
    ]
    lanes = [worker_lane(one, engine, does_tasks, is_first=not index) for index, one in enumerate(executors)]
    if added.others and not lanes:
        lanes = [Lane(InProcessExecutor(engine, output, computing.scripts, computing.estimator))]
    lanes += [lane for _, lane in added.others]
    return Workers(executors, [worker for worker, _ in added.others], lanes)


def cards_of(paths: Paths, catalogue: CheckpointCatalogue, engine: Engine, scripts: ScriptLibrary) -> CardLibrary:
    """The pages of cards, over the program's own catalogues and folders: ours, then those of extensions."""
    ours = (
        embedding_page(paths.embeddings_dirs),
        hypernetwork_page(paths.hypernetwork_dirs, engine.adapters.files.hypernetworks),
        checkpoint_page(paths.checkpoint_dirs, catalogue),
    )
    return CardLibrary(scripts.adapters.pages(scripts.program, ours))
