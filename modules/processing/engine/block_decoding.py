"""Which models of a job have the 8-bit weights of their blocks decoded together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from modules.memory.block_decoding import block_classes, decoding_blocks, is_on_cuda
from modules.models.loading.loaded import LoadedModel


@contextmanager
def using_block_decoding(model: LoadedModel) -> Iterator[None]:
    """While open, denoiser and text encoders decode what a block stores in 8 bits at once, on CUDA devices. Which
    blocks are compiled must be known before."""
    with ExitStack() as contexts:
        if is_on_cuda(model.device):
            known = model.family.denoiser.blocks.decoded
            contexts.enter_context(decoding_blocks(model.unet, block_classes(model.unet, known)))
            for root in model.text_encoders.values():
                contexts.enter_context(decoding_blocks(root, block_classes(root)))
        yield
