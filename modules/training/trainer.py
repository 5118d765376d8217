"""One training run of a LoRA: noise, prediction, loss, a step of the factors. The base model never changes."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from modules.memory.checkpointing import CheckpointHandle, enable_gradient_checkpointing
from modules.models.loaded import LoadedModel
from modules.prompting.tokens import ClipTokenizer
from modules.sampling.discrete import scaled_linear_alphas_cumprod
from modules.training.factors import Factors, attach, factors_for
from modules.training.images import LatentSet, token_ids
from modules.training.loss import diffusion_loss, draw_noise, draw_timesteps, loss_weights, rate_factor
from modules.training.options import LoraOptions, TrainingError

REPORT_STEPS = 25


class LoraTrainer:
    """Factors alongside a loaded model, and their optimizer. `close` takes them off the model."""

    def __init__(self, model: LoadedModel, options: LoraOptions) -> None:
        self.model = model
        self.options = options
        adapters: dict[str, Any] = {part.name: part.module for part in model.components}
        self._unet, self._text_encoder = adapters["unet"], adapters["text_encoder"]
        self.factors: list[Factors] = factors_for(self._unet, self._text_encoder, options, model.device)
        self._handles = attach(self.factors)
        self._tokenizer = ClipTokenizer.standard()
        self._trains_text = any(each.is_text for each in self.factors)
        self._parameters = [part for each in self.factors for part in (each.down, each.up)]
        text = [part for each in self.factors if each.is_text for part in (each.down, each.up)]
        unet = [part for each in self.factors if not each.is_text for part in (each.down, each.up)]
        groups = ((unet, options.learning_rate), (text, options.text_rate))
        self._optimizer = torch.optim.AdamW(
            [{"params": params, "lr": rate, "full_rate": rate} for params, rate in groups if params],
            weight_decay=options.weight_decay,
            betas=(0.9, 0.99),
        )
        schedule = model.architecture.noise_schedule
        alphas = scaled_linear_alphas_cumprod(schedule.linear_start, schedule.linear_end, schedule.timesteps)
        self._alphas = alphas.to(model.device)
        self._weights = loss_weights(self._alphas, options.weight_limit, options.min_snr)
        self._checkpoints: CheckpointHandle | None = None
        if options.checkpointing is not None:
            where = options.checkpointing_offload
            offload = where if where in (None, "ram") else Path(where)
            self._checkpoints = enable_gradient_checkpointing(self._unet, options.checkpointing, offload=offload)
        self.step = 0
        self.seconds = 0.0

    @property
    def progress(self) -> float:
        """From 0 to 1, by steps or by time, whichever is further."""
        by_steps = self.step / self.options.steps
        if self.options.minutes is None:
            return by_steps
        return max(by_steps, self.seconds / (60 * self.options.minutes))

    def train_step(self, latents: Tensor, captions: list[str], generator: torch.Generator) -> float:
        """One step on scaled latents [n, C, h, w]; returns the loss. Raises `TrainingError` when it is not finite."""
        options, device = self.options, self.model.device
        factor = rate_factor(self.step, self.progress, options.warmup_steps, options.final_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = group["full_rate"] * factor
        noise = draw_noise(latents.shape, options.offset_noise, generator).to(device)
        timesteps = draw_timesteps(len(captions), options.high_noise_share, generator, len(self._alphas)).to(device)
        loss = diffusion_loss(
            self._noise_error(latents.to(device), noise, timesteps, captions),
            self._weights[timesteps],
            options.flat_weight,
        )
        if not torch.isfinite(loss):
            raise TrainingError(
                f"The loss is no longer a finite number at step {self.step + 1}. Choose a lower learning rate "
                f"(it is {options.learning_rate:g})."
            )
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def close(self) -> None:
        """Take the factors off the model, which is then as it was."""
        for handle in self._handles:
            handle.remove()
        if self._checkpoints is not None:
            self._checkpoints.close()

    def _noise_error(self, latents: Tensor, noise: Tensor, timesteps: Tensor, captions: list[str]) -> Tensor:
        """The error of the predicted noise [n, C, h, w], float32; for v models that which v's error stands for."""
        alpha = self._alphas[timesteps].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        with torch.set_grad_enabled(self._trains_text), self.model.computing():
            tokens = token_ids(self._tokenizer, captions).to(self.model.device)
            context = self._text_encoder(input_ids=tokens).last_hidden_state
        with self.model.computing():
            dtype = self.model.plan.offload_dtype
            output = self._unet(noisy.to(dtype), timesteps, encoder_hidden_states=context.to(dtype)).sample
        predicted: Tensor = output.float()
        if self.model.architecture.prediction_type == "v_prediction":
            velocity = alpha.sqrt() * noise - (1 - alpha).sqrt() * latents
            return alpha.sqrt() * (predicted - velocity)
        return predicted - noise


def train_lora(trainer: LoraTrainer, images: LatentSet) -> Iterator[tuple[int, float]]:
    """Train until the options' steps or minutes are spent; yields (step, mean loss) every 25 steps and at the end."""
    options = trainer.options
    rng, generator = Random(options.seed), torch.Generator().manual_seed(options.seed)
    losses: list[float] = []
    while trainer.progress < 1:
        began = time.monotonic()
        latents, captions = images.batch(options.batch, rng)
        captions = ["" if rng.random() < options.empty_prompts else caption for caption in captions]
        losses.append(trainer.train_step(latents, captions, generator))
        trainer.seconds += time.monotonic() - began
        if len(losses) == REPORT_STEPS or trainer.progress >= 1:
            yield trainer.step, sum(losses) / len(losses)
            losses = []
