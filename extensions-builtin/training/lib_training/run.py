"""A training from its configuration to its files: encode ahead, step, measure, save, and go on after being cut off."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from PIL import Image

from lib_training.base_model import PLAIN, encodes_apart, load_base
from lib_training.config import TrainingConfig
from lib_training.dataset import Dataset, Item, make_dataset
from lib_training.folders import FolderReport, read_folders
from lib_training.latents import LatentCache, vae_identity
from lib_training.output import OutputFacts, write_adapter
from lib_training.sampling import UNUSUAL, SamplePair, draw_pairs
from lib_training.state import SUFFIX, History, Place, read_state, write_state
from lib_training.stepping import Batch, Trainer
from lib_training.texts import Caption, CaptionCache, CaptionEncoder
from modules.errors import CheckpointError, FeatherweightError, InvalidValueError
from modules.models.loading.loaded import LoadedModel
from modules.system.devices import best_device, collect_garbage, is_available, release_memory
from modules.system.file_names import place_inside
from modules.system.texts import page_text

VALIDATION_TIMES = (0.1, 0.35, 0.6, 0.85)
"""Where in the noise levels the validation loss is measured, always with the same noise."""
SMOOTHING = 0.95
RISE = 1.03
PATIENCE = 3


@dataclass(frozen=True)
class Progress:
    """Progress that a training tells: `phase` in words, `done` of `total`, and the history."""

    phase: str
    done: float
    total: float
    history: History
    notices: tuple[str, ...] = ()
    samples: tuple[tuple[int, Path], ...] = ()
    is_between_steps: bool = False  # nothing is held but model, adapter and optimizer


Report = Callable[[Progress], None]
"""Told after each step and while things are encoded. What it raises ends the training; its state is saved first."""


@dataclass(frozen=True)
class Places:
    """Folders of the program: YAMLs of families, adapters, embeddings, caches; and how names of a checkpoint and of
    files with its parts are read."""

    configs: Path
    adapters: Path
    embeddings: Path
    cache: Path
    offload: Path | None = None
    find_checkpoint: Callable[[str], Path] = Path
    find_modules: Callable[[Sequence[str]], tuple[Path, ...]] = lambda names: tuple(map(Path, names))


@dataclass
class Finished:
    """Outcome of a training: the files, and what there is to say about it."""

    files: tuple[Path, ...]
    steps: int
    seconds: float
    history: History
    notices: tuple[str, ...]


def run_training(config: TrainingConfig, places: Places, report: Report = lambda progress: None) -> Finished:
    """Train until the configured steps are done.

    Raises `TrainingError` and other `FeatherweightError`s for what cannot be trained; and whatever `report` raises,
    after the state was saved.
    """
    run = TrainingRun(config, places, report)
    try:
        return run.finish()
    finally:
        run.close()


class TrainingRun:
    """One training. The model is loaded and everything encoded when it is made."""

    def __init__(self, config: TrainingConfig, places: Places, report: Report) -> None:
        if not config.output.name:
            raise InvalidValueError("output.name is missing: what is the file called?")
        self.config, self._places, self._report = config, places, report
        self.history = History()
        self.notices: list[str] = []
        self.samples: list[tuple[int, Path]] = []
        self._place = Place()
        self._started = datetime.now(UTC)
        self.target = target_of(config, places)
        device = device_of(config)
        self._device, self._checkpoint = device, places.find_checkpoint(config.model.checkpoint)
        if not self._checkpoint.exists():
            raise CheckpointError(f"{self._checkpoint} does not exist. Name the checkpoint that the LoRA is for.")
        self._tell(page_text("loading the base model"), 0, 1)
        self._modules = places.find_modules(config.model.modules)
        self._is_apart = encodes_apart(self._checkpoint, self._modules)
        if self._is_apart and config.trains_text:
            raise InvalidValueError(
                f"The text encoders of {self._checkpoint.name} are not trained, and it reads no embeddings. Choose "
                "another adapter.type than textual_inversion, and set adapter.text_rank to 0."
            )
        self.model = self._load(for_steps=False) if self._is_apart else self._load(for_steps=True)
        self._trainer: Trainer | None = None
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _load(self, for_steps: bool) -> LoadedModel:
        """The base as its steps want it; else what encodes images and captions, streamed, without the denoiser."""
        model, places = self.config.model, self._places
        draws = bool(self.config.output.sample_every)

        def reads(name: str) -> bool:
            if not for_steps:
                return name != "unet"
            return not self._is_apart or name == "unet" or (name == "vae" and draws)

        return load_base(
            self._checkpoint,
            places.configs,
            model.storage if for_steps else None,
            self._device,
            model.stream if for_steps else "layers",
            compute_of(self.config),
            offload_dir=places.offload or places.cache / "offload",
            reads=reads,
            modules=self._modules,
        )

    def _prepare(self) -> None:
        config, model = self.config, self.model
        resolution = config.data.resolution or model.default_size_px
        folders = read_folders(config.data, resolution)
        self.notices.extend(folders.problems)
        self.folders: FolderReport = folders
        step_px = step_of(model)
        self.dataset: Dataset = make_dataset(
            folders.samples, config.data, resolution, step_px, config.training.batch, config.training.seed
        )
        cache = Path(config.data.cache) if config.data.cache else self._places.cache / "training"
        self.latents = LatentCache(vae_identity(model), model.downscale, cache / "latents")
        views = self.dataset.all_views()
        number = len(views)
        self.latents.fill(model, views, lambda done: self._tell(page_text(f"encoding images {done}/{number}"), 0, 1))
        captions = self.dataset.all_captions()
        self.sample_captions = self._sample_captions(captions)
        encoder = CaptionEncoder(model, config.model.clip_skip)
        self.texts = CaptionCache(encoder, cache / "captions")
        if self._is_apart:
            self._encode(captions)
            model = self._change_model()
            encoder = self.texts.encoder = CaptionEncoder(model, config.model.clip_skip)
        side = max(self.dataset.buckets[-1])
        self.trainer = self._trainer = Trainer(model, config, encoder, model.latent_size((side, side)))
        if config.adapter.start:
            self.trainer.begin_with(start_of(config, self._places))
        encoder.fit(caption.text for caption in captions)
        if not self._is_apart and not self.trainer.trains_text:
            self._encode(captions)
            leave_memory(*model.text_encoders.values())
        if not config.output.sample_every:
            leave_memory(model.vae)
        collect_garbage()
        release_memory(model.device)
        self._resume()

    def _encode(self, captions: Sequence[Caption]) -> None:
        self.texts.encoder.fit(caption.text for caption in captions)
        self._tell(page_text("encoding captions"), 0, 1)
        self.texts.fill([*captions, *self.sample_captions])

    def _change_model(self) -> LoadedModel:
        """Have what encoded leave memory, and the denoiser is read."""
        leave_memory(*self.model.text_encoders.values(), self.model.vae)
        if self.model.streaming is not None:
            self.model.streaming.close()
        self._tell(page_text("loading the denoiser"), 0, 1)
        self.model = self._load(for_steps=True)
        return self.model

    # -- the steps -----------------------------------------------------------------------------------------------------

    def finish(self) -> Finished:
        """Step until the end, and write the files."""
        config, total = self.config, self.config.training.steps
        try:
            if self._place.step == 0:
                self._measure()
            batches = iter(self.dataset.batches_from((self._place.epoch, self._place.batch)))
            while self._place.step < total:
                began = time.monotonic()
                position, loss = (self._place.epoch, self._place.batch), 0.0
                parts = []
                for part in range(config.training.accumulation):
                    position, samples = next(batches)
                    parts.append(self.batch(self.dataset.items(samples, f"step {self._place.step}.{part}")))
                result = self.trainer.train_step(parts, step_seed(config, self._place.step))
                loss = result.loss
                for text in result.fallbacks:
                    self.notices.append(page_text(f"Memory ran out at step {self.trainer.step}; it goes on {text}."))
                seconds = self._place.seconds + time.monotonic() - began
                self._place = Place(self.trainer.step, *position, seconds)
                self.history.loss.append((self._place.step, loss))
                self._after_step()
            files = self._write_files()
        except (Exception, KeyboardInterrupt) as error:
            self._save_state_after(error)
            raise
        return Finished(files, self._place.step, self._place.seconds, self.history, tuple(self.notices))

    def _after_step(self) -> None:
        output, step = self.config.output, self._place.step
        last = step == self.config.training.steps
        if output.validate_every and (step % output.validate_every == 0 or last):
            self._measure()
        if output.sample_every and (step % output.sample_every == 0 or last):
            self._draw()
        if (output.save_every and step % output.save_every == 0) and not last:
            self.save_state()
        self._tell(page_text(f"step {step} of {self.config.training.steps}"), step, self.config.training.steps, True)

    def batch(self, items: Sequence[Item]) -> Batch:
        """Return what a step sees of these."""
        data = self.config.data
        views = [item.view for item in items]
        captions = [item.caption for item in items]
        weights = [data.prior_weight if view.sample.is_regularization else 1.0 for view in views]
        return Batch(
            self.latents.latents(views),
            None if self.trainer.trains_text else self.texts.get(captions),
            captions,
            torch.tensor(weights) if any(weight != 1 for weight in weights) else None,
            self.latents.masks(views, data.unmasked_weight) if data.masks else None,
        )

    @torch.no_grad()
    def validation_loss(self) -> float | None:
        """The mean unweighted loss of the held-out images at a few noise levels, with noise that is always the same."""
        items = self.dataset.validation_items()
        if not items:
            return None
        total, count = 0.0, self.trainer.objective.count
        for index, item in enumerate(items):
            batch = self.batch([item])
            generator = torch.Generator().manual_seed(index)
            for share in VALIDATION_TIMES:
                noise = torch.randn(batch.latents.shape, generator=generator)
                timestep = torch.tensor([int(share * count)])
                total += float(self.trainer.image_losses(batch, noise, timestep))
        return total / (len(items) * len(VALIDATION_TIMES))

    def _measure(self) -> None:
        average = self.trainer.average
        average.swap_in()
        try:
            loss = self.validation_loss()
        finally:
            average.swap_out()
        if loss is None:
            return
        step = self._place.step
        self.history.validation.append((step, loss))
        if self.history.best is None or loss < self.history.best:
            self.history.best, self.history.best_step = loss, step
            if step and self.config.output.keep_best:
                self._write(self.target)
        verdict = overfitting(self.history)
        if verdict and not any(notice.startswith("Overfitting") for notice in self.notices):
            self.notices.append(verdict)

    def _draw(self) -> None:
        path = self.target.with_name(f"{self.target.stem}-step-{self._place.step:06d}.png")
        self.trainer.average.swap_in()
        try:
            grid = self.draw_samples()
        finally:
            self.trainer.average.swap_out()
        folder = self._places.cache / "training" / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        grid.save(folder / path.name)
        self.samples.append((self._place.step, folder / path.name))

    def draw_samples(self) -> Image.Image:
        """A grid: a row for each prompt, without and with the adapter."""
        captions = self.sample_captions
        conditionings = None if self.trainer.trains_text else self.texts.get(captions)
        usual = self.model.family.denoiser.usual_settings(self.model.unet, self.model.info.name) or UNUSUAL
        pairs = [SamplePair(caption, settings=usual) for caption in captions[:-1]]
        return draw_pairs(self.trainer, pairs, captions[-1], conditionings)

    # -- files ---------------------------------------------------------------------------------------------------------

    @property
    def state_path(self) -> Path:
        """Return the path of the state to resume from, next to the file that will be."""
        return self.target.with_suffix(SUFFIX)

    def save_state(self) -> None:
        """Raises `OutputError`; the former state stays then."""
        write_state(self.state_path, self.trainer, self._place, self.history, self._identity())

    def _save_state_after(self, error: BaseException) -> None:
        """A training that ends early keeps its last good state. What comes in between must not hide the first error."""
        if self._place.step == 0 or self.trainer.is_torn:
            return
        try:
            self.save_state()
        except FeatherweightError as other:
            error.add_note(str(other))

    def _resume(self) -> None:
        if not self.config.output.resume:
            return
        found = read_state(self.state_path, self.trainer, self._identity())
        if found is not None:
            self._place, self.history = found
            self.notices.append(page_text(f"Resumed at step {self._place.step}."))

    def _identity(self) -> str:
        """Return what a state belongs to: the configuration without what may change between, and the images."""
        config = self.config
        kept = replace(config, output=replace(config.output, prompts=[], trigger="", sample_every=0, validate_every=0))
        kept = replace(kept, output=replace(kept.output, save_every=0, resume=True, keep_best=True))
        kept = replace(kept, memory=replace(kept.memory, budget_gb=None))
        files = [(str(sample.path), sample.captions) for sample in self.folders.samples]
        text = json.dumps([asdict(kept), files, self.model.info.size_bytes, self.model.info.mtime_ns], default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _write_files(self) -> tuple[Path, ...]:
        best = self.config.output.keep_best and self.history.best_step not in (0, self._place.step)
        if best:
            files = [self.target, self._write(self.target.with_name(f"{self.target.stem}-last{self.target.suffix}"))]
            self.notices.append(
                page_text(
                    f"{self.target.name} holds step {self.history.best_step}, whose validation loss is the lowest; "
                    f"the last step is {files[1].name}."
                )
            )
        else:
            files = [self._write(self.target)]
        self.state_path.unlink(missing_ok=True)
        if self.samples:
            self._preview(files[0])
        return tuple(files)

    def _preview(self, file: Path) -> None:
        """The first image with the adapter, next to its file, as cards show it."""
        with Image.open(self.samples[-1][1]) as grid:
            side = grid.height // max(1, len(self.sample_captions) - 1)
            grid.crop((grid.width // 2, 0, grid.width, side)).save(file.with_suffix(".png"))

    def _write(self, path: Path) -> Path:
        average = self.trainer.average
        average.swap_in()
        try:
            write_adapter(path, self.trainer, self._facts(path))
        finally:
            average.swap_out()
        return path

    def _facts(self, path: Path) -> OutputFacts:
        return OutputFacts(
            name=path.stem,
            config=self.config,
            dataset=self.dataset,
            samples=self.folders.samples,
            tags=self.folders.tags,
            steps=self._place.step,
            epochs=self._place.epoch,
            started=self._started,
            checkpoint=self.model.info.path,
        )

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _sample_captions(self, captions: Sequence[Caption]) -> list[Caption]:
        """Return those of sample images, and the empty one behind them."""
        side = self.dataset.resolution // self.dataset.step_px * self.dataset.step_px
        prompts = self.config.output.prompts or [caption.text for caption in captions if not caption.is_dropped][:2]
        return [*(Caption(text, (side, side)) for text in prompts), Caption("", (side, side), True)]

    def _tell(self, phase: str, done: float, total: float, is_between_steps: bool = False) -> None:
        told = Progress(phase, done, total, self.history, tuple(self.notices), tuple(self.samples), is_between_steps)
        self._report(told)

    def close(self) -> None:
        """Take everything off the model, and let it go."""
        if self._trainer is not None:
            self._trainer.close()
        if self.model.streaming is not None:
            self.model.streaming.close()


def step_seed(config: TrainingConfig, step: int) -> int:
    """Return the seed of what a step draws."""
    return int.from_bytes(hashlib.sha256(f"{config.training.seed}/{step}".encode()).digest()[:7], "big")


def step_of(model: LoadedModel) -> int:
    """Pixels that the sides of images are multiples of, so that every level of the denoiser halves them evenly."""
    is_flow = model.architecture.prediction_type == "flow"
    coarsest = 0 if is_flow else model.downscale << (model.architecture.unet_sizes.levels - 1)
    return max(coarsest, model.downscale * 2, model.size_multiple_px)


def smoothed(pairs: Sequence[tuple[int, float]], weight: float = SMOOTHING) -> list[tuple[int, float]]:
    """A running mean of a noisy curve, without a bias to its beginning."""
    found, mean = [], 0.0
    for count, (step, value) in enumerate(pairs, start=1):
        mean = weight * mean + (1 - weight) * value
        found.append((step, mean / (1 - weight**count)))
    return found


def overfitting(history: History) -> str:
    """A sentence where the validation loss rises while the loss still falls; "" elsewhere."""
    measured = history.validation
    best = min(measured, key=lambda pair: pair[1], default=(0, 0.0))
    later = [pair for pair in measured if pair[0] > best[0]]
    if len(later) < PATIENCE or not all(value > RISE * best[1] for _, value in later[-PATIENCE:]):
        return ""
    return page_text(
        f"Overfitting: the loss on held-out images was lowest at step {best[0]} and has risen by "
        f"{later[-1][1] / best[1] - 1:.0%} since: the model memorizes the images. Take the file of step "
        f"{best[0]}, or use more images, fewer steps, or a lower rank."
    )


def target_of(config: TrainingConfig, places: Places) -> Path:
    """The file that will be written. Raises `InvalidValueError` for a name that leaves the folder."""
    name = config.output.name
    is_embedding = config.adapter.type == "textual_inversion"
    folder = places.embeddings if is_embedding else places.adapters
    path = Path(name) if Path(name).is_absolute() else place_inside(folder, name)
    if path.suffix in (".safetensors", ".pt"):
        path = path.with_suffix("")
    return path.with_name(f"{path.name}.safetensors")


def start_of(config: TrainingConfig, places: Places) -> Path:
    """The file to begin with: a path, or a name among the adapters or embeddings."""
    path = Path(config.adapter.start)
    if path.is_file():
        return path
    folder = places.embeddings if config.adapter.type == "textual_inversion" else places.adapters
    named = folder / path
    found = [named, *(named.with_name(f"{named.name}{suffix}") for suffix in (".safetensors", ".pt"))]
    return next((file for file in found if file.is_file()), path)


def device_of(config: TrainingConfig) -> torch.device:
    """Where it computes. Raises `InvalidValueError` for a device that is not there."""
    wanted = config.model.device
    if wanted == "auto":
        return best_device()
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise InvalidValueError(f"model.device is {wanted!r}; it may be auto, cpu, cuda:0, mps or xpu.") from error
    if device.type != "cpu" and not is_available(device.type):
        raise InvalidValueError(f"model.device is {wanted}, and PyTorch sees no such GPU. Set it to auto or cpu.")
    return device


def compute_of(config: TrainingConfig) -> torch.dtype | None:
    """The dtype of the computation; None: the device's usual one."""
    return PLAIN.get(config.model.compute)


def leave_memory(*modules: torch.nn.Module) -> None:
    """Weights that are not needed any more go to the meta device."""
    for module in modules:
        for layer in module.modules():
            for name, weight in layer._parameters.items():
                if weight is not None and not weight.is_meta:
                    layer._parameters[name] = torch.nn.Parameter(torch.empty_like(weight, device="meta"), False)
            for name, buffer in layer._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    layer._buffers[name] = torch.empty_like(buffer, device="meta")
