"""Changes of convolutions for a job: a tiny autoencoder instead of the VAE, edges that wrap around."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from modules.memory.hook_chain import replace_attribute
from modules.models.autoencoders.tiny_vae import TinyHalf, TinyVae, read_tiny
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER, TinyVaeFolders
from modules.models.loading.loaded import LoadedModel
from modules.processing.request.request import GenerationRequest
from modules.processing.request.stages import encodes_images
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
    with circular_padding(halves, request.tiling), ExitStack() as undo:
        undo.callback(replace_attribute(model, "tiny_vae", tiny).remove)
        yield


def read_half(model: LoadedModel, half: str, folders: TinyVaeFolders) -> TinyHalf:
    """The "decoder" or "encoder" for this model's latents. Raises `CheckpointError`."""
    path = folders.get(half, model.info, model.family.latents.tiny_vae)
    return read_tiny(path, half, model.latent_channels, model.downscale)


@contextmanager
def circular_padding(modules: Iterable[nn.Module], enabled: bool) -> Iterator[None]:
    """While open, all Conv2d in `modules` pad with what lies at the opposite edge; afterwards they are as before."""
    with ExitStack() as undo:
        for convolution in [m for module in modules for m in module.modules() if isinstance(m, nn.Conv2d) and enabled]:
            undo.callback(replace_attribute(convolution, "padding_mode", "circular").remove)
        yield
