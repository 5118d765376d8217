"""`modules.safe`: reading pickled files. Here nothing in a pickle is run, whatever is asked for."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import refusing


def load(filename: Any, *args: Any, **kwargs: Any) -> Any:
    """The tensors of a file; raises what torch.load raises for a pickle that needs code."""
    import torch

    kwargs.pop("extra_handler", None)
    return torch.load(filename, *args, **{**kwargs, "weights_only": True})


def load_with_extra(filename: Any, extra_handler: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Load the same; handlers are not asked."""
    return load(filename, *args, **kwargs)


def unsafe_torch_load(filename: Any, *args: Any, **kwargs: Any) -> Any:
    """Load the same, unless the extension asks for code to be run by weights_only=False."""
    import torch

    return torch.load(filename, *args, **{"weights_only": True, **kwargs})


def check_pt(filename: Any, extra_handler: Any = None) -> None:
    """Nothing in a pickle is run when it is read, so that nothing has to be looked for."""


def check_zip_filenames(filename: Any, names: Any) -> None:
    """Check the same."""


global_extra_handler: Any = None


class Extra:
    """Accepted; handlers are not asked."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __enter__(self) -> None:
        return

    def __exit__(self, *error: object) -> None:
        return


__getattr__ = refusing(
    "safe", dict.fromkeys(("RestrictedUnpickler", "TypedStorage"), "safe.load reads tensors of a pickle.")
)
