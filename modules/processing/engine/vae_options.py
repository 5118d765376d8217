"""Which autoencoder a job's settings ask for, and how the VAE is run."""

import torch

from modules.models.vae.running import VaeRules
from modules.settings.values import Settings

FULL, TINY, APPROX = "Full", "TAESD", "Approx NN"


def vae_rules_of(settings: Settings) -> VaeRules:
    """Tiles and what to do about NaN: bfloat16 comes first where both are allowed."""
    after_nan = []
    if settings.vae.auto_vae_precision_bfloat16:
        after_nan.append(torch.bfloat16)
    if settings.vae.auto_vae_precision:
        after_nan.append(torch.float32)
    return VaeRules(settings.vae.vae_tile_size, tuple(after_nan))
