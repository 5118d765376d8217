"""Blocks of a model compiled by `torch.compile`, one by one: repeated blocks of one class share what was compiled.

A block is compiled once for each shape of its inputs, at its first use, which takes seconds to minutes; what was
compiled is kept on disk by PyTorch (`TORCHINDUCTOR_CACHE_DIR`). Where compiling fails, the block and all others compute
as they are, from that call on. Hooks around a block stay outside; hooks inside of it and changed weights are traced
with it, so that another LoRA may compile it once more.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.memory.hook_chain import HookOrder, has_foreign_forward, register_hook
from modules.memory.layer import stored_state
from modules.memory.streaming.streamer import keep_out_of_graphs

log = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
THREADS_VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"
COMPILERS = ("g++", "clang++", "c++")
MAX_SHAPES = 64
"""Shapes and kinds of inputs that one class of blocks is compiled for; further ones are computed as they are."""


def keep_compiled_in(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Where PyTorch keeps what it compiled, and that it compiles in this process and not in one more for each core,
    unless the environment says so already."""
    environment.setdefault(CACHE_VARIABLE, str(folder))
    environment.setdefault(THREADS_VARIABLE, "1")


def compiler_problem(
    device: torch.device,
    which: Callable[[str], str | None] = shutil.which,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """Why nothing can be compiled for `device`, with what to do; None where a compiler is found."""
    if device.type == "cpu":
        wanted = environment.get("CXX", "")
        if (wanted and which(wanted)) or any(which(name) for name in COMPILERS) or which("cl"):
            return None
        return "there is no C++ compiler (install g++, or name one in the environment variable CXX)"
    if device.type == "cuda":
        return None if find_spec("triton") else "the package triton is not installed"
    return f"PyTorch does not compile for {device.type} well"


def stored_problem(module: nn.Module) -> str | None:
    """Why blocks of `module` should not be compiled: its layers multiply without decoding, which tracing would undo, or
    their weights are brought when they are used."""
    for layer in module.modules():
        state = stored_state(layer)
        if state is not None and state.product is not None:
            return "its layers multiply in 8 bits"
        if state is not None and state.fetch is not None:
            return "its weights are streamed"
    return None


@dataclass
class CompiledBlocks:
    """The compiled blocks, by class; kept over jobs. `problem`: why compiling failed."""

    backend: str | Callable[..., Any] = "inductor"
    problem: str | None = None
    _forwards: dict[type[nn.Module], Callable[..., Any]] = field(default_factory=dict)

    @contextmanager
    def around(
        self, module: nn.Module, classes: Collection[str], tell: Callable[[str], None] = log.warning
    ) -> Iterator[int]:
        """While open, blocks inside `module` whose class or a base of it has one of these names are compiled at their
        next use; gives how many there are. `tell` gets one sentence if compiling fails."""
        blocks = [block for block in module.modules() if _is_one_of(block, classes) and not has_foreign_forward(block)]
        with ExitStack() as undo:
            for block in blocks:
                hook = _Compiled(self, tell)
                undo.callback(register_hook(block, hook, HookOrder.COMPILED).remove)
            yield len(blocks)

    def forward_of(self, block: nn.Module) -> Callable[..., Any]:
        """The compiled forward of the block's class, to be called with the block."""
        known = self._forwards.get(type(block))
        if known is None:
            keep_out_of_graphs()
            known = torch.compile(type(block).forward, backend=self.backend, dynamic=False)
            self._forwards[type(block)] = known
        return known


@dataclass(frozen=True)
class _Compiled:
    """The hook of one block."""

    blocks: CompiledBlocks
    tell: Callable[[str], None]

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        from torch._dynamo import config  # slow to import, and needed only here
        from torch._dynamo.exc import TorchDynamoException

        if self.blocks.problem is not None or torch.is_grad_enabled():
            return inner(*args, **kwargs)
        try:
            with config.patch(recompile_limit=MAX_SHAPES, accumulated_recompile_limit=MAX_SHAPES * MAX_SHAPES):
                return self.blocks.forward_of(module)(module, *args, **kwargs)
        except TorchDynamoException as error:
            self.blocks.problem = _first_line(error)
            self.tell(f"torch.compile has no effect: compiling failed ({self.blocks.problem}).")
        return inner(*args, **kwargs)


def _first_line(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error  # what the compiler said, where it was one
    lines = [line.strip() for line in str(inner).strip().splitlines() if line.strip()]
    return lines[0] if lines else type(inner).__name__


def _is_one_of(module: nn.Module, classes: Collection[str]) -> bool:
    return any(each.__name__ in classes for each in type(module).__mro__)
