"""Our own files; names that extensions import from here are those of `compat.facades.ui`."""

from compat.finder import names_from

__getattr__ = names_from("ui")
