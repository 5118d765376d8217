"""Our own files; names that extensions import from here are those of `modules.compat.postprocessing`."""

from modules.facades import names_from

__getattr__ = names_from("postprocessing")
