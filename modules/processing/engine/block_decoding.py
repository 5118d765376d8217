"""Which models of a job have the 8-bit weights of their blocks decoded together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from modules.memory.block_decoding import block_classes, decoding_blocks, is_on_cuda
from modules.models.loading.loaded import LoadedModel


@contextmanager
def using_block_decoding(model: LoadedModel, kept_bytes: int = 0, ahead: bool = True) -> Iterator[None]:
    """While open, denoiser and text encoders decode what a block stores in 8 bits at once, on CUDA devices. The denoiser
    keeps up to `kept_bytes` of decoded weights. Which blocks are compiled must be known before."""
    with ExitStack() as contexts:
        if is_on_cuda(model.device):
            kept = model.decoded_weights
            contexts.enter_context(
                decoding_blocks(model.unet, block_classes(model.unet), is_on_cuda, kept, kept_bytes, ahead)
            )
            for root in model.text_encoders.values():
                contexts.enter_context(decoding_blocks(root, block_classes(root)))
        yield
