"""`shared.sd_model`: which model is in use, by its names. What is inside of it has other modules here, so that the rest
is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat.host import has_host, host_now, models_now
from compat.processing import making_of_run
from modules.models.detection.files import detected
from modules.models.files.catalogue import CheckpointInfo as Checkpoint
from modules.models.files.catalogue import old_hash
from modules.models.files.file_header import header_of
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.processing.engine.status import ModelFacts

INSIDE = (
    "only its names can be read (sd_checkpoint_info, sd_model_hash, is_sdxl, dtype, device) and its tokenizer, because "
    "what is inside has another tree here; on_cfg_denoiser and its like change what a model gives, and "
    "docs/extensions.md names what of the program does the work of such extensions."
)


class CheckpointInfo:
    """One checkpoint: `title`, `name`, `filename`, `name_for_extra`, `sha256`, `shorthash`, `hash`, `ids`."""

    def __init__(self, filename: str | Checkpoint) -> None:
        """View a file, or of one of the program's entries."""
        if not isinstance(filename, Checkpoint):
            path = Path(filename)
            stat = path.stat()
            filename = Checkpoint(path, path.name, stat.st_size, stat.st_mtime_ns)
        self._info = filename
        self.filename = str(filename.path)
        self.name = filename.name
        self.model_name = filename.model_name
        self.name_for_extra = filename.stem
        self.title = filename.title
        self.short_title = filename.short_title
        self.sha256 = filename.sha256
        self.shorthash = filename.shorthash
        self.metadata: dict[str, Any] = {}
        self.is_safetensors = filename.path.suffix.lower() == ".safetensors"
        ids = (self.shorthash, self.sha256, self.model_name, self.title, self.name, self.name_for_extra)
        self.ids = [one for one in ids if one]

    @property
    def hash(self) -> str:
        """The short hash of infotexts before 2023."""
        return old_hash(self._info.path)

    def calculate_shorthash(self) -> str | None:
        """Read the file for its sha256, where that is not known yet."""
        hashed = host_now().engine.catalogue.with_hash(self._info)
        self.sha256, self.shorthash, self.title = hashed.sha256, hashed.shorthash, hashed.title
        return self.shorthash

    def register(self) -> None:
        """The program lists what lies in its folders."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckpointInfo) and other.filename == self.filename

    def __hash__(self) -> int:
        return hash(self.filename)


@dataclass(frozen=True)
class ModelView:
    """The model in use; `facts` are None before one is loaded."""

    sd_checkpoint_info: CheckpointInfo
    facts: ModelFacts | None

    @property
    def sd_model_checkpoint(self) -> str:
        """The path of its file."""
        return self.sd_checkpoint_info.filename

    @property
    def filename(self) -> str:
        """The path of its file."""
        return self.sd_checkpoint_info.filename

    @property
    def sd_model_hash(self) -> str | None:
        """The first 10 digits of its sha256."""
        return self.sd_checkpoint_info.shorthash

    def _is(self, family: str) -> bool:
        found = self.facts.family if self.facts is not None else family_of_file(self.sd_checkpoint_info)
        return found.startswith(family)

    @property
    def is_sdxl(self) -> bool:
        """Whether it is of the SDXL family."""
        return self._is("SDXL")

    @property
    def is_ssd(self) -> bool:
        """Models of the SSD family cannot be loaded here."""
        return False

    @property
    def is_sd3(self) -> bool:
        """Whether it is of the SD 3 family."""
        return self._is("SD 3")

    @property
    def is_sd2(self) -> bool:
        """Whether it is of the SD 2 family."""
        return self._is("SD 2")

    @property
    def is_sd1(self) -> bool:
        """Whether it is of the SD 1 family."""
        return self._is("SD 1")

    @property
    def dtype(self) -> Any:
        """In which dtype its denoiser computes."""
        from compat.facades.devices import model_dtype

        return model_dtype()

    @property
    def device(self) -> Any:
        """Where it computes."""
        from compat.facades.devices import model_device

        return model_device()

    @property
    def cond_stage_model(self) -> Any:
        """Its text encoder, by its tokenizer alone. Refused for models that read prompts with another one than CLIP."""
        from compat.facades.clip_view import CondStageModel

        if self.facts is not None and self.facts.counting.tokenizer:
            reason = (
                f"{self.facts.family} reads prompts with another tokenizer than CLIP's; sd_hijack counts its tokens."
            )
            raise AttributeError(f"sd_model.cond_stage_model is not supported here: {reason}", name="cond_stage_model")
        return CondStageModel()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"sd_model.{name} is not supported here: {INSIDE}", name=name, obj=self)


def family_of_file(info: CheckpointInfo) -> str:
    """Return the family that the header of a file says, before its model was loaded and without PyTorch; "" where it
    says nothing."""
    found = detected(header_of(Path(info.filename))).family
    return "" if found is None else found.label


def loaded_model() -> ModelView | None:
    """The model of the running job, else the one of the settings; None where there is no checkpoint."""
    if not has_host():
        return None
    engine = host_now().engine
    run = making_of_run()
    settings = run.settings() if run is not None else host_now().settings.current
    wanted = stored_checkpoint(settings, engine.catalogue).name
    info = engine.catalogue.find(wanted) if wanted else engine.catalogue.first
    if info is None:
        return None
    facts = models_now().status.model
    return ModelView(CheckpointInfo(info), facts if facts is not None and facts.title == info.title else None)


def set_model(model: Any) -> None:
    """Accepted and ignored; the setting sd_model_checkpoint chooses the model."""
