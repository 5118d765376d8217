"""`modules.face_restoration`: the restorers of faces."""

from __future__ import annotations

from typing import Any

from PIL import Image

from compat.facades.refusal import refusing
from compat.host import host_now
from modules.faces.restorer_types import NAMES


class FaceRestoration:
    """One restorer: `name()`, `restore(array [H,W,3])`."""

    def __init__(self, name: str = "None") -> None:
        self._name = name

    def name(self) -> str:
        """Name it as the setting does."""
        return self._name

    def restore(self, np_image: Any) -> Any:
        """The image with its faces restored."""
        import numpy as np

        weight = host_now().settings.current.face_restoration.code_former_weight
        return np.asarray(host_now().engine.faces.restore(Image.fromarray(np_image), self._name, weight))


def restorers() -> list[FaceRestoration]:
    """All of them."""
    return [FaceRestoration(name) for name in NAMES]


def restore_faces(np_image: Any) -> Any:
    """The image restored by the model of the settings."""
    name = host_now().settings.current.face_restoration.face_restoration_model
    return FaceRestoration(name).restore(np_image)


__getattr__ = refusing("face_restoration", {})
