"""`modules.ui_gradio_extensions`: addresses of files of extensions on the page."""

from __future__ import annotations

from pathlib import Path

from compat.facades import paths_internal
from compat.facades.refusal import refusing


def webpath(fn: str) -> str:
    """The address under which the page finds a file of an extension; a changed file has another one."""
    path = Path(fn)
    inside = path.resolve().relative_to(paths_internal.script_path) if _is_below(path) else path.resolve()
    return f"file={inside.as_posix()}?{path.stat().st_mtime if path.exists() else 0}"


def _is_below(path: Path) -> bool:
    return path.resolve().is_relative_to(Path(paths_internal.script_path))


_FILES = "javascript/ and style.css of an extension are added to the page."
__getattr__ = refusing(
    "ui_gradio_extensions", dict.fromkeys(("javascript_html", "css_html", "reload_javascript"), _FILES)
)
