"""Training as page, API and command line ask for it: a task in the same queue as images. Pausing it interrupts the task
and keeps its state; the same configuration goes on from there. Imports torch when it works, not before."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib_training.config import TrainingConfig, config_of
from modules.errors import InvalidValueError
from modules.jobs.computing import Computing
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.jobs.work.letting_in import images_between
from modules.models.files.catalogue import CheckpointInfo
from modules.system.file_names import check_name, given_path, lies_in, place_inside
from modules.system.texts import page_text

if TYPE_CHECKING:
    from lib_training.memory_plan import MemoryPlan
    from lib_training.run import Places, Progress

TRAINING_KIND, RATE_KIND, EMBEDDING_KIND = "training", "learning-rate", "embedding"
POINTS = 300  # of a curve, as a client gets it
SHOWN_SIDE = 512


@dataclass(frozen=True)
class TrainingWork:
    """Trainings of this program; results lie in the first folder of LoRAs, and that of embeddings."""

    computing: Computing

    def start(self, config: TrainingConfig) -> Task:
        """Put a training in line. Raises what is wrong with the configuration and can be known at once."""
        spec = self.spec(config)
        for task in self.tasks():
            if not task.status.is_final and task.title == spec.title:
                raise InvalidValueError(
                    f"{config.output.name} is being trained already. Pause it first, or give this one another name."
                )
        return self.computing.queue.submit_spec(spec)

    def spec(self, config: TrainingConfig) -> TaskSpec:
        """See `start`; not yet in line."""
        self._check_asked(config)

        def work(task: Task) -> Outcome:
            self._import()
            from lib_training.run import run_training

            chosen, planned = self.planned(config)
            notices = () if planned is None else (page_text(f"Memory: {planned.words}"),)
            self.make_room()
            shown, let_images_in = _Shown(task, config, notices), images_between(task, self.computing)

            def report(told: Progress) -> None:
                shown.report(told)
                if told.is_between_steps and let_images_in():
                    self.make_room()

            finished = run_training(chosen, self.places(), report)
            self.computing.engine.adapters.files.catalogue.refresh()
            self.computing.engine.adapters.files.embeddings.refresh()
            outcome = shown.outcome(finished.history, (*notices, *finished.notices), finished.steps)
            return {**outcome, "files": [path.name for path in finished.files], "seconds": round(finished.seconds, 1)}

        asked = {"config": asdict(config)}
        return TaskSpec(TRAINING_KIND, page_text(f"Training {config.output.name}"), work, asked, pauses=True)

    def find_rate(self, config: TrainingConfig) -> Task:
        """Twenty steps that say which learning rate fits."""
        return self.computing.queue.submit_spec(self.rate_spec(config))

    def rate_spec(self, config: TrainingConfig) -> TaskSpec:
        """See `find_rate`; not yet in line."""
        self._check_asked(config)

        def work(task: Task) -> Outcome:
            self._import()
            from lib_training.finder import find_rate
            from lib_training.run import TrainingRun

            chosen, _ = self.planned(config)
            chosen = replace(chosen, output=replace(chosen.output, resume=False))
            self.make_room()
            run = TrainingRun(chosen, self.places(), lambda told: task.progress(told.done, told.total, told.phase))
            try:
                found = find_rate(run)
            finally:
                run.close()
            return {"rate": found.rate, "said": found.said, "losses": [list(pair) for pair in found.losses]}

        return TaskSpec(
            RATE_KIND, page_text(f"Learning rate for {config.output.name}"), work, {"config": asdict(config)}
        )

    def create_embedding(self, name: str, vectors: int, init_text: str, overwrite: bool) -> Task:
        """A new embedding whose vectors are those of a text, for the checkpoint that is chosen; the task's outcome has
        its `path`."""
        return self.computing.queue.submit_spec(self.embedding_spec(name, vectors, init_text, overwrite))

    def embedding_spec(self, name: str, vectors: int, init_text: str, overwrite: bool) -> TaskSpec:
        """See `create_embedding`; not yet in line. Raises `InvalidValueError` for a name that cannot be or is taken."""
        new_embedding_path(self.computing.paths.embeddings_dir, name, overwrite)
        adapter = {"type": "textual_inversion", "vectors": vectors, "init_text": init_text or "*"}
        config: TrainingConfig = config_of({"adapter": adapter})

        def work(task: Task) -> Outcome:
            self._import()
            from lib_training.stepping import make_vectors

            with self.computing.engine.lock:
                made = make_vectors(self.computing.engine.model(None), config)
            plain = {width: vector.detach().cpu() for width, vector in made.items()}
            return {"path": str(create_embedding(self.computing.paths.embeddings_dir, name, plain, overwrite))}

        asked = {"name": name, "vectors": vectors, "init_text": init_text, "overwrite": overwrite}
        return TaskSpec(EMBEDDING_KIND, page_text(f"Creating the embedding {name}"), work, asked)

    @property
    def starters(self) -> Mapping[str, Starter]:
        """How a training that a server left unfinished goes on, from its state, and how the other work begins."""
        return {
            TRAINING_KIND: lambda asked: self.spec(config_of(asked["config"])),
            RATE_KIND: lambda asked: self.rate_spec(config_of(asked["config"])),
            EMBEDDING_KIND: lambda asked: self.embedding_spec(**asked),
        }

    def check(self, config: TrainingConfig) -> CheckpointInfo | None:
        """Check what can be known before the work. Raises `InvalidValueError`, `UnknownNameError`."""
        if not config.output.name:
            raise InvalidValueError("output.name is missing: what is the file called?")
        if not config.data.folders:
            raise InvalidValueError("No folder of images is given. Name one in data.folders.")
        if self.computing.history_folders is not None:
            self._check_reach(config)
        for folder in config.data.folders:
            if not given_path(folder.path).is_dir():
                raise InvalidValueError(
                    f"{folder.path or 'data.folders'} is no folder. Name one with images and captions."
                )
        self.find_modules(config.model.modules)
        return None if Path(config.model.checkpoint).exists() else self.computing.catalogue.get(config.model.checkpoint)

    def _check_asked(self, config: TrainingConfig) -> None:
        """Check as `check` does, and that the file's name, which only the command line may give as a whole path, stays
        inside its folder."""
        is_embedding = config.adapter.type == "textual_inversion"
        if config.output.name:
            paths = self.computing.paths
            place_inside(paths.embeddings_dir if is_embedding else paths.lora_dirs[0], config.output.name)
        self.check(config)

    def _check_reach(self, config: TrainingConfig) -> None:
        """Where other machines reach the server, files elsewhere are neither read nor written."""
        allowed = self.computing.history_folders or ()
        for folder in config.data.folders:
            if not lies_in(given_path(folder.path), allowed):
                raise InvalidValueError(
                    f"{folder.path} is outside of the folders that may be read while other machines reach this server. "
                    f"Put the images below {allowed[0] if allowed else 'the data folder'}, or start without --listen."
                )
        given = {
            "model.checkpoint": config.model.checkpoint,
            **{f"model.modules[{index}]": name for index, name in enumerate(config.model.modules)},
            "adapter.start": config.adapter.start,
            "data.cache": config.data.cache,
            "memory.offload": "" if config.memory.offload == "ram" else config.memory.offload,
            "output.name": config.output.name,
        }
        for key, value in given.items():
            if value and (Path(value).is_absolute() or value.startswith("~") or ".." in Path(value).parts):
                raise InvalidValueError(
                    f"{key} is {value!r}; while other machines reach this server it may be no path."
                )

    def planned(self, config: TrainingConfig) -> tuple[TrainingConfig, MemoryPlan | None]:
        """The configuration with memory decided, where a budget is given."""
        if config.memory.budget_gb is None:
            return config, None
        plan = self.plan(config)
        return plan.config, plan

    def plan(self, config: TrainingConfig) -> MemoryPlan:
        """Choose what fits the budget, by the estimate. Raises `InvalidValueError` where nothing does."""
        self._import()
        import torch

        from lib_training.memory_plan import StepEstimator, plan_memory
        from lib_training.run import compute_of, device_of
        from modules.memory.formats.format import dtype_name
        from modules.models.loading.meta_model import build_meta_model

        path = self.find(config.model.checkpoint)
        info = CheckpointInfo(path, path.name, path.stat().st_size if path.is_file() else 0, 0, None, path.is_dir())
        info = replace(info, modules=self.find_modules(config.model.modules))
        device = device_of(config)
        compute = compute_of(config) or (torch.float32 if device.type == "cpu" else torch.bfloat16)
        estimator = StepEstimator(
            build_meta_model(info, self.computing.paths.root / "configs"), config, device, compute
        )
        return plan_memory(estimator, config, dtype_name(compute))

    def find(self, checkpoint: str) -> Path:
        """The file of a checkpoint."""
        return Path(checkpoint) if Path(checkpoint).exists() else self.computing.catalogue.get(checkpoint).path

    def find_modules(self, names: Sequence[str]) -> tuple[Path, ...]:
        """Files with text encoders or a VAE: paths, or names of files in their folders. Raises `UnknownNameError`."""
        return tuple(
            Path(name) if Path(name).is_file() else self.computing.engine.modules.paths((name,))[0] for name in names
        )

    def places(self) -> Places:
        """Where the trainer finds and puts things."""
        from lib_training.run import Places

        paths = self.computing.paths
        return Places(
            paths.root / "configs",
            paths.lora_dirs[0],
            paths.embeddings_dir,
            paths.cache_dir,
            paths.offload_dir,
            self.find,
            self.find_modules,
        )

    def tasks(self) -> Sequence[Task]:
        """Trainings, the newest first."""
        return self.computing.queue.known.tasks(TRAINING_KIND)

    def make_room(self) -> None:
        """The model of images leaves memory; the next image reads it again."""
        self.computing.engine.unload()

    def _import(self) -> None:
        with self.computing.engine.lock:
            from lib_training import run as _run

            assert _run


@dataclass
class _Shown:
    """Tells a task how far its training is, in what a client may read as JSON."""

    task: Task
    config: TrainingConfig
    notices: tuple[str, ...]
    _images: dict[Path, str] = field(default_factory=dict)
    _samples: list[dict[str, Any]] = field(default_factory=list)

    def report(self, told: Progress) -> None:
        """After each step. Raises `Interrupted` when the training should pause."""
        for step, path in told.samples[len(self._samples) :]:
            self._samples.append({"step": step, "image": _thumbnail(path)})
        if told.history.loss or told.history.validation:
            step = told.history.loss[-1][0] if told.history.loss else 0
            self.task.keep(self.outcome(told.history, (*self.notices, *told.notices), step))
        self.task.progress(told.done, told.total, told.phase)

    def outcome(self, history: Any, notices: Sequence[str], step: int) -> dict[str, Any]:
        """The curves, thinned out, and what there is to say."""
        from lib_training.run import smoothed

        return {
            "name": self.config.output.name,
            "step": step,
            "steps": self.config.training.steps,
            "loss": _thin(smoothed(history.loss)),
            "validation": _thin(history.validation),
            "best_step": history.best_step,
            "notices": list(notices),
            "samples": self._samples[-4:],
        }


def _thin(pairs: Sequence[tuple[int, float]]) -> list[list[float]]:
    stride = -(-len(pairs) // POINTS) if pairs else 1
    return [[step, round(value, 6)] for step, value in [*pairs[:-1:stride], *pairs[-1:]]]


def _thumbnail(path: Path) -> str:
    """A JPEG as a data URI."""
    import io

    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    image.thumbnail((2 * SHOWN_SIDE, 2 * SHOWN_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def new_embedding_path(folder: Path, name: str, overwrite: bool) -> Path:
    """Return the file of a new embedding. Raises `InvalidValueError` for a name that cannot be, or is taken."""
    if name.startswith("."):
        raise InvalidValueError(f"The embedding's name {name[:80]!r} begins with a dot. Choose another name.")
    path = place_inside(folder, check_name(f"{check_name(name)}.safetensors"))
    if path.exists() and not overwrite:
        raise InvalidValueError(f"There is an embedding {name} already. Choose another name, or overwrite_old.")
    return path


def create_embedding(folder: Path, name: str, vectors: Mapping[int, Any], overwrite: bool) -> Path:
    """Write a new embedding. Raises `InvalidValueError` for a name that cannot be, or is taken."""
    from safetensors.torch import save

    from modules.models.files.other_files import EMBEDDING_TABLES
    from modules.system.atomic_files import output_error, write_atomic

    path = new_embedding_path(folder, name, overwrite)
    names = EMBEDDING_TABLES[len(vectors)]
    try:
        write_atomic(path, save(dict(zip(names, vectors.values(), strict=True))))
    except OSError as error:
        raise output_error(path.name, folder, error) from error
    return path
