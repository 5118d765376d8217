"""The engine: holds the loaded model, swaps it without keeping the old one, and says where it stands.

One lock serialises everything that touches weights. Heavy imports (torch models, diffusers) happen in here, on first
use, so that a page can be served before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from modules.errors import FeatherweightError, InvalidValueError
from modules.faces.restorers import FaceRestorers
from modules.models.autoencoders.files import VaeCatalogue, VaeInfo
from modules.models.autoencoders.tiny_vae_files import TinyVaeFolders
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.models.files.hashing import BackgroundHasher, HashProgress
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.auxiliaries import Auxiliaries
from modules.processing.engine.model_shelf import (
    SPARE_BYTES,
    KeepOptions,
    KeptModel,
    ModelShelf,
    free_bytes,
    move_weights,
)
from modules.processing.engine.precision import Machine, PrecisionOptions, resolve
from modules.processing.engine.status import EngineState, EngineStatus, ModelFacts
from modules.processing.engine.streaming_options import StreamOptions, finer_options
from modules.processing.request.stages import Stage
from modules.system.devices import Memory, collect_garbage, describe, memory_info, release_memory, shares_main_memory
from modules.system.lean_imports import without_garbage_collection
from modules.system.texts import page_text
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.upscalers import Upscalers

if TYPE_CHECKING:
    from modules.adapters.embeddings import Embedding
    from modules.memory.compiling import CompiledBlocks
    from modules.models.families.family import ModelFamily
    from modules.models.loading.auxiliary import Auxiliary, Builder
    from modules.models.loading.load_model import HeaderFacts
    from modules.models.loading.loaded import LoadedModel
    from modules.models.loading.precision import PrecisionPlan
    from modules.processing.engine.conditioning import Conditioner

log = logging.getLogger(__name__)

T = TypeVar("T")
NO_ROOM = (
    "Switch FP8 weight on (half the memory), set Stream weights in Settings > Optimizations, close other programs, or "
    "choose a smaller checkpoint."
)
STREAMED = "{} did not fit into memory; its weights are streamed (Stream weights: {})."


class Lease(Protocol):
    """Who computes with a model."""

    def let_go(self) -> None:
        """Hold no model for now."""


@dataclass(frozen=True)
class ExtraModels:
    """The models that an engine finds besides checkpoints. Without upscalers or face restorers it has those that need
    no file."""

    adapters: Adapters = field(default_factory=lambda: Adapters(()))
    vaes: VaeCatalogue = field(default_factory=VaeCatalogue)
    modules: ModuleCatalogue = field(default_factory=ModuleCatalogue)
    tiny_vaes: TinyVaeFolders = field(default_factory=TinyVaeFolders)
    upscalers: Upscalers | None = None
    faces: FaceRestorers | None = None


@dataclass(frozen=True)
class EngineOptions:
    """How an engine works. `precision` is asked whenever a model is asked for without a job's own settings, `keep`
    whenever a model is asked for. `default_yaml`: the YAML of checkpoints without one of their own. `prompts_dir`:
    where encoded prompts are kept; None: in memory only."""

    precision: Callable[[], PrecisionOptions] = PrecisionOptions
    keep: Callable[[], KeepOptions] = KeepOptions
    hashing: bool = True
    default_yaml: Path | None = None
    prompts_dir: Path | None = None


class Engine:
    """Holds the model in use, and of those used before as many as `KeepOptions` allows. All methods are thread safe;
    those that load or compute wait for the lock."""

    def __init__(
        self,
        catalogue: CheckpointCatalogue,
        configs_dir: Path,
        find_machine: Callable[[], Machine],
        models: ExtraModels | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        """`find_machine` is called once, on first use, because asking a device means importing torch."""
        models, options = models or ExtraModels(), options or EngineOptions()
        self.catalogue = catalogue
        self.lock = threading.RLock()
        self.leases: list[Lease] = []  # of the running job, and of those that are made inside of it; under the lock
        self.adapters = models.adapters
        self.auxiliaries = Auxiliaries()
        self.vaes = models.vaes
        self.modules = models.modules
        self.tiny_vaes = models.tiny_vaes
        self.upscalers = models.upscalers or Upscalers(UpscalerCatalogue({}), lambda _: self.machine.device)
        self.faces = models.faces or FaceRestorers({}, lambda _: self.machine.device)
        self._compiled: CompiledBlocks | None = None
        self._configs_dir = configs_dir
        self._prompts_dir = options.prompts_dir
        self._find_machine = find_machine
        self._current_options = options.precision
        self._current_keep = options.keep
        self._shelf = ModelShelf()
        self._hashing = options.hashing
        self._hasher = BackgroundHasher(catalogue, self._retitle)
        self._default_yaml = options.default_yaml
        self._machine: Machine | None = None
        self._model: LoadedModel | None = None
        self._conditioner: Conditioner | None = None
        self._last: str | None = None
        self._finer: dict[tuple[object, ...], StreamOptions] = {}  # for models that did not fit as they were wished for
        self._loading: list[threading.Thread] = []
        self._closed = False
        self._on_loaded: list[Callable[[LoadedModel], object]] = []
        self._status = EngineStatus(EngineState.EMPTY, page_text("No model is loaded yet; the first image loads one."))

    @property
    def status(self) -> EngineStatus:
        """Where the engine stands; never waits."""
        status, machine = self._status, self._machine
        if status.model is None or machine is None or machine.threads is None:
            return status
        return replace(status, model=replace(status.model, threads=machine.threads.chosen.count))

    @property
    def machine(self) -> Machine:
        """Device and dtypes; the first call imports torch, later ones never wait."""
        if self._machine is None:
            with self.lock:
                if self._machine is None:
                    self._machine = self._find_machine()
        return self._machine

    @property
    def compiled(self) -> CompiledBlocks:
        """The blocks that were compiled so far. Imports torch."""
        if self._compiled is None:
            from modules.memory.compiling import CompiledBlocks

            self._compiled = CompiledBlocks()
        return self._compiled

    @property
    def hashing(self) -> HashProgress | None:
        """How far the sha256 of a checkpoint is that the background computes; None where it computes none."""
        return self._hasher.progress

    def hashed(self, info: CheckpointInfo) -> CheckpointInfo:
        """A checkpoint with its sha256, which is taken in the background from the moment its model is loaded; waits
        until it is there. As it is, where no hashes are wanted or its file is missing."""
        return self._hasher.finish(info) if self._hashing else info

    def on_loaded(self, callback: Callable[[LoadedModel], object]) -> None:
        """Have `callback` called with each model that was read from its file; under the lock, so it must be quick."""
        self._on_loaded.append(callback)

    def model(self, wanted: str | None, options: PrecisionOptions | None = None) -> LoadedModel:
        """The model of this checkpoint (None or empty: the first there is), in the precision that is wished for.

        What is loaded already is used again; where weights would have to lie differently in memory, the file is read
        again, so that nothing is ever rounded twice. An old model is dropped, or set aside as far as `KeepOptions`
        and the memory allow, before the new one is read. Raises `UnknownNameError`, `InvalidValueError` or
        `CheckpointError`; after the last the engine is without a model, and says so.
        """
        with self.lock:
            began = time.monotonic()
            info = self.catalogue.default(wanted)
            if (
                info.has_changed and info.path.exists()
            ):  # one that is missing goes on working for as long as it is loaded
                self.catalogue.refresh()
                info = self.catalogue.default(wanted)
            self._last = wanted
            options = options or self._current_options()
            info = replace(info, modules=self.modules.paths(options.modules))
            vae = self.vaes.choose(options.vae, info)
            keep = self._current_keep()
            if self._shelf.trim(keep.limit - 1) | self._shelf.trim_bytes(keep.max_bytes(self.machine.device)):
                self._release()
            if self._model is not None and self._is_usable(self._model, info, options, vae):
                return self._model
            kept = self._shelf.take(info.path)
            self._set_aside(info, keep)
            if kept is not None:
                plan = kept.model.plan
                if self._is_usable(kept.model, info, options, vae):
                    return self._take_back(kept, began, same_plan=kept.model.plan == plan)
                kept = None
                self._release()
            self._status = EngineStatus(EngineState.LOADING, page_text(f"Loading the model {info.name} ..."))
            try:
                self._model = self._load_with_room(info, options, vae, keep)
            except FeatherweightError as error:
                self._status = EngineStatus(EngineState.FAILED, str(error))
                raise
            except BaseException as error:
                self._status = EngineStatus(EngineState.FAILED, page_text(f"Loading {info.name} failed: {error}"))
                raise
            self._model.switch_seconds = time.monotonic() - began
            self._status = self._ready(self._model)
            if self._hashing:
                self._hasher.begin(info)
            for callback in self._on_loaded:
                callback(self._model)
            return self._model

    def look(self, wanted: str | None, options: PrecisionOptions) -> HeaderFacts:
        """Read the facts in a checkpoint's header; nothing is loaded. Raises `UnknownNameError` or
        `CheckpointError`."""
        from modules.models.loading.load_model import header_facts

        info = replace(self.catalogue.default(wanted), modules=self.modules.paths(options.modules))
        return header_facts(info, self._configs_dir, self._default_yaml)

    def _is_usable(
        self, model: LoadedModel, info: CheckpointInfo, options: PrecisionOptions, vae: VaeInfo | None
    ) -> bool:
        """Whether the loaded model will do for this checkpoint and options; takes over what needs no reload."""
        if model.info.path != info.path:
            return False
        if model.info.modules != info.modules:
            log.info("%s is loaded again: with other text encoder or VAE files.", info.name)
            return False
        if model.info.mtime_ns != info.mtime_ns:
            log.info("%s has changed on disk and is loaded again.", info.name)
            return False
        same_vae = model.vae_info is None if vae is None else vae.is_same_file(model.vae_info)
        if not same_vae:
            log.info("%s is loaded again: with the VAE %s.", info.name, vae.name if vae else "inside of it")
            return False
        if model.streaming is not None and model.streaming.streamer.failed:
            log.info("%s is loaded again: its weights could not be streamed any more.", info.name)
            return False
        plan = self._plan(info, options, model.family)
        if plan.load_key != model.plan.load_key:
            log.info("%s is loaded again: from %s to %s.", info.name, model.plan.label, plan.label)
            return False
        if plan != model.plan:
            self._conditioner = None
        model.plan = plan
        return True

    def auxiliary(self, path: Path, build: Builder, key: object = None, kept: int | None = None) -> Auxiliary:
        """A model of an extension's from a file of its own, to compute next to the model in use: in the same formats,
        streamed where that is, kept for later images, and given less memory by the same fallbacks. `build` makes its
        empty module; `key` is what else that depends on, `kept` how many such models stay in memory between jobs.
        Raises `CheckpointError`, and `InvalidValueError` while no model is loaded."""
        with self.lock:
            if self._model is None:
                raise InvalidValueError(f"{path.name} cannot be loaded: no model is in use that it would work for.")
            if kept is not None:
                self.auxiliaries.limit = kept
            return self.auxiliaries.get(path, build, self._model, self._release, key=key)

    def compute_alone(self, path: Path, build: Builder, work: Callable[[Auxiliary], T]) -> T:
        """Return what `work` makes with a model of an extension's that computes by itself, on finished images: stored
        and placed by the settings, kept for the next image. When memory runs out, the model in use leaves, then weights
        are streamed, and then the CPU computes; `work` is called again. Raises `CheckpointError`, and
        `MemoryShortageError` when nothing helps."""
        import torch

        from modules.memory.recovery import Recovery
        from modules.processing.engine.auxiliaries import ALONE, NO_ROOM_ALONE, Alone, alone_fallbacks

        with self.lock:
            if not self.leases:
                self.auxiliaries.begin_job()  # those of calls before may leave
            holder: Any = Alone(resolve(self._current_options(), self.machine, None))
            found = self.auxiliaries.get(path, build, holder, self._release)
            ways = alone_fallbacks(found, lambda: not self.leases and self._leave())
            with Recovery(ways, self._release, advice=NO_ROOM_ALONE) as recovery:

                def run() -> T:
                    with torch.no_grad(), found.computing():
                        return work(found)

                try:
                    return recovery.run(ALONE, run)
                finally:
                    found.let_go()

    def fitting(self, info: CheckpointInfo, options: PrecisionOptions) -> PrecisionOptions:
        """The options as this checkpoint is loaded by it: with weights streamed where *Automatic* found that they do
        not fit."""
        finer = self._finer.get(_fit_key(info, options))
        return options if finer is None else replace(options, streaming=finer)

    def kept_bytes(self, info: CheckpointInfo) -> tuple[int, int]:
        """Bytes of the models that are set aside, but this checkpoint's: on the device that computes, and in main
        memory. Never waits."""
        count = self._shelf.bytes_but(info.path)
        return (0, count) if self._moves(self._current_keep()) else (count, 0)

    def conditioner(self, wanted: str | None, options: PrecisionOptions | None = None) -> Conditioner:
        """The prompt encoder of this checkpoint's model, with its cache."""
        with self.lock:
            from modules.processing.engine.conditioning import Conditioner

            model = self.model(wanted, options)
            if self._conditioner is None:
                self._conditioner = Conditioner(model, model.plan.fingerprint, self._prompts_dir)
            return self._conditioner

    def request_load(self, wanted: str | None) -> None:
        """Load in the background; returns at once. What goes wrong stands in `status`."""
        thread = threading.Thread(target=self._load_quietly, args=(wanted,), name="featherweight-load", daemon=True)
        self._loading = [known for known in self._loading if known.is_alive()] + [thread]
        thread.start()

    def reload(self) -> None:
        """Load again what was loaded or unloaded last; waits until it is there."""
        with self.lock:
            self.model(self._last)

    def memory(self) -> dict[str, Memory]:
        """Bytes of main memory ("ram") and of the device ("cuda"), see `devices.memory_info`."""
        return memory_info(self.machine.device)

    def list_embeddings(self) -> dict[str, dict[str, Any]]:
        """Textual inversion embeddings as the API shows them: "loaded" with their facts, "skipped" with the reason."""
        store = self.adapters.files.embeddings
        store.refresh()
        model = self._model
        widths = [] if model is None else model.text_widths

        def facts(item: Embedding) -> dict[str, Any]:
            return {
                "step": item.step,
                "sd_checkpoint": item.checkpoint_hash,
                "sd_checkpoint_name": item.checkpoint_name,
                "shape": next(iter(item.vectors)),
                "vectors": item.count,
            }

        return {
            "loaded": {name: facts(item) for name, item in store.usable(widths).items()},
            "skipped": {name: {"reason": reason} for name, reason in store.skipped(widths).items()},
        }

    def unload(self) -> None:
        """Free the model and the upscaler; the next image loads them again."""
        with self.lock:
            self.upscalers.release()
            self.faces.release()
            had_auxiliaries = bool(self.auxiliaries.here)
            self.auxiliaries.release()
            self._finer.clear()
            if not self._leave() and had_auxiliaries:
                self._release()

    def measure_again(self) -> dict[str, dict[str, Any]]:
        """Measure the device again, free of models, and choose by it from now on. Returns seconds and problems by the
        device's name. Waits for a running image."""
        with self.lock:
            if self.machine.again is None:
                return {}
            self.unload()
            self._machine = self.machine.again()
            measured = self._machine.measured
            return {} if measured is None else {describe(self._machine.device): asdict(measured)}

    def close(self, timeout_s: float = 30.0) -> None:
        """Free everything and load nothing in the background any more; waits for a load that has begun."""
        self._closed = True
        self._hasher.close()
        for thread in self._loading:
            thread.join(timeout_s)
        self.unload()

    def _retitle(self, info: CheckpointInfo) -> None:
        """A checkpoint has its hash now: the model in use is called by it."""
        with self.lock:
            model = self._model
            if model is not None and model.info.path == info.path and model.info.mtime_ns == info.mtime_ns:
                model.info = replace(info, modules=model.info.modules)
                self._status = self._ready(model)

    def _load_quietly(self, wanted: str | None) -> None:
        try:
            with self.lock:
                if not self._closed:
                    self.model(wanted)
        except FeatherweightError as error:
            log.error("%s", error)
        except Exception:
            log.exception("loading failed")

    def _load(self, info: CheckpointInfo, options: PrecisionOptions, vae: VaeInfo | None) -> LoadedModel:
        with without_garbage_collection():
            from modules.models.libraries import import_libraries
            from modules.models.loading.load_model import load_model

            import_libraries()

        return load_model(
            info,
            self._configs_dir,
            lambda family: self._plan(info, options, family),
            self._default_yaml,
            vae,
            self.catalogue.cache,
        )

    def _plan(self, info: CheckpointInfo, options: PrecisionOptions, family: ModelFamily) -> PrecisionPlan:
        """The plan for a checkpoint; says where weights are streamed though nobody asked for it."""
        fitting = self.fitting(info, options)
        plan = resolve(fitting, self.machine, family)
        if fitting is options:
            return plan
        return replace(plan, notes=(*plan.notes, STREAMED.format(info.name, fitting.streaming.weights)))

    def _load_with_room(
        self, info: CheckpointInfo, options: PrecisionOptions, vae: VaeInfo | None, keep: KeepOptions
    ) -> LoadedModel:
        """Load, after models set aside have made room where they lie on the device; if memory runs out all the same,
        once more without them, and then (unless the user has chosen) with weights streamed, ever more finely. Raises
        `MemoryShortageError` when that does not help."""
        from modules.memory.recovery import Fallback, Recovery, Step

        device = self.machine.device
        if not self._moves(keep):
            headroom = 0 if shares_main_memory(device) else keep.headroom_bytes
            needed = info.size_bytes * self.machine.dtype.itemsize // 2 + SPARE_BYTES + headroom
            self._shelf.make_room(needed, lambda: free_bytes(device, False), self._release)

        def free() -> None:
            self._shelf.clear()
            self.auxiliaries.release()
            self._release()

        key, options_list = _fit_key(info, options), finer_options(options.streaming, self.machine.streaming)

        def apply() -> Step | None:
            now = self._finer.get(key)
            left = options_list if now is None else options_list[options_list.index(now) + 1 :]
            if not left:
                return None
            self._finer[key] = left[0]
            return Step(f"with weights streamed ({left[0].weights})", lambda: None)

        fallback = Fallback("streamed weights", frozenset({Stage.LOAD}), apply)
        try:
            return Recovery((fallback,), free, advice=NO_ROOM).run(Stage.LOAD, lambda: self._load(info, options, vae))
        except BaseException:
            self._finer.pop(key, None)  # what did not help is not kept: the next time there may be more room
            raise

    def _moves(self, keep: KeepOptions) -> bool:
        """Whether models that are set aside leave the device."""
        return keep.in_main_memory and not shares_main_memory(self.machine.device)

    def _set_aside(self, wanted: CheckpointInfo, keep: KeepOptions) -> None:
        """Keep the model for later if it is another file's than the wanted one, and there is room; else drop it."""
        model = self._model
        if model is None:
            return
        device = self.machine.device
        most = keep.max_bytes(device)
        room = keep.limit > 1 and model.info.path != wanted.path and model.streaming is None
        room = room and (most is None or model.stored_bytes <= most)
        if room and self._moves(keep):
            needed = model.stored_bytes + SPARE_BYTES
            room = self._shelf.make_room(needed, lambda: free_bytes(device, True), self._release)
        if not room:
            del model  # the last reference but one
            self._drop()
            return
        if self._moves(keep):
            move_weights(model, "cpu")
        self._shelf.put(KeptModel(model, self._conditioner))
        self._shelf.trim(keep.limit - 1)
        self._shelf.trim_bytes(most)
        self._model = self._conditioner = None
        self._release()

    def _take_back(self, kept: KeptModel, began: float, same_plan: bool) -> LoadedModel:
        """Put a model that was set aside into use again, with its prompt encoder if that knows the plan."""
        move_weights(kept.model, kept.model.device)
        self._model, self._conditioner = kept.model, kept.conditioner if same_plan else None
        kept.model.switch_seconds = time.monotonic() - began
        self._status = self._ready(kept.model)
        return kept.model

    def _leave(self) -> bool:
        """Let go of the model in use and of those that are kept; returns whether there were any."""
        had_model, had_kept = self._model is not None, bool(self._shelf.clear())
        self._drop()
        if had_kept:
            self._release()
        self._status = EngineStatus(EngineState.EMPTY, page_text("The model was unloaded; the next image loads it."))
        return had_model or had_kept

    def _drop(self) -> None:
        """Let go of the model and give its memory back to the system."""
        if self._model is None:
            return
        if self._model.streaming is not None:
            self._model.streaming.close()
        self._model = None
        self._conditioner = None
        self._release()

    def _release(self) -> None:
        """Give the memory of what is no longer used back to the system."""
        collect_garbage()
        release_memory(self.machine.device)

    def _ready(self, model: LoadedModel) -> EngineStatus:
        from modules.models.loading.loaded import unused_parameters

        plan, usual = model.plan, model.family.denoiser.usual_settings(model.unet, model.info.name)
        facts = ModelFacts(
            title=model.info.title,
            family=model.family.label,
            parameters=model.parameters,
            stored_bytes=model.stored_bytes,
            fp16_bytes=2 * model.parameters,
            storage=plan.label,
            device=str(model.device),
            default_size_px=model.default_size_px,
            adapter_version=model.family.signs.adapter_version.name if model.family.signs.adapter_version else "",
            streaming=plan.streaming.label if plan.streaming else "",
            streamed_bytes=model.streaming.offloaded_bytes if model.streaming else 0,
            switch_seconds=model.switch_seconds,
            counting=replace(model.family.texts.counting, files=(*model.part_files, model.info.path)),
            usual=usual.infotext if usual is not None else "",
            unused=unused_parameters(model),
        )
        said = (f"{model.info.title} is loaded.", model.stored_note, *plan.notes)
        return EngineStatus(EngineState.READY, " ".join(filter(None, said)), facts)


def _fit_key(info: CheckpointInfo, options: PrecisionOptions) -> tuple[object, ...]:
    """Return what a model's size in memory depends on."""
    return info.path, info.mtime_ns, replace(options, lora_mode="", cache_fp16_weight=False)
