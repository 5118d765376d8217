"""Objective of a training: noise levels of the family, the target of its prediction, and the weights of the loss.

Models predict noise (eps), velocity (v; Salimans and Ho 2022, arXiv:2202.00512), or the flow `noise - x0` (Esser et
al. 2024, arXiv:2403.03206), whose timesteps are drawn from a logit-normal distribution as in that paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lib_training.config import LossConfig
from modules.errors import InvalidValueError
from modules.models.loading.loaded import LoadedModel
from modules.sampling.flow import TRAINED_TIMESTEPS, FlowSchedule, NoiseLevels
from modules.settings.values import Settings

OUT_OF = 1000
"""What the options' timesteps are counted in, whatever number of noise levels a model has."""
MAX_SNR = 1000.0  # of debiased estimation, as others bound it


@dataclass(frozen=True)
class Noisy:
    """Tensors that the denoiser is given and should predict: `x` and `target` [n, C, h, w], `times` [n]."""

    x: Tensor
    times: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of one model. `prediction` is "epsilon", "v_prediction" or "flow"."""

    levels: NoiseLevels
    prediction: str
    options: LossConfig

    @classmethod
    def of(cls, model: LoadedModel, options: LossConfig, latent_size: tuple[int, int]) -> Objective:
        """For latents of this size (height, width)."""
        architecture = model.architecture
        levels = model.family.noise.levels(architecture.noise_schedule, Settings(), latent_size)
        if options.shift is not None:
            if not isinstance(levels, FlowSchedule):
                raise InvalidValueError("loss.shift is for flow models; this one predicts noise. Leave it empty.")
            levels = FlowSchedule(options.shift, levels.timesteps)
        if isinstance(levels, FlowSchedule) and options.debiased:
            raise InvalidValueError("loss.debiased weighs by the SNR of models that predict noise; this one is a flow.")
        if architecture.prediction_type.startswith("edm"):
            raise InvalidValueError(
                f"{model.info.name} was trained in the preconditioning of EDM, for which there is no loss here. Train "
                "on the base model that it was made from."
            )
        return cls(levels, architecture.prediction_type, options)

    @property
    def count(self) -> int:
        """How many noise levels there are; a timestep is the index of one."""
        return len(self.levels.sigmas)

    def draw_timesteps(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` timesteps, int64: even, or of a flow model denser in the middle, between the options' bounds."""
        low = self.options.min_timestep * self.count // OUT_OF
        high = min((self.options.max_timestep + 1) * self.count // OUT_OF, self.count) - 1
        if isinstance(self.levels, FlowSchedule):
            share = torch.sigmoid(torch.randn(count, generator=generator))
        else:
            share = torch.rand(count, generator=generator)
        return (low + (share * (high + 1 - low)).long()).clamp(max=high)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Unit normal noise [n, C, h, w], with the options' offset for each channel."""
        noise = torch.randn(shape, generator=generator)
        if self.options.noise_offset and not isinstance(self.levels, FlowSchedule):  # a flow's noise is a whole end
            noise = noise + self.options.noise_offset * torch.randn((*shape[:2], 1, 1), generator=generator)
        return noise

    def noisy(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Noisy:
        """Scaled latents [n, C, h, w] float32 with noise at these timesteps [n]."""
        if isinstance(self.levels, FlowSchedule):
            sigma = self.levels.sigmas[timesteps.cpu()].to(latents.device)
            share = sigma.view(-1, 1, 1, 1)
            return Noisy((1 - share) * latents + share * noise, sigma * TRAINED_TIMESTEPS, noise - latents)
        alpha = self._alphas(timesteps).to(latents.device).view(-1, 1, 1, 1)
        x = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        if self.prediction == "v_prediction":
            return Noisy(x, timesteps, alpha.sqrt() * noise - (1 - alpha).sqrt() * latents)
        return Noisy(x, timesteps, noise)

    def weights(self, timesteps: Tensor) -> Tensor:
        """Return what the loss at these timesteps [n] counts, float32 on the CPU."""
        if isinstance(self.levels, FlowSchedule):
            return torch.ones(len(timesteps))
        alpha = self._alphas(timesteps)
        snr = alpha / (1 - alpha)
        is_v = self.prediction == "v_prediction"
        if self.options.debiased:
            return 1 / (snr + 1) if is_v else 1 / snr.clamp(max=MAX_SNR).sqrt()
        if self.options.min_snr is not None:
            bounded = snr.clamp(max=self.options.min_snr)
            return bounded / (snr + 1) if is_v else bounded / snr
        return torch.ones(len(timesteps))

    def losses(self, predicted: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of each image [n], unweighted, float32. `mask` [n, 1, h, w]: what each place counts."""
        error = predicted.float() - target.float()
        if self.options.type == "huber":
            c = self.options.huber_c
            places = 2 * c * ((error.square() + c * c).sqrt() - c)
        else:
            places = error.square()
        return (places if mask is None else places * mask.to(places)).mean(dim=(1, 2, 3))

    def _alphas(self, timesteps: Tensor) -> Tensor:
        assert not isinstance(self.levels, FlowSchedule)
        return self.levels.alphas_cumprod.float()[timesteps.cpu()]
