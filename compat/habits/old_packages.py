"""Names that Pillow, NumPy and Starlette had in the versions of the reference UI, for code of extensions only, and the
arguments of templates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
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


def understand_old_templates() -> None:
    """Templates of extensions as older versions of Starlette took them, the name first and the request in the context:
    have `Jinja2Templates.TemplateResponse("index.html", {"request": request})` mean what it meant; once is enough. Does
    nothing without Jinja2, which Gradio brings."""
    try:
        from fastapi.templating import Jinja2Templates
    except (ImportError, AssertionError):  # Starlette asserts that Jinja2 is there
        return
    answer = Jinja2Templates.TemplateResponse
    if hasattr(answer, "__wrapped__"):
        return

    @wraps(answer)
    def answering(self: Any, *args: Any, **keywords: Any) -> Any:
        if args and isinstance(args[0], str):
            name, *rest = args
            context = dict(rest.pop(0) if rest else keywords.pop("context", {}))
            args = (context.get("request"), name, context, *rest)
        elif "request" not in keywords and "request" in (keywords.get("context") or {}):
            keywords["request"] = keywords["context"]["request"]
        return answer(self, *args, **keywords)

    setattr(Jinja2Templates, "TemplateResponse", answering)  # noqa: B010 - mypy allows no assignment to a method
