"""Classes and functions of diffusers and transformers, which are named where they are used and imported then: what all
of them need takes three seconds and 150 MB, and each model needs few of the others."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from modules.system.lean_imports import import_when_used, unchanged_until_used, without_garbage_collection

BASES = ("transformers.modeling_utils", "diffusers.models.modeling_utils")
"""What every model of the two is made of."""
SELDOM_USED = {"scipy.stats": (), "scipy.integrate": (), "scipy.optimize": ("linear_sum_assignment",)}
"""What diffusers' schedulers and transformers' losses import, which nothing here calls: packages, and what is imported
from them by name. 35 MB and more than a second."""


NOT_WHOLE = ("diffusers.models.transformers", "transformers.models")
"""Packages that import, or look through, all the models there are, for those who import one."""
COMPILER, SYMBOLS = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
"""PyTorch's compiler and sizes that are symbols, with sympy, 70 MB. The two libraries mark functions for the one, and
operations on the meta device check what they are given with the other; nothing else is needed before one compiles, or
runs a model without memory."""


def import_libraries() -> None:
    """Import what every model needs. Best done before there is one, see `without_garbage_collection`."""
    if all(base in sys.modules for base in BASES):
        return
    for package, names in SELDOM_USED.items():
        import_when_used(package, *names)
    for package in (COMPILER, SYMBOLS):
        import_when_used(package)
    unchanged_until_used(SYMBOLS, "expect_true")
    marks = ("allow_in_graph", "assume_constant_result", "disable")
    # The second is what a run without memory reads of it.
    unchanged_until_used(COMPILER, *marks, parts=("_trace_wrapped_higher_order_op", "config"))
    with without_garbage_collection(), _leanly():
        for package in NOT_WHOLE:
            import_when_used(package, parts_alone=True)
        for base in BASES:
            import_module(base)


def library_name(path: str) -> Any:
    """Return an object of the two libraries by its name: "diffusers.UNet2DConditionModel"."""
    import torch

    module, _, name = path.rpartition(".")
    with torch.device("cpu"):  # under `on_meta` too, where what is made by the imports would have no values
        import_libraries()
        with _leanly():
            return getattr(import_module(module), name)


@contextmanager
def _leanly() -> Iterator[None]:
    """While open, what is imported finds a PyTorch that does not distribute models, of which transformers would import
    50 MB with sympy."""
    from torch import distributed

    is_available = distributed.is_available
    distributed.is_available = _is_not
    try:
        yield
    finally:
        distributed.is_available = is_available


def _is_not() -> bool:
    return False
