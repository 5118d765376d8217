"""The program. Names of the reference UI's modules are found in `modules.compat` (see `modules.facades`)."""

from modules.facades import install
from modules.facades import submodule as __getattr__

__all__ = ["__getattr__"]
install()
