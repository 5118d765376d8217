"""`modules.scripts_postprocessing`: operations of the Extras tab."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import refusing
from modules.postprocessing.operation import Field, PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operation import SharedInfo as PostprocessedImageSharedInfo

__all__ = ["Field", "PostprocessedImage", "PostprocessedImageSharedInfo", "ScriptPostprocessing", "wrap_call"]


def wrap_call(func: Any, filename: str, funcname: str, *args: Any, default: Any = None, **kwargs: Any) -> Any:
    """Call a function; what it raises is written into the log, and `default` is given."""
    from compat.facades.errors import display

    try:
        return func(*args, **kwargs)
    except Exception as error:  # somebody else's function, whose failure is reported
        display(error, f"{filename}/{funcname}")
    return default


_REASONS = {"ScriptPostprocessingRunner": "scripts.scripts_postproc lists the operations of the Extras tab."}
__getattr__ = refusing("scripts_postprocessing", _REASONS)
