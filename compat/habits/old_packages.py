"""Names that Pillow and NumPy had in the versions of the reference UI, for code of extensions only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from modules.scripts.acting import is_foreign_code

FILTERS = {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"}
NUMPY = {"float_": "float64", "complex_": "complex128", "unicode_": "str_", "string_": "bytes_", "bool8": "bool_"}
NUMPY |= {"Inf": "inf", "infty": "inf", "PINF": "inf", "NaN": "nan", "product": "prod", "cumproduct": "cumprod"}
NUMPY |= {"sometrue": "any", "alltrue": "all", "in1d": "isin", "row_stack": "vstack"}

Offer = Callable[[ModuleType, dict[str, Callable[[], Any]]], None]


def offer_old_names(offer: Offer) -> None:
    """Have both packages offer them: `offer(module, makers)` adds names that extensions alone see."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    offer(Image, {old: partial(getattr, Image.Resampling, new) for old, new in FILTERS.items()})
    offer(np, {old: partial(getattr, np, new) for old, new in NUMPY.items() if old not in vars(np)})
    for made in (ImageFont.FreeTypeFont, ImageFont.ImageFont):
        _add_method(made, "getsize", _size_of_font)
    for name in ("textsize", "multiline_textsize"):
        _add_method(ImageDraw.ImageDraw, name, _size_of_text)


def _add_method(made: type, name: str, method: Callable[..., tuple[int, int]]) -> None:
    if hasattr(made, name):
        return

    def get(self: Any) -> Callable[..., tuple[int, int]]:
        if not is_foreign_code():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(method, self)

    setattr(made, name, property(get, doc=method.__doc__))


def _size_of_font(font: Any, text: str, *_: Any, **__: Any) -> tuple[int, int]:
    """Width and height in pixels of a line of text."""
    box = font.getbbox(text)
    return int(box[2]), int(box[3])


def _size_of_text(draw: Any, text: str, font: Any = None, spacing: int = 4, *_: Any, **__: Any) -> tuple[int, int]:
    """Width and height in pixels of a text."""
    box = draw.multiline_textbbox((0, 0), text, font=font, spacing=spacing)
    return int(box[2]), int(box[3])
