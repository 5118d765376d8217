"""Images to latents through the model's VAE, kept in memory and on disk under what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor

from lib_training.base_model import parts_identity
from lib_training.dataset import View
from lib_training.folders import open_image
from modules.models.loading.loaded import LoadedModel
from modules.system.atomic_files import output_error, write_atomic


@dataclass
class LatentCache:
    """Scaled latents [C, h, w], float32 on the CPU, by view. `downscale` is pixels per latent."""

    identity: str
    downscale: int
    folder: Path | None = None
    _known: dict[View, Tensor] = field(default_factory=dict)
    _masks: dict[View, Tensor] = field(default_factory=dict)

    def fill(self, model: LoadedModel, views: Iterable[View], on_image: Callable[[int], None] | None = None) -> int:
        """Encode what is not known; returns how many were. `on_image` receives how many views are ready."""
        encoded = 0
        for index, view in enumerate(dict.fromkeys(views)):
            if view not in self._known:
                path = self._path(view)
                latent = None if path is None else _read(path)
                if latent is None:
                    latent = self._encode(model, view)
                    encoded += 1
                    if path is not None:
                        self._write(path, latent)
                self._known[view] = latent
            if view.sample.mask is not None and view not in self._masks:
                self._masks[view] = self._mask(view)
            if on_image is not None:
                on_image(index + 1)
        return encoded

    def latents(self, views: Iterable[View]) -> Tensor:
        """Return those of one bucket: [n, C, h, w]."""
        return torch.stack([self._known[view] for view in views])

    def masks(self, views: Iterable[View], outside: float) -> Tensor | None:
        """[n, 1, h, w]: 1 where a mask is white, `outside` where it is black; None where no view has one."""
        found = [self._masks.get(view) for view in views]
        if all(mask is None for mask in found):
            return None
        shape = next(mask.shape for mask in found if mask is not None)
        return torch.stack([torch.ones(shape) if mask is None else outside + (1 - outside) * mask for mask in found])

    @torch.no_grad()
    def _encode(self, model: LoadedModel, view: View) -> Tensor:
        pixels = np.asarray(shown(view), np.float32) / 127.5 - 1
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        return model.encode_moments(image)[0][0].float().cpu().contiguous()

    def _mask(self, view: View) -> Tensor:
        assert view.sample.mask is not None
        image = cut(open_image(view.sample.mask), view).convert("L")
        width, height = (side // self.downscale for side in view.bucket)
        small = image.resize((width, height), Image.Resampling.BOX)
        return torch.from_numpy(np.asarray(small, np.float32) / 255)[None]

    def _path(self, view: View) -> Path | None:
        if self.folder is None:
            return None
        stat = view.sample.path.stat()
        facts = (view.sample.path, stat.st_size, stat.st_mtime_ns, view.bucket, view.crop, view.is_flipped)
        key = "\n".join([self.identity, *map(str, facts)])
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"

    def _write(self, path: Path, latent: Tensor) -> None:
        try:
            write_atomic(path, save({"latent": latent}))
        except OSError as error:
            raise output_error(path.name, path.parent, error) from error


def vae_identity(model: LoadedModel) -> str:
    """Return what latents depend on besides the image."""
    info = model.info
    vae = "" if model.vae_info is None else str(model.vae_info.path)
    return f"{info.path}/{info.size_bytes}/{info.mtime_ns}/{vae}/{model.plan.vae_dtype}{parts_identity(model)}"


def shown(view: View) -> Image.Image:
    """The image as a view has it."""
    return cut(open_image(view.sample.path), view)


def cut(image: Image.Image, view: View) -> Image.Image:
    """Scaled to cover the bucket, cut and mirrored."""
    width, height = view.bucket
    scale = max(width / image.width, height / image.height)
    size = max(round(image.width * scale), width), max(round(image.height * scale), height)
    scaled = image.resize(size, Image.Resampling.LANCZOS)
    left, top = round((size[0] - width) * view.crop), round((size[1] - height) * view.crop)
    found = scaled.crop((left, top, left + width, top + height))
    return found.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view.is_flipped else found


def _read(path: Path) -> Tensor | None:
    try:
        return load(path.read_bytes())["latent"]
    except OSError:
        return None
    except Exception as error:  # safetensors raises an error of its own for damaged files
        if type(error).__name__ not in ("SafetensorError", "KeyError"):
            raise
        return None
