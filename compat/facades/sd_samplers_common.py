"""`modules.sd_samplers_common`: what describes a sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from compat.facades.refusal import refusing


class SamplerData(NamedTuple):
    """One sampler: `name`, `constructor` (refused), `aliases`, `options`."""

    name: str
    constructor: Callable[..., Any]
    aliases: list[str]
    options: dict[str, Any]

    def total_steps(self, steps: int) -> int:
        """How often the model is called."""
        return steps * 2 if self.options.get("second_order") else steps


class SamplerDataTuple(SamplerData):
    """Row of the same."""


_INSIDE = "a sampler is chosen by its name, p.sampler_name; on_cfg_denoiser and its like see and change its steps."
NAMES: tuple[str, ...] = (
    "Sampler",
    "samples_to_image_grid",
    "sample_to_image",
    "decode_first_stage",
    "images_tensor_to_samples",
)
NAMES += ("setup_img2img_steps", "single_sample_to_image", "store_latent", "approximation_indexes", "TorchHijack")
NAMES += ("samples_to_images_tensor", "apply_refiner", "replace_torchsde_browinan")
REASONS = dict.fromkeys(NAMES, _INSIDE)


class InterruptedException(BaseException):
    """Exception of the reference UI's samplers when a job is stopped; never raised here."""


def is_sampler_using_eta_noise_seed_delta(p: Any) -> bool:
    """Whether the setting eta_noise_seed_delta changes the noise of a job's sampler."""
    from modules.sampling.catalog import SAMPLERS, EtaSource

    return p.sampler_name in SAMPLERS and SAMPLERS.get(p.sampler_name).eta is not EtaSource.NONE


__getattr__ = refusing("sd_samplers_common", REASONS)
