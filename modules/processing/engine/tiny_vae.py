"""What a job changes about convolutions: a tiny autoencoder instead of the VAE, edges that wrap around."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from modules.models.loaded import LoadedModel
from modules.models.vae.tiny_vae import TinyHalf, TinyVae, read_tiny
from modules.models.vae.tiny_vae_files import DECODER, ENCODER, TinyVaeFolders
from modules.processing.pipeline.stages import encodes_images
from modules.processing.request import GenerationRequest
from modules.settings.sections.stable_diffusion import TINY


@contextmanager
def using_tiny_vae(model: LoadedModel, request: GenerationRequest, folders: TinyVaeFolders) -> Iterator[None]:
    """While open, `model` decodes, and encodes if the job does that, as the request's settings say.

    Raises `CheckpointError` for a file that is missing (before anything is computed) or unusable.
    """
    settings = request.settings
    tiny = TinyVae()
    if settings.vae.sd_vae_decode_method == TINY:
        tiny.decoder = read_half(model, DECODER, folders)
    if settings.vae.sd_vae_encode_method == TINY and encodes_images(request):
        tiny.encoder = read_half(model, ENCODER, folders)
    halves = [half.module for half in (tiny.decoder, tiny.encoder) if half is not None]
    before = model.tiny_vae
    model.tiny_vae = tiny
    try:
        with circular_padding(halves, request.tiling):
            yield
    finally:
        model.tiny_vae = before


def read_half(model: LoadedModel, half: str, folders: TinyVaeFolders) -> TinyHalf:
    """The "decoder" or "encoder" for this model's latents. Raises `CheckpointError`."""
    path = folders.get(half, model.info, model.family.tiny_vae)
    return read_tiny(path, half, model.latent_channels, model.downscale)


@contextmanager
def circular_padding(modules: Iterable[nn.Module], enabled: bool) -> Iterator[None]:
    """While open, all Conv2d in `modules` pad with what lies at the opposite edge; afterwards they are as before."""
    convolutions = [m for module in modules for m in module.modules() if isinstance(m, nn.Conv2d)] if enabled else []
    before = [convolution.padding_mode for convolution in convolutions]
    try:
        for convolution in convolutions:
            convolution.padding_mode = "circular"
        yield
    finally:
        for convolution, mode in zip(convolutions, before, strict=True):
            convolution.padding_mode = mode
