"""The program. Names of the reference UI's modules are found in `compat.facades` (see `compat.finder`)."""

from compat.finder import install
from compat.finder import submodule as __getattr__

__all__ = ["__getattr__"]
install()
