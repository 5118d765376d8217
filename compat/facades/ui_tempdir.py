"""`modules.ui_tempdir`: files that a page shows; Gradio keeps them."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import refusing


def register_tmp_file(gradio: Any, filename: str) -> None:
    """Gradio keeps what it was given to show."""


def check_tmp_file(gradio: Any, filename: str) -> bool:
    """Whether a file is one of these; the program keeps no list."""
    return False


def is_gradio_temp_path(path: str) -> bool:
    """Whether a file lies in the folder of uploads."""
    return "gradio" in str(path)


def install_ui_tempdir_override() -> None:
    """Gradio keeps what it was given to show."""


def on_tmpdir_changed() -> None:
    """The folder of uploads is the program's."""


def cleanup_tmpdr() -> None:
    """Uploads are removed after a day."""


__getattr__ = refusing("ui_tempdir", {"save_pil_to_file": "return the image itself to a component of Gradio."})
