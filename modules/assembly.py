"""Builds the long-lived objects of one running program and wires them; the server and the command line share it."""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from compat.host import Host, JobView, set_host
from modules.access import access_of
from modules.adapters.preset_file import FILE as PRESETS_OF_BLOCK_WEIGHTS
from modules.captioning.captioners import Captioners
from modules.detection.detectors import FOLDER as DETECTORS_FOLDER
from modules.detection.detectors import Detectors
from modules.devices import choose_device, gpu_count, tune_allocator
from modules.downloads.downloads import Downloads
from modules.downloads.transport import TOKENS_FILE, FileTransport, Tokens
from modules.errors import FeatherweightError, InvalidValueError
from modules.faces.restorers import FaceRestorers
from modules.flags.flags import Flags
from modules.history.service import HistoryService
from modules.images.saving import check_folder
from modules.jobs.dispatch import Dispatcher
from modules.jobs.lanes import Lane
from modules.jobs.line import Line, QueueOptions
from modules.jobs.needed_models import models_of
from modules.jobs.store import JobStore
from modules.jobs.tasks import Starter
from modules.jobs.work.calls import call, call_starters
from modules.jobs.work.captions import interrogation_starters
from modules.jobs.work.downloads import download_starters, with_downloads
from modules.jobs.work.extras import Extras
from modules.jobs.work.merging import Merger, merge_starters
from modules.jobs.work.precision import PrecisionWork, measured, write_series
from modules.jobs.work.reports import Reports
from modules.jobs.work.training import TrainingWork
from modules.jobs.workers.executor import ServerSide, Transport, WorkerExecutor, WorkerOptions
from modules.jobs.workers.farm import Farm, check_installed, farm_workers
from modules.jobs.workers.group import Workers, worker_lane
from modules.jobs.workers.host import EngineHost, embedding_names, files_known, refresh_files
from modules.jobs.workers.in_process import InProcessExecutor
from modules.jobs.workers.loop import Asking, AskingOutput
from modules.jobs.workers.process import processes
from modules.jobs.workers.sdapi import RemoteWorker, addresses_of, remote_lane
from modules.model_cards.card_pages import checkpoint_page, embedding_page, hypernetwork_page
from modules.model_cards.cards import CardLibrary
from modules.model_shelf.shelf import Shelf
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.autoencoders.tiny_vae_files import TinyVaeFolders
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.paths import Paths, resolve_paths
from modules.postprocessing.faces import CodeFormerOperation, GfpganOperation
from modules.postprocessing.operations import Operations
from modules.postprocessing.upscale import UpscaleOperation
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.chosen_checkpoint import store_first_loaded, stored_checkpoint
from modules.processing.engine.engine import Engine, EngineOptions, ExtraModels
from modules.processing.engine.model_shelf import KeepOptions
from modules.processing.engine.precision import (
    PRECISION_KEYS,
    PrecisionOptions,
    check_patterns,
    machine_of,
    split_patterns,
)
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.memory_estimate.planner import LocalPlanner
from modules.processing.record.output import Output
from modules.processing.record.recordings import Recordings
from modules.processing.record.spool import Spool
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.processing.request.upscaling import PIXEL_UPSCALERS, hires_upscalers, upscale_image
from modules.prompting.styles import StyleBook
from modules.scripts.form_operations import form_operations
from modules.scripts.library import ScriptLibrary
from modules.scripts.processing import Making, Processed, make_elsewhere, model_in_use
from modules.scripts.program import Program
from modules.scripts.settings import add_settings
from modules.services import Services
from modules.settings.definitions import DIRECTORY_KEYS, SETTINGS
from modules.settings.store import SettingsStore
from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers
from modules.version import PROGRAM_VERSION

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
REPORTS_FOLDER = "reports"  # of the outputs
RESUME_FOLDER = "resume"  # of the data folder
BROUGHT_ALONG = ("wildcards", "tags", PRESETS_OF_BLOCK_WEIGHTS)
"""What extensions have in their folders, or beside their scripts."""
_OUTPUT_KEYS = frozenset(key for key in DIRECTORY_KEYS if key.startswith("outdir_"))


def build_services(flags: Flags, root: Path = ROOT) -> Services:
    """Everything a page, an API or a command needs. Creates folders, reads the settings, loads no model.

    Raises `FeatherweightError` for folders that cannot be made and checkpoint files that are not there.
    """
    access = access_of(flags)
    paths = resolve_paths(flags, root)
    paths.ensure()
    settings = SettingsStore(paths.config_file, locked=locked_settings(flags))
    computing = build_computing(flags, paths, settings, loads=not flags.workers)
    catalogue, engine, scripts = computing.catalogue, computing.engine, computing.scripts
    estimator = _estimator_of(flags, paths, engine)
    allowed = None if access.is_local else output_folders(flags, paths, settings.current)
    settings.subscribe(lambda after, changed: _check_folders(after, changed, paths.data_dir, allowed))
    spool = Spool((paths.data_dir / "spool", temporary_spool(paths.data_dir)), allowed)
    recordings = Recordings(paths.data_dir / RESUME_FOLDER)
    output = Output(paths.data_dir, allowed=allowed, spool=spool, recordings=recordings)
    store = JobStore(paths.jobs_file)
    workers = workers_of(flags, root, paths, computing, output, estimator, allowed)
    settings.subscribe(lambda after, changed: workers.change_settings(after))
    lanes = workers.lanes or (Lane(InProcessExecutor(engine, output, scripts, estimator)),)
    transport = FileTransport(Tokens.read(paths.data_dir / TOKENS_FILE, os.environ))
    downloads = Downloads(paths, transport, remember=catalogue.cache.remember, on_done=lambda: refresh_files(engine))
    lanes = with_downloads(lanes, downloads)
    queue = Line(store, lambda: queue_options(settings.current), models_of(catalogue), recordings)
    dispatcher = Dispatcher(queue, lanes)
    workers.wakes(dispatcher.wake)
    history = HistoryService.open(
        paths.data_dir / "history.sqlite", paths.cache_dir / "thumbnails.sqlite", paths.outputs_dir / "trash"
    )
    queue.images.listen(history)
    spool.on_pressure = queue.pause
    spool.listen(queue.images.saved_late)
    services = Services(
        flags,
        paths,
        settings,
        catalogue,
        engine,
        queue,
        dispatcher,
        PROGRAM_VERSION,
        estimator,
        computing.captioners,
        history,
        spool,
        scripts,
        access,
        operations=computing.operations,
        history_folders=allowed,
        cards=cards_of(paths, catalogue, engine, scripts),
        workers=workers,
        downloads=downloads,
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
    offer_to_extensions(computing.host, services)
    return services


def offer_to_extensions(host: Host, services: Services) -> None:
    """What extensions reach in the server's process: images are made by the queue, and it says which job runs."""
    queue = services.queue

    def run(request: GenerationRequest) -> Result:
        job = queue.submit(request)
        job.wait()
        return job.result()

    def running() -> JobView:
        job = queue.running_job()
        if job is None:
            return JobView()
        now = queue.progress(job.task_id)
        images = job.request.batch_count * job.request.batch_size
        facts = (job.type, now.step, now.total_steps, now.images_done, images, now.phase, now.preview)
        return JobView(*facts, is_interrupted=job.is_interrupt_requested)

    def interrupt() -> None:
        if queue.running_job() is not None:
            queue.interrupt()

    def skip() -> None:
        if queue.running_job() is not None:
            queue.skip()

    def compute(name: str, values: Mapping[str, Any], user: str) -> Mapping[str, Any]:
        return call(queue, services.scripts.callbacks.compute, name, values, user)

    host.run, host.job, host.interrupt, host.skip, host.compute = run, running, interrupt, skip, compute
    host.facts = lambda: services.models.status.model
    host.unload = services.models.unload
    host.embeddings = services.models.list_embeddings
    host.cards = services.cards
    host.output_folders = services.history_folders
    styles = services.scripts.program.styles
    make_elsewhere(Making(lambda p: Processed(run(p.for_queue())), lambda: services.settings.current, None, styles))


class Parts(Protocol):
    """What tasks are made of: `Services`, or in a worker `WorkerParts`."""

    @property
    def flags(self) -> Flags: ...
    @property
    def paths(self) -> Paths: ...
    @property
    def settings(self) -> SettingsStore: ...
    @property
    def catalogue(self) -> CheckpointCatalogue: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def captioners(self) -> Captioners: ...
    @property
    def scripts(self) -> ScriptLibrary: ...
    @property
    def operations(self) -> Operations: ...
    @property
    def estimator(self) -> MemoryEstimator: ...
    @property
    def queue(self) -> Line: ...
    @property
    def history_folders(self) -> tuple[Path, ...] | None: ...


def task_starters(parts: Parts) -> dict[str, Starter]:
    """How each type of task is begun from its request, in the server and in workers."""
    return {
        **precision_work(parts).starters,
        **merge_starters(merger_of(parts)),
        **extras_of(parts).starters,
        **training_of(parts).starters,
        **interrogation_starters(parts.captioners),
        **call_starters(parts.scripts.callbacks.compute),
    }


@dataclass(frozen=True)
class Computing:
    """What makes images, in the server's process or in a worker's."""

    settings: SettingsStore
    catalogue: CheckpointCatalogue
    engine: Engine
    captioners: Captioners
    scripts: ScriptLibrary
    operations: Operations
    host: Host


def build_computing(flags: Flags, paths: Paths, settings: SettingsStore, loads: bool = True) -> Computing:
    """The engine with everything that it finds files by, and the scripts of extensions. `loads`: a change of settings
    has the model loaded again."""
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
    settings.subscribe(lambda after, changed: _load_again(engine, after, changed, loads))
    captioners = captioners_of(flags, paths)
    program = program_of(paths, catalogue, engine, settings, captioners, lambda *asked: _computed(host, *asked))
    scripts = ScriptLibrary(program=program)
    host = Host(
        flags, paths, settings, engine, program, scripts, facts=lambda: engine.status.model, unload=engine.unload
    )
    set_host(host)
    load_scripts(flags, paths, settings.current, program, scripts)
    add_settings(scripts.callbacks)
    settings.locked = locked_settings(flags)  # those of extensions too
    settings.adopt()
    engine.adapters.add_types(scripts.adapters.types)
    engine.auxiliaries.wanted = scripts.auxiliary_files
    engine.on_loaded(lambda model: scripts.callbacks.model_loaded(model, model_in_use))
    operations = operations_of(engine, scripts)
    scripts.form_operations = form_operations(operations, program.pixel_upscalers, lambda: settings.current)
    return Computing(settings, catalogue, engine, captioners, scripts, operations, host)


@dataclass(frozen=True)
class WorkerParts:
    """`Parts` in a worker, where nothing is put in line."""

    flags: Flags
    paths: Paths
    settings: SettingsStore
    catalogue: CheckpointCatalogue
    engine: Engine
    captioners: Captioners
    scripts: ScriptLibrary
    operations: Operations
    estimator: MemoryEstimator
    queue: Line
    history_folders: tuple[Path, ...] | None


def worker_host(flags: Flags, root: Path, allowed: tuple[Path, ...] | None, data_dir: Path, ask: Asking) -> EngineHost:
    """What computes in a worker: built from the same flags and folders as the server. Images of jobs are the server's
    to write, so the settings are a mirror, and there is no history. `allowed`: see `Services.history_folders`."""
    paths = resolve_paths(flags, root)
    settings = SettingsStore(paths.config_file, locked=locked_settings(flags), is_mirror=True)
    found = build_computing(flags, paths, settings)
    estimator = _estimator_of(flags, paths, found.engine)
    output = AskingOutput(data_dir, ask=ask, recordings=Recordings(data_dir / RESUME_FOLDER))
    executor = InProcessExecutor(found.engine, output, found.scripts, estimator)
    parts = WorkerParts(
        flags,
        paths,
        settings,
        found.catalogue,
        found.engine,
        found.captioners,
        found.scripts,
        found.operations,
        estimator,
        Line(JobStore(None)),
        allowed,
    )
    has_room = partial(_has_room, estimator)
    return EngineHost(found.engine, settings, executor, LocalPlanner(estimator), has_room, task_starters(parts))


def _estimator_of(flags: Flags, paths: Paths, engine: Engine) -> MemoryEstimator:
    yaml = paths.model_config if flags.config else None
    return MemoryEstimator(engine, paths.root / "configs", paths.cache_dir / "memory.json", yaml)


def workers_of(
    flags: Flags,
    root: Path,
    paths: Paths,
    computing: Computing,
    output: Output,
    estimator: MemoryEstimator,
    allowed: tuple[Path, ...] | None,
) -> Workers:
    """The workers that the command line asks for, not yet begun."""
    engine, settings, catalogue = computing.engine, computing.settings, computing.catalogue

    def loaded(title: str) -> None:
        catalogue.cache.read_again()  # the worker may have computed its hash
        catalogue.refresh()
        info = catalogue.find(title)
        if info is not None:
            store_first_loaded(settings, catalogue, info)

    def local(name: str, begin: Callable[[], Transport]) -> WorkerExecutor:
        return WorkerExecutor(
            name,
            begin,
            output,
            lambda: WorkerOptions(settings.current.system.worker_interrupt_grace),
            server,
            does_tasks=does_tasks,
            carries_images=bool(flags.farm),
        )

    server = ServerSide(
        settings=lambda: settings.current,
        files=lambda: files_known(engine),
        loaded=loaded,
        after_task=lambda: refresh_files(engine),
    )

    count = flags.workers or 0
    does_tasks = not flags.farm  # actors may have other folders
    build = partial(worker_host, flags, root, allowed)
    begins: Sequence[tuple[str, Callable[[], Transport]]]
    if flags.farm:
        check_installed()
        begins = farm_workers(Farm(flags.farm, root), count, build, paths.data_dir)
    else:
        begins = processes(count, build, paths.data_dir, lambda: gpu_count(flags))
    executors = [local(name, begin) for name, begin in begins]
    lanes = [worker_lane(one, engine, does_tasks, is_first=not index) for index, one in enumerate(executors)]
    file = Path(flags.remote_workers_file).expanduser() if flags.remote_workers_file else None
    remotes = [
        RemoteWorker(
            address,
            output,
            catalogue,
            lambda: WorkerOptions(settings.current.system.worker_interrupt_grace),
            lambda: embedding_names(engine),
        )
        for address in addresses_of(flags.remote_worker, file)
    ]
    if remotes and not lanes:
        lanes = [Lane(InProcessExecutor(engine, output, computing.scripts, estimator))]
    lanes += [remote_lane(one) for one in remotes]
    return Workers(executors, remotes, lanes)


def temporary_spool(data_dir: Path) -> Path:
    """Where images are kept that the data folder does not take: in the system's temporary folder, under a name that no
    other data folder has."""
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"featherweight-spool-{name}"


def queue_options(settings: Settings) -> QueueOptions:
    """What the settings say of the queue."""
    system = settings.system
    return QueueOptions(
        system.queue_limit,
        system.queue_retries,
        system.queue_groups_models,
        system.queue_kept_jobs,
        system.queue_starts_paused,
    )


def precision_work(services: Parts) -> PrecisionWork:
    """Reports, comparisons and conversions of this program; reports lie in the folder `reports` of the outputs."""
    return PrecisionWork(
        services.queue,
        services.catalogue,
        services.engine,
        services.settings,
        Reports(services.paths.outputs_dir / REPORTS_FOLDER),
        services.paths.checkpoint_dirs[0],
        services.paths.root / "configs",
    )


def operations_of(engine: Engine, scripts: ScriptLibrary) -> Operations:
    """Our operations of the Extras tab, then those of extensions; one whose name is taken is left out, by its file."""
    ours = (UpscaleOperation(engine.upscalers), GfpganOperation(engine.faces), CodeFormerOperation(engine.faces))
    operations = Operations(ours)
    for operation in scripts.operations:
        try:
            operations.add(operation)
        except InvalidValueError as error:
            log.error("%s: %s", operation.filename, error)
            scripts.faults.append(f"{operation.filename}: {error}")
    return operations


def shelf_of(services: Services) -> Shelf:
    """The model files of this program, by kind, size and use."""
    return Shelf(
        services.paths,
        services.catalogue.cache,
        services.history.history.last_uses,
        lambda: refresh_files(services.engine),
    )


def extras_of(services: Parts) -> Extras:
    """The work of the Extras tab of this program."""
    return Extras(
        services.queue, services.operations, services.settings, services.paths.data_dir, services.history_folders
    )


def captioners_of(flags: Flags, paths: Paths) -> Captioners:
    """What writes captions, from the models that the user has."""
    clip_dir = Path(flags.clip_models_path).expanduser().absolute() if flags.clip_models_path else None
    return Captioners(paths.models_dir, lambda part: choose_device(flags, part), clip_dir)


def merger_of(services: Parts) -> Merger:
    """Merges of this program; results lie in the first folder of checkpoints."""
    return Merger(
        services.catalogue,
        services.engine.vaes,
        services.paths.checkpoint_dirs[0],
        services.paths.root / "configs",
        hashing=not services.flags.no_hashing,
        import_lock=services.engine.lock,
    )


def training_of(services: Parts) -> TrainingWork:
    """Trainings of this program; results lie in the first folder of LoRAs, and that of embeddings."""
    paths = services.paths
    return TrainingWork(
        services.queue,
        services.catalogue,
        services.engine,
        paths.root / "configs",
        paths.lora_dirs[0],
        paths.embeddings_dir,
        paths.cache_dir,
        paths.offload_dir,
        services.engine.lock,
        services.history_folders,
        lambda job: _has_room(services.estimator, job.request),
    )


def _has_room(estimator: MemoryEstimator, request: GenerationRequest) -> bool:
    """Whether an image can be made beside what memory holds now, by the estimate. What cannot be estimated cannot."""
    try:
        return estimator.fits_beside(request)
    except FeatherweightError:
        return False


def _computed(host: Host, name: str, values: Mapping[str, Any], user: str = "") -> Mapping[str, Any]:
    """Work of an extension: in line where there is one, else here."""
    if host.compute is not None:
        return host.compute(name, values, user)
    return host.library.callbacks.compute(name, values)


def program_of(
    paths: Paths,
    catalogue: CheckpointCatalogue,
    engine: Engine,
    settings: SettingsStore,
    captioners: Captioners,
    compute: Callable[[str, Mapping[str, Any], str], Mapping[str, Any]],
) -> Program:
    """The names that extensions may ask for, looked up when they ask."""
    detectors = Detectors(engine.faces.find, paths.models_dir / DETECTORS_FOLDER)
    return Program(
        checkpoints=lambda: [info.title for info in catalogue.entries],
        checkpoint=lambda name: catalogue.get(name).title,
        vaes=engine.vaes.choices,
        upscalers=lambda: list(hires_upscalers(engine.upscalers.catalogue.names)),
        pixel_upscalers=lambda: [*PIXEL_UPSCALERS, *engine.upscalers.catalogue.names],
        enlarge=lambda image, name, size_px, settings: _enlarged(engine, image, name, size_px, settings),
        loras=lambda: [info.name for info in engine.adapters.files.catalogue.entries],
        styles=lambda: StyleBook.read(paths.styles_files),
        adapters=lambda: engine.adapters.files,
        folders=folders_of(paths),
        settings=lambda: settings.current,
        caption=captioners.caption,
        find_faces=engine.faces.find,
        detectors=lambda: list(detectors.names),
        detector=detectors.check,
        detect=detectors.find,
        compute=compute,
        measured=lambda result: measured(engine, result),
        report=lambda report: write_series(Reports(paths.outputs_dir / REPORTS_FOLDER), report),
    )


def _enlarged(
    engine: Engine, image: Image.Image, name: str, size_px: tuple[int, int], settings: Settings
) -> Image.Image:
    for known in PIXEL_UPSCALERS:
        if known.lower() == name.lower():
            return upscale_image(image, known, *size_px)
    return engine.upscalers.enlarge(image, name, size_px, settings, lambda index, count: None)


def cards_of(paths: Paths, catalogue: CheckpointCatalogue, engine: Engine, scripts: ScriptLibrary) -> CardLibrary:
    """The pages of cards, over the program's own catalogues and folders: ours, then those of extensions."""
    ours = (
        embedding_page(paths.embeddings_dirs),
        hypernetwork_page(paths.hypernetwork_dirs, engine.adapters.files.hypernetworks),
        checkpoint_page(paths.checkpoint_dirs, catalogue),
    )
    return CardLibrary(scripts.adapters.pages(scripts.program, ours))


def folders_of(paths: Paths) -> Callable[[str], tuple[Path, ...]]:
    """The folders by their names below models/; for other names a folder of that name next to them. Wildcards and
    tags lie in the data folder, among the models, or in folders of extensions."""
    known = {
        "Stable-diffusion": paths.checkpoint_dirs,
        "VAE": paths.vae_dirs,
        "Lora": paths.lora_dirs,
        "embeddings": paths.embeddings_dirs,
        "hypernetworks": paths.hypernetwork_dirs,
        "ControlNet": tuple(dict.fromkeys((paths.models_dir / "ControlNet", paths.root / "models" / "ControlNet"))),
    }

    def folders(name: str) -> tuple[Path, ...]:
        if name in BROUGHT_ALONG:
            patterns = (f"*/{name}", f"*/scripts/{name}")
            found = [sorted(place.glob(pattern)) for place in paths.extension_dirs for pattern in patterns]
            brought = (path for each in found for path in each)
            return (paths.data_dir / name, paths.models_dir / name, *brought)
        return known.get(name, (paths.models_dir / Path(name).name,))

    return folders


def load_scripts(
    flags: Flags,
    paths: Paths,
    settings: Settings,
    program: Program | None = None,
    library: ScriptLibrary | None = None,
) -> ScriptLibrary:
    """The scripts of the extensions that are neither disabled one by one nor all at once, in `library` if given."""
    library = library or ScriptLibrary(program=program or Program())
    mode = settings.hidden.disable_all_extensions
    if flags.disable_all_extensions or mode == "all":
        return library
    folders = paths.extension_dirs
    if flags.disable_extra_extensions or mode == "extra":
        folders = (paths.builtin_extensions_dir,)
    library.add(folders, settings.hidden.disabled_extensions)
    return library


def output_folders(flags: Flags, paths: Paths, settings: Settings) -> tuple[Path, ...]:
    """Where images may go when other machines reach the server: the data folder, those of the command line, and what
    the settings named before the start."""
    named = (paths.data_dir / settings.text(key) for key in _OUTPUT_KEYS if settings.text(key))
    given = (Path(folder).expanduser().absolute() for folder in flags.gradio_allowed_path)
    return tuple(dict.fromkeys((paths.data_dir, *given, *named)))


def _check_folders(
    settings: Settings, changed: frozenset[str], data_dir: Path, allowed: tuple[Path, ...] | None
) -> None:
    """Refuse a change that would have images saved elsewhere; raising takes it back."""
    for key in changed & _OUTPUT_KEYS:
        check_folder(data_dir / settings.text(key), allowed)


def _load_again(engine: Engine, settings: Settings, changed: frozenset[str], loads: bool) -> None:
    """After a change of checkpoint or precision: load in the background, after the job that runs now, unless workers
    do that."""
    if "fp8_skip" in changed:
        check_patterns(split_patterns(settings.optimizations.fp8_skip))
    if loads and changed & {"sd_model_checkpoint", "sd_checkpoints_limit", *PRECISION_KEYS}:
        engine.request_load(stored_checkpoint(settings, engine.catalogue).name)


def locked_settings(flags: Flags) -> frozenset[str]:
    """The settings that the command line forbids to change."""
    if flags.freeze_settings:
        return frozenset(SETTINGS)
    locked = set((flags.freeze_specific_settings or "").split(",")) - {""}
    locked |= {key for key, setting in SETTINGS.items() if setting.by_hand}
    sections = set((flags.freeze_settings_in_sections or "").split(",")) - {""}
    for key, setting in SETTINGS.items():
        if setting.section.id in sections or (flags.hide_ui_dir_config and key in DIRECTORY_KEYS):
            locked.add(key)
    return frozenset(locked)
