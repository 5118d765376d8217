"""`modules.upscaler` and `shared.sd_upscalers`: the program's upscalers as objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from PIL import Image

from compat.facades.refusal import refusing
from compat.host import host_now

LANCZOS = Image.Resampling.LANCZOS
NEAREST = Image.Resampling.NEAREST


class Upscaler:
    """Upscaler of images: `upscale(image, scale, name)`. An extension's own upscaler overrides `do_upscale`; it can
    be called by the extension, and is not added to the program's lists."""

    name: str | None = None
    model_path: str | None = None
    model_name: str | None = None
    model_url: str | None = None
    enable = True
    filter = None
    scale = 1
    user_path: str | None = None
    scalers: list[UpscalerData]

    def __init__(self, create_dirs: bool = False) -> None:
        self.scalers = []

    def do_upscale(self, img: Image.Image, selected_model: str) -> Image.Image:
        """The image enlarged by `selected_model`, to whatever size that gives."""
        return img

    def upscale(self, img: Image.Image, scale: float, selected_model: str | None = None) -> Image.Image:
        """The image `scale` times as large; both sides are cut down to multiples of 8."""
        self.scale = scale  # type: ignore[assignment]
        width, height = int(img.width * scale) // 8 * 8, int(img.height * scale) // 8 * 8
        for _ in range(3):
            if img.width >= width and img.height >= height and scale != 1:
                break
            before = img.size
            img = self.do_upscale(img, selected_model or "")
            if img.size == before or scale == 1:
                break
        return img if img.size == (width, height) else img.resize((width, height), LANCZOS)

    def load_model(self, path: str) -> Any:
        """Overridden by upscalers with files of their own."""

    def find_models(self, ext_filter: Any = None) -> list[str]:
        """Overridden by upscalers with files of their own."""
        return []


class UpscalerData:
    """One entry of the list."""

    def __init__(
        self,
        name: str,
        path: str | None,
        upscaler: Upscaler | None = None,
        scale: int = 4,
        model: Any = None,
        **unused: Any,
    ) -> None:
        self.name = name
        self.data_path = path
        self.local_data_path = path
        self.scaler = upscaler if upscaler is not None else OurUpscaler(name)
        self.scale = scale
        self.model = model


class OurUpscaler(Upscaler):
    """One of the program's."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do_upscale(self, img: Image.Image, selected_model: str) -> Image.Image:
        return self.upscale(img, 4)

    def upscale(self, img: Image.Image, scale: float, selected_model: str | None = None) -> Image.Image:
        host = host_now()
        size = int(img.width * scale) // 8 * 8, int(img.height * scale) // 8 * 8
        return host.scripts.program.enlarge(img, self.name or "Lanczos", size, host.settings.current)


class UpscalerNone(OurUpscaler):
    """The upscaler that enlarges nothing but the canvas."""

    def __init__(self, dirname: str | None = None) -> None:
        super().__init__("None")


class UpscalerLanczos(OurUpscaler):
    """Lanczos."""

    def __init__(self, dirname: str | None = None) -> None:
        super().__init__("Lanczos")


class UpscalerNearest(OurUpscaler):
    """Nearest neighbour."""

    def __init__(self, dirname: str | None = None) -> None:
        super().__init__("Nearest")


class _Upscalers(Sequence[UpscalerData]):
    """All upscalers on pixels, "None" first, looked up each time."""

    def _now(self) -> list[UpscalerData]:
        host = host_now()
        files = {info.name: info for info in host.engine.upscalers.catalogue.entries}
        found = []
        for name in host.scripts.program.pixel_upscalers():
            info = files.get(name)
            found.append(UpscalerData(name, str(info.path) if info else None, None, info.scale if info else 1))
        return found

    @overload
    def __getitem__(self, index: int) -> UpscalerData: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[UpscalerData]: ...
    def __getitem__(self, index: int | slice) -> UpscalerData | Sequence[UpscalerData]:
        return self._now()[index]

    def __iter__(self) -> Iterator[UpscalerData]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


sd_upscalers = _Upscalers()
__getattr__ = refusing("upscaler", {})
