"""The setting "Compile blocks": which blocks of a model `torch.compile` gets, and for what it has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modules.memory.compiling import CompiledBlocks, compiler_problem, stored_problem
from modules.models.loading.loaded import LoadedModel


@contextmanager
def using_compiled_blocks(
    model: LoadedModel, wanted: bool, compiled: CompiledBlocks, tell: Callable[[str], None]
) -> Iterator[None]:
    """While open, the denoiser's blocks are compiled at their first use, if that is `wanted`; where that has no effect,
    `tell` gets the reason."""
    if not wanted:
        yield
        return
    problem = compiled.problem or compiler_problem(model.device) or stored_problem(model.unet)
    if problem is not None:
        tell(f"torch.compile has no effect: {problem}.")
        yield
        return
    blocks = (*model.family.denoiser.blocks.compiled, *getattr(model.unet, "_repeated_blocks", ()))
    with compiled.around(model.unet, blocks, tell):
        yield
