"""What a network predicts, found out by running it once."""

import torch

from modules.models.loaded import LoadedModel

PROBE_SIDE = 8  # latents
LAST_TIMESTEP = 999.0
V_BELOW = -1.0


@torch.inference_mode()
def predicts_v(model: LoadedModel) -> bool:
    """Whether the UNet predicts v and not eps.

    At the last timestep x is almost pure noise. A network that predicts eps gives x back, one that predicts v gives
    -x0, which for an even input lies far below it.
    """
    x = torch.full((1, model.latent_channels, PROBE_SIDE, PROBE_SIDE), 0.5, device=model.device)
    context = torch.full((1, 77, model.architecture.unet_sizes.context_width), 0.5, device=model.device)
    prediction = model.predict(x, torch.tensor([LAST_TIMESTEP], device=model.device), context)
    return float((prediction - x).mean()) < V_BELOW
