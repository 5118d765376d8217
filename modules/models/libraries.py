"""Classes and functions of diffusers and transformers, which are named where they are used and imported then: what all
of them need takes three seconds and 150 MB, and each model needs few of the others."""

import sys
from importlib import import_module
from typing import Any

from modules.system.lean_imports import import_when_used, without_garbage_collection

BASES = ("transformers.modeling_utils", "diffusers.models.modeling_utils")
"""What every model of the two is made of."""
SELDOM_USED = {"scipy.stats": (), "scipy.integrate": (), "scipy.optimize": ("linear_sum_assignment",)}
"""What diffusers' schedulers and transformers' losses import, which nothing here calls: packages, and what is imported
from them by name. 35 MB and more than a second."""


def import_libraries() -> None:
    """Import what every model needs. Best done before there is one, see `without_garbage_collection`."""
    if all(base in sys.modules for base in BASES):
        return
    for package, names in SELDOM_USED.items():
        import_when_used(package, *names)
    with without_garbage_collection():
        for base in BASES:
            import_module(base)


def library_name(path: str) -> Any:
    """Return an object of the two libraries by its name: "diffusers.UNet2DConditionModel"."""
    import torch

    module, _, name = path.rpartition(".")
    with torch.device("cpu"):  # under `on_meta` too, where what is made by the imports would have no values
        import_libraries()
        return getattr(import_module(module), name)
