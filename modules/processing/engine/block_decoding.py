"""Which models of a job have the 8-bit weights of their blocks decoded together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from modules.memory.block_decoding import block_classes, decoding_blocks, is_on_cuda
from modules.memory.graphs import LEFT_BYTES
from modules.models.loading.loaded import LoadedModel
from modules.system.devices import DeviceReading


def kept_bytes(model: LoadedModel, wanted_gb: float, headroom: int, now: DeviceReading | None) -> int:
    """Return how many bytes of decoded weights may stay on the GPU: what the setting allows, of what is free beyond the
    `headroom` for other programs and a step. Nothing where weights are streamed, since memory is short there."""
    if wanted_gb <= 0 or now is None or model.streaming is not None:
        return 0
    unused = now.free + now.reserved - now.allocated + model.decoded_weights.bytes
    return max(0, min(int(wanted_gb * 1e9), unused - headroom - max(model.step_bytes, LEFT_BYTES)))


@contextmanager
def using_block_decoding(model: LoadedModel, kept_bytes: int = 0) -> Iterator[None]:
    """While open, denoiser and text encoders decode what a block stores in 8 bits at once, on CUDA devices. The
    denoiser keeps up to `kept_bytes` of decoded weights. Which blocks are compiled must be known before."""
    with ExitStack() as contexts:
        if is_on_cuda(model.device):
            kept = model.decoded_weights
            classes = block_classes(model.unet, model.family.denoiser.blocks.decoded)
            contexts.enter_context(decoding_blocks(model.unet, classes, is_on_cuda, kept, kept_bytes))
            for root in model.text_encoders.values():
                contexts.enter_context(decoding_blocks(root, block_classes(root)))
        yield
