"""Upscaler files at work: finds, loads, runs them, and keeps the model that was used last.

Torch is imported on first use, so that a page can be served before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from modules.errors import UnknownNameError
from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue, UpscalerInfo
from modules.upscalers.limits import UpscalerLimits

if TYPE_CHECKING:
    import torch

    from modules.upscalers.loading import PixelModel

log = logging.getLogger(__name__)

MAX_PASSES = 3  # a model of scale 1 or 2 must end somewhere

OnTile = Callable[[int, int], None]


@dataclass(frozen=True)
class _Loaded:
    info: UpscalerInfo
    mtime_ns: int
    device: torch.device
    model: PixelModel


class Upscalers:
    """Holds at most one model. `find_device` maps a program part ("esrgan", "swinir" ...) to its device."""

    def __init__(self, catalogue: UpscalerCatalogue, find_device: Callable[[str], torch.device]) -> None:
        self.catalogue = catalogue
        self._find_device = find_device
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    def enlarge(
        self,
        image: Image.Image,
        name: str,
        size_px: tuple[int, int],
        settings: Settings,
        on_tile: OnTile,
        limits: UpscalerLimits | None = None,
        *,
        at_least_once: bool = False,
    ) -> Image.Image:
        """The image in exactly `size_px` (width, height): through the model until it is large enough, then Lanczos.

        An image that is large enough already goes through it with `at_least_once` only (a model that repairs).
        `on_tile(index, count)` comes before each tile and may raise to stop. `limits` hold it to less memory than the
        settings ask for. Raises `UnknownNameError`, and `CheckpointError` that names a file which cannot be used; when
        memory runs out the image is as it was, and the call may be made again.
        """
        from modules.upscalers.tiles import run_in_tiles

        info = self.catalogue.find(name)
        if info is None:
            raise UnknownNameError.of("upscaler", name, self.catalogue.names)
        limits = limits or UpscalerLimits()
        width, height = size_px
        if at_least_once or width > image.width or height > image.height:
            with self._lock:
                loaded = self._load(info, limits.on_cpu)
                for _ in range(MAX_PASSES):
                    before = image.size
                    tiling = limits.apply(info.type.tiling(settings), image.size)
                    image = run_in_tiles(loaded.model, image, tiling, loaded.device, on_tile)
                    if image.size == before or (image.width >= width and image.height >= height):
                        break
        return image if image.size == size_px else image.resize(size_px, Image.Resampling.LANCZOS)

    def weights_bytes(self, name: str = "") -> tuple[int, torch.device | None]:
        """Bytes of the file that is held, or of the file `name`, which takes its place; and on which device (None:
        nothing is held). Never waits."""
        info = self.catalogue.find(name) if name else None
        loaded = self._loaded
        if info is not None and info.path.is_file():
            return info.path.stat().st_size, self._find_device(info.type.part)
        if loaded is not None and loaded.info.path.is_file():
            return loaded.info.path.stat().st_size, loaded.device
        return 0, None

    def release(self) -> None:
        """Let go of the model."""
        with self._lock:
            self._loaded = None

    def _load(self, info: UpscalerInfo, on_cpu: bool) -> _Loaded:
        import torch

        from modules.upscalers.loading import load_upscaler

        device = torch.device("cpu") if on_cpu else self._find_device(info.type.part)
        mtime_ns = info.path.stat().st_mtime_ns if info.path.is_file() else 0
        loaded = self._loaded
        if loaded is None or (loaded.info, loaded.mtime_ns, loaded.device) != (info, mtime_ns, device):
            self._loaded = None
            log.info("Loading upscaler %s.", info.name)
            loaded = self._loaded = _Loaded(info, mtime_ns, device, load_upscaler(info.path, device))
        return loaded
