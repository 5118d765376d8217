"""The text encoders in files of their own: their tensors under transformers' names."""

from __future__ import annotations

from modules.models.detection.parts import text_names
from modules.models.files.tensor_source import TensorSource
from modules.models.names.view import renamed


def bare_text_names(file: TensorSource) -> TensorSource:
    """Return a text encoder's file with transformers' names, see `text_names`."""
    names = text_names(file.entries, file.metadata.get("general.architecture", ""))
    return renamed(file, names) if names else file
