"""From a restorer's file to a model that is called with an aligned face."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from modules.errors import CheckpointError
from modules.faces.restorer_types import CODEFORMER, GFPGAN, RestorerType
from modules.upscalers.loading import load_network
from modules.upscalers.spandrel_import import import_spandrel

EXTRA_PACKAGE = "spandrel_extra_arches"


class FaceModel(Protocol):
    """Model that restores one aligned face."""

    def restore(self, face: Image.Image, weight: float) -> Image.Image:
        """RGB 512x512 to the same size."""


@dataclass(frozen=True)
class SpandrelFaceModel:
    """A model that spandrel has read. `descriptor` is its `ImageModelDescriptor`."""

    type: RestorerType
    descriptor: Any
    device: torch.device

    @torch.inference_mode()
    def restore(self, face: Image.Image, weight: float) -> Image.Image:
        unit = torch.from_numpy(np.array(face)).permute(2, 0, 1)[None].to(self.device, torch.float32) / 255.0
        result = self._run(unit, weight)[0].float().clamp(0.0, 1.0)
        if not bool(torch.isfinite(result).all()):
            return face  # better the face as it was than a black one
        return Image.fromarray((result * 255.0).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy())

    def _run(self, unit: Tensor, weight: float) -> Tensor:
        """[1,3,H,W] in 0..1 to the same."""
        network = self.descriptor.model
        if self.type == GFPGAN:
            # Its noise is drawn again at each call unless asked not to: the same image gives the same face.
            found: Tensor = (network(unit * 2 - 1, return_rgb=False, randomize_noise=False)[0] + 1) / 2
        elif self.type == CODEFORMER:
            found = (network(unit * 2 - 1, weight=weight)[0] + 1) / 2
        else:
            found = self.descriptor(unit)
        return found


def load_restorer(path: Path, restorer: RestorerType, device: torch.device) -> FaceModel:
    """The model of a file, in fp32 on `device`. Raises `CheckpointError` that names the file."""
    if restorer.needs_extra_package:
        _add_extra_architectures()
    descriptor = load_network(path, device, f"is no face model of the type {restorer.name}")
    found = descriptor.architecture.name
    if descriptor.architecture.id != restorer.architecture:
        raise CheckpointError(
            f"{path.name} holds a model of architecture {found}, not {restorer.name}. Put {restorer.example} or "
            f"another file of {restorer.name} into {path.parent} in its place."
        )
    return SpandrelFaceModel(restorer, descriptor, device)


def _add_extra_architectures() -> None:
    """Have spandrel know the models of the other package."""
    spandrel = import_spandrel()
    if importlib.util.find_spec(EXTRA_PACKAGE) is None:
        raise CheckpointError(
            f"CodeFormer's code is in the package {EXTRA_PACKAGE}, which does not come with this program because "
            "CodeFormer's licence allows no commercial use. If that is right for you: "
            f"pip install --no-deps {EXTRA_PACKAGE}==0.2.0, and start again. GFPGAN needs no further package."
        )
    importlib.import_module(EXTRA_PACKAGE).install(ignore_duplicates=True)
    assert spandrel is not None
