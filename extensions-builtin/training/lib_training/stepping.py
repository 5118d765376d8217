"""One step: noise, prediction, loss, gradients, and the optimizer. For every family, through its own conditioning,
inputs and noise levels; the base model never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from lib_training.checkpointing import CheckpointHandle, enable_gradient_checkpointing
from lib_training.config import TrainingConfig
from lib_training.failures import TrainingError
from lib_training.fused import FusedGradientError, FusedSteps
from lib_training.objective import Objective
from lib_training.optimizers import MovingAverage, make_optimizer, rate_factor, set_rate
from lib_training.texts import Caption, CaptionEncoder, batched
from lib_training.trained import Attached, TrainedLayer, attach, make_layers, take_over
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.embeddings import read_embedding
from modules.errors import InvalidValueError
from modules.memory.feed_forward.options import SplitOptions
from modules.memory.feed_forward.split import SplitHandle, split_feed_forward
from modules.memory.recovery import Fallback, Recovery, Step
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.family import GuidanceType
from modules.models.loading.loaded import LoadedModel
from modules.prompting.conditioning import Conditioning
from modules.prompting.tokens import ClipTokenizer

BACKWARD = "training step"
TRAINED_GUIDANCE = 1.0
"""The distilled guidance scale that steps are made with: images as they are, not exaggerated by a scale."""
ADVICE = "Choose a smaller budget, resolution or batch, or weights that are streamed."


@dataclass(frozen=True)
class Batch:
    """Batch that a step learns from: scaled latents [n, C, h, w], and either encodings or captions to be encoded now.
    `weights` [n] is what each image's loss counts, `masks` [n, 1, h, w] what each place does."""

    latents: Tensor
    conditionings: Sequence[Conditioning] | None = None
    captions: Sequence[Caption] = ()
    weights: Tensor | None = None
    masks: Tensor | None = None


@dataclass(frozen=True)
class StepResult:
    """The mean weighted loss of a step, the gradient's norm, and what was done because memory ran out."""

    loss: float
    norm: float
    fallbacks: tuple[str, ...] = ()


class Trainer:
    """Trained values next to a loaded model, and their optimizer. `close` takes them off the model."""

    def __init__(
        self, model: LoadedModel, config: TrainingConfig, encoder: CaptionEncoder, latent_size: tuple[int, int]
    ) -> None:
        if model.image_channels:
            raise InvalidValueError(
                f"{model.info.name} is a model for inpainting or edits, which adapters are not trained on. Choose the "
                "base model that it was made from; the adapter works on both."
            )
        self.model, self.config, self.encoder = model, config, encoder
        self.objective = Objective.of(model, config.loss, latent_size)
        self.layers: list[TrainedLayer] = []
        self.words: dict[str, dict[int, nn.Parameter]] = {}
        self.attached: Attached | None = None
        if config.adapter.type == "textual_inversion":
            self.words = {config.adapter.token or config.output.name: make_vectors(model, config)}
            encoder.use_words(self.words)
        else:
            self.layers = make_layers(model, config.adapter, config.training.seed)
            self.attached = attach(self.layers)
        self.optimizer = make_optimizer(self._groups(), config.training)
        self.average = MovingAverage(self.parameters, config.training.ema)
        self.step = 0
        self.is_torn = False  # a step ended in its middle: the values are those of no step
        self._checkpoints: CheckpointHandle | None = None
        self._splits: SplitHandle | None = None
        self._stack = ExitStack()
        self._use_memory_options()
        self.recovery = Recovery(_fallbacks(self), advice=ADVICE)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that is trained, in a fixed order."""
        vectors = [vector for by_width in self.words.values() for vector in by_width.values()]
        return [part for each in self.layers for part in each.parameters.values()] + vectors

    @property
    def trains_text(self) -> bool:
        """Whether captions are encoded again at each step."""
        return bool(self.words) or any(each.is_text for each in self.layers)

    def begin_with(self, path: Path) -> None:
        """Take the values of an adapter file, or for textual inversion of an embedding, to go on from.

        Raises `TrainingError` where its layers, ranks or numbers of vectors are others, and `AdapterError` for a file
        that cannot be read.
        """
        if self.words:
            embedding = read_embedding(path)
            take_over_vectors(next(iter(self.words.values())), embedding.vectors if embedding else {}, path.name)
        else:
            take_over(self.layers, read_adapter_file(path), path.name)
        self.average = MovingAverage(self.parameters, self.config.training.ema)

    def train_step(self, batches: Sequence[Batch], seed: int) -> StepResult:
        """A step on one batch, or on several whose gradients are added up. All that is drawn follows from `seed`.

        Where memory runs out, the fallbacks are applied one after the other, and the step is made again from its
        beginning. Raises `TrainingError` with the likely cause when the loss or a gradient is not finite; nothing has
        changed then.
        """
        options = self.config.training
        set_rate(self.optimizer, rate_factor(self.step, options))
        before = len(self.recovery.taken)
        if options.fused_backward:
            loss, norm = self._fused(batches, seed)
        else:
            loss = self.recovery.run(BACKWARD, lambda: self.gradients(batches, seed))
            norm = float(nn.utils.clip_grad_norm_(self.parameters, options.clip_gradients or float("inf")))
            if not isfinite(loss) or not isfinite(norm):
                self.optimizer.zero_grad(set_to_none=True)
                raise TrainingError(self._cause(loss))
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.average.update(self.step)
        return StepResult(loss, norm, tuple(taken.text for taken in self.recovery.taken[before:]))

    def _fused(self, batches: Sequence[Batch], seed: int) -> tuple[float, float]:
        """A step whose values are moved during the backward pass; returns the loss and the gradient's norm. Where it
        ends early, `is_torn` says whether some have moved and others not."""
        fused = FusedSteps(self.optimizer)

        def once() -> float:
            fused.begin_again()
            return self.gradients(batches, seed)

        self.is_torn = True
        try:
            with fused.during(self.parameters):
                loss = self.recovery.run(BACKWARD, once)
            self.is_torn = False
        except FusedGradientError as error:
            raise TrainingError(self._cause(0.0)) from error
        finally:
            self.is_torn = self.is_torn and fused.moved > 0
            self.optimizer.zero_grad(set_to_none=True)
        return loss, fused.norm

    def gradients(self, batches: Sequence[Batch], seed: int) -> float:
        """Fill the parameters' gradients again; returns the mean weighted loss."""
        self.optimizer.zero_grad(set_to_none=True)
        generator = torch.Generator().manual_seed(seed)
        total = 0.0
        for batch in batches:
            timesteps = self.objective.draw_timesteps(len(batch.latents), generator)
            noise = self.objective.draw_noise(tuple(batch.latents.shape), generator)
            loss = self.loss(batch, noise, timesteps) / len(batches)
            if self.config.training.fused_backward and not isfinite(float(loss.detach())):
                raise TrainingError(self._cause(float(loss.detach())))  # before anything has moved
            torch.autograd.backward(loss)
            total += float(loss.detach())
        return total

    def loss(self, batch: Batch, noise: Tensor, timesteps: Tensor) -> Tensor:
        """The weighted loss of a batch with this noise [n, C, h, w] and these timesteps [n]."""
        weights = self.objective.weights(timesteps)
        if batch.weights is not None:
            weights = weights * batch.weights
        losses = self.image_losses(batch, noise, timesteps)
        return (losses * weights.to(losses)).mean()

    def image_losses(self, batch: Batch, noise: Tensor, timesteps: Tensor) -> Tensor:
        """The loss of each image [n], without weights."""
        device = self.model.device
        noisy = self.objective.noisy(batch.latents.to(device), noise.to(device), timesteps.to(device))
        with torch.enable_grad() if torch.is_grad_enabled() else torch.no_grad():
            predicted = self.model.predict_once(noisy.x, noisy.times, self.context(batch))
        masks = None if batch.masks is None else batch.masks.to(device)
        return self.objective.losses(predicted, noisy.target, masks)

    def context(self, batch: Batch) -> DenoiserContext:
        """Return what the denoiser attends to."""
        conditionings = batch.conditionings
        if conditionings is None:
            conditionings = self.encoder.encode(batch.captions, torch.is_grad_enabled() and self.trains_text)
        found = batched(conditionings)
        if self.model.family.denoiser.guidance(self.model.unet) is not GuidanceType.DISTILLED:
            return found
        return guided(found, TRAINED_GUIDANCE)

    def close(self) -> None:
        """Take everything off the model, which is then as it was."""
        self.recovery.close()
        if self._splits is not None:
            self._splits.remove()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self.attached is not None:
            self.attached.detach()

    # -- memory --------------------------------------------------------------------------------------------------------

    def use_checkpointing(self, strategy: str) -> None:
        """Compute other blocks again; "" none."""
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        where = self.config.memory.offload
        offload = Path(where) if where not in ("", "ram") else where or None
        if strategy:
            self._checkpoints = enable_gradient_checkpointing(self.model.unet, strategy, offload=offload)

    def use_split(self, pieces: int) -> None:
        """Compute feed-forwards in so many pieces."""
        if self._splits is not None:
            self._splits.remove()
            self._splits = None
        if pieces > 1:
            self._splits = split_feed_forward(self.model.unet, SplitOptions(num_splits=pieces))

    def _use_memory_options(self) -> None:
        memory = self.config.memory
        self.use_checkpointing(memory.checkpointing)
        self.use_split(memory.split_feed_forward)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _groups(self) -> list[tuple[list[nn.Parameter], float]]:
        config = self.config
        vectors = [vector for by_width in self.words.values() for vector in by_width.values()]
        unet = [part for each in self.layers if not each.is_text for part in each.parameters.values()]
        text = [part for each in self.layers if each.is_text for part in each.parameters.values()]
        return [(unet + vectors, config.training.learning_rate), (text, config.text_rate)]

    def _cause(self, loss: float) -> str:
        config = self.config
        if self.model.plan.compute_dtype == torch.float16:
            cause = "The computation in fp16 is the likely cause: set model.compute to bf16 or fp32."
        elif self.step < max(5, config.training.warmup):
            cause = (
                "It came so early that a broken base or VAE, or a wrong alpha, is likelier than the learning rate: "
                "check the base by making an image with it."
            )
        else:
            cause = f"Choose a lower learning rate (it is {config.training.learning_rate:g})."
        what = "The loss" if not isfinite(loss) else "A gradient"
        return f"{what} is no longer a finite number at step {self.step + 1}; the last good state is kept. {cause}"


def guided(context: DenoiserContext, scale: float) -> DenoiserContext:
    """The context with a distilled guidance scale for each row."""
    scales = torch.full((len(context.crossattn),), scale, dtype=torch.float32)
    return replace(context, extra={**context.extra, "guidance": scales})


def make_vectors(model: LoadedModel, config: TrainingConfig) -> dict[int, nn.Parameter]:
    """Textual inversion's vectors [n, width] by the width of a text encoder, as the words of `init_text` have them,
    repeated as often as needed."""
    tokens = list(ClipTokenizer.standard().encode(config.adapter.init_text)) or [0]
    count = config.adapter.vectors
    chosen = torch.tensor((tokens * count)[:count])
    found = {}
    for name in model.family.texts.embedding_components:
        encoder = model.text_encoders[name]
        inner = getattr(encoder, "text_model", encoder)
        with torch.no_grad():
            vectors = inner.embeddings.token_embedding(chosen.to(model.device)).float().clone()
        found[vectors.shape[1]] = nn.Parameter(vectors)
    return found


@torch.no_grad()
def take_over_vectors(vectors: Mapping[int, nn.Parameter], start: Mapping[int, Tensor], name: str) -> None:
    """Begin with the vectors of an embedding, both by width. Raises `TrainingError` where their shapes are others."""
    for width, vector in vectors.items():
        known = start.get(width)
        if known is None or known.shape != vector.shape:
            has = f"{len(known)} vectors" if known is not None else "none"
            raise TrainingError(
                f"{name} cannot be resumed from: of the width {width} it has {has}, and {len(vector)} are wanted. "
                "Set adapter.vectors to the number that it has, or take an embedding of this family."
            )
        vector.copy_(known)


def _fallbacks(trainer: Trainer) -> tuple[Fallback, ...]:
    """Return what a step tries when memory runs out: all blocks computed again, then feed-forwards in pieces."""

    def checkpoint_all() -> Step | None:
        known = trainer._checkpoints
        if known is not None and len(known.chosen) == len(known.blocks):
            return None
        trainer.use_checkpointing("all")
        return Step("with every block computed again", lambda: None)

    def split() -> Step | None:
        if trainer._splits is not None:
            return None
        trainer.use_split(8)
        return Step("with feed-forwards in 8 pieces", lambda: None)

    return (
        Fallback("checkpointing", frozenset({BACKWARD}), checkpoint_all),
        Fallback("split feed-forward", frozenset({BACKWARD}), split),
    )
