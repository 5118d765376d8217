"""Parts of a text encoder that most texts do without, read from its file while they are used: the vision tower."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from modules.memory.scratch import release_scratch
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts, load_auxiliary
from modules.models.loading.loaded import LoadedModel
from modules.models.names.component import Component, Header
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.text_encoders.vision import Sight, look
from modules.system.devices import release_memory

MAX_SIGHTS_BYTES = 64 << 20
"""On the device: about thirty images to edit, or two to describe as large as a tower looks at."""
PART = "text_encoder"


class Tower:
    """Vision tower of a model's text encoder: it is in memory while it looks, and the images that it saw last are known
    by their pixels."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._sights: OrderedDict[bytes, Sight] = OrderedDict()

    def see(self, images: Sequence[Image.Image]) -> list[Sight]:
        """Show it images, as large as they are to be seen. Raises `CheckpointError` where there is no tower."""
        keys = [hashlib.sha256(f"{image.mode}{image.size}".encode() + image.tobytes()).digest() for image in images]
        found = {key: self._sights.pop(key) for key in keys if key in self._sights}
        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in found}
        if missing:
            build = self._model.family.texts.tower
            assert build is not None, "only models that see are shown images"
            with encoder_part(self._model, build) as tower, torch.no_grad():
                found |= {key: look(tower.module, image, tower.device, tower.dtype) for key, image in missing.items()}
        self._sights |= found
        left = MAX_SIGHTS_BYTES
        for key, sight in reversed(list(self._sights.items())):
            left -= sight.size_bytes
            if left < 0:
                del self._sights[key]
        return [found[key] for key in keys]


@contextmanager
def encoder_part(model: LoadedModel, build: Callable[[Header], Component]) -> Iterator[Auxiliary]:
    """A part of the text encoder of a model while it is used: read from where the encoder came from, stored and
    streamed as that is. Raises `CheckpointError` where no file holds it."""

    def parts(file: TensorSource, model: LoadedModel) -> AuxiliaryParts:
        component = build(file.entries)
        return AuxiliaryParts(component, lambda key: not key.startswith(component.prefixes), part=PART)

    def opening(path: Path) -> TensorSource:
        return open_checkpoint(path, modules=model.info.modules)

    load = partial(load_auxiliary, model.info.path, parts, model, opening)
    give_back()
    with closing(model.recovery.run("text", load)) as part:
        if part.streaming is not None:
            part.make_finer()  # nothing is brought ahead: a head is one layer, and as large as all else
        give_back()
        yield part


def give_back() -> None:
    """Give memory that loading, or a stage, has left free back to the system, as at the borders of a job's stages."""
    release_scratch()
    release_memory(torch.device("cpu"))
