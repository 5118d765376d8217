"""Which autoencoder a job's settings ask for, and whether the job needs an encoder at all."""

from modules.processing.pipeline.upscaling import LATENT_UPSCALE_MODES
from modules.processing.request import GenerationRequest

FULL, TINY, APPROX = "Full", "TAESD", "Approx NN"


def encodes_images(request: GenerationRequest) -> bool:
    """Whether an image becomes a latent on the way: where hires fix enlarges pixels."""
    return request.hires is not None and request.hires.upscaler not in LATENT_UPSCALE_MODES
