"""The engine: holds the loaded model, swaps it without keeping the old one, and says where it stands.

One lock serialises everything that touches weights. Heavy imports (torch models, diffusers) happen in here, on first
use, so that a page can be served before.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.devices import Memory, memory_info
from modules.errors import FeatherweightError
from modules.models.catalogue import CheckpointCatalogue, CheckpointInfo
from modules.processing.status import EngineState, EngineStatus, ModelFacts

if TYPE_CHECKING:
    import torch

    from modules.models.loaded import LoadedModel
    from modules.processing.conditioning import Conditioner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ComputePlan:
    """Where and in which precision a model is placed and computed; resolved once from flags and device."""

    device: torch.device
    dtype: torch.dtype
    vae_dtype: torch.dtype
    check_nan: bool = True

    @property
    def fingerprint(self) -> str:
        """The plan as text, for caches and records."""
        return f"{self.device.type}/{self.dtype}/{self.vae_dtype}"


class Engine:
    """Holds at most one model. All methods are thread safe; those that load or compute wait for the lock."""

    def __init__(
        self,
        catalogue: CheckpointCatalogue,
        configs_dir: Path,
        choose_plan: Callable[[], ComputePlan],
        hashing: bool = True,
        default_yaml: Path | None = None,
    ) -> None:
        """`choose_plan` is called once, on first use, because asking a device means importing torch."""
        self.catalogue = catalogue
        self.lock = threading.RLock()
        self._configs_dir = configs_dir
        self._choose_plan = choose_plan
        self._hashing = hashing
        self._default_yaml = default_yaml
        self._plan: ComputePlan | None = None
        self._model: LoadedModel | None = None
        self._conditioner: Conditioner | None = None
        self._last: str | None = None
        self._status = EngineStatus(EngineState.EMPTY, "No model is loaded yet; the first picture loads one.")

    @property
    def status(self) -> EngineStatus:
        """Where the engine stands; never waits."""
        return self._status

    @property
    def plan(self) -> ComputePlan:
        """Device and precision; the first call imports torch."""
        with self.lock:
            if self._plan is None:
                self._plan = self._choose_plan()
            return self._plan

    def model(self, wanted: str | None) -> LoadedModel:
        """The model of this checkpoint (None or empty: the first there is), loading it if another one is loaded.

        The old model is dropped before the new one is read. Raises `UnknownNameError` or `CheckpointError`; the
        engine is then without a model, and says so.
        """
        with self.lock:
            info = self.catalogue.default(wanted)
            self._last = wanted
            if self._model is not None and self._model.info.path == info.path:
                if self._model.info.mtime_ns == info.mtime_ns:
                    return self._model
                log.info("%s has changed on disk and is loaded again.", info.name)
            self._drop()
            self._status = EngineStatus(EngineState.LOADING, f"Loading {info.name} ...")
            try:
                self._model = self._load(info)
            except FeatherweightError as error:
                self._status = EngineStatus(EngineState.FAILED, str(error))
                raise
            except BaseException as error:
                self._status = EngineStatus(EngineState.FAILED, f"Loading {info.name} failed: {error}")
                raise
            self._status = EngineStatus(
                EngineState.READY, f"{self._model.info.title} is loaded.", self._facts(self._model)
            )
            return self._model

    def conditioner(self, wanted: str | None) -> Conditioner:
        """The prompt encoder of this checkpoint's model, with its cache."""
        with self.lock:
            from modules.processing.conditioning import Conditioner

            model = self.model(wanted)
            if self._conditioner is None:
                self._conditioner = Conditioner(model, self.plan.fingerprint)
            return self._conditioner

    def request_load(self, wanted: str | None) -> None:
        """Load in the background; returns at once. What goes wrong stands in `status`."""
        threading.Thread(target=self._load_quietly, args=(wanted,), name="featherweight-load", daemon=True).start()

    def reload(self) -> None:
        """Load again what was loaded or unloaded last; waits until it is there."""
        with self.lock:
            self.model(self._last)

    def memory(self) -> dict[str, Memory]:
        """Bytes of main memory ("ram") and of the device ("cuda"), see `devices.memory_info`."""
        return memory_info(self.plan.device)

    def unload(self) -> None:
        """Free the model; the next picture loads it again."""
        with self.lock:
            self._drop()
            self._status = EngineStatus(EngineState.EMPTY, "The model was unloaded; the next picture loads it again.")

    def _load_quietly(self, wanted: str | None) -> None:
        try:
            self.model(wanted)
        except FeatherweightError as error:
            log.error("%s", error)
        except Exception:
            log.exception("loading failed")

    def _load(self, info: CheckpointInfo) -> LoadedModel:
        from modules.models.loading import load_model

        if self._hashing:
            info = self.catalogue.with_hash(info)
        plan = self.plan
        return load_model(info, self._configs_dir, plan.device, plan.dtype, plan.vae_dtype, self._default_yaml)

    def _drop(self) -> None:
        """Let go of the model and give its memory back to the system."""
        if self._model is None:
            return
        self._model = None
        self._conditioner = None
        gc.collect()
        release_memory(self.plan.device)

    def _facts(self, model: LoadedModel) -> ModelFacts:
        return ModelFacts(
            title=model.info.title,
            family=model.family_label,
            parameters=model.parameters,
            stored_bytes=model.stored_bytes,
            fp16_bytes=2 * model.parameters,
            storage=str(model.compute_dtype).removeprefix("torch.").replace("float", "fp").replace("bfp", "bf"),
            device=str(model.device),
            default_size_px=model.default_size_px,
        )


def release_memory(device: torch.device) -> None:
    """Give freed memory back: CUDA's cached blocks to the driver, and on Linux the heap's to the system."""
    import ctypes
    import sys

    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
