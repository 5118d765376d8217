"""How a facade says that it has not a name, or has it only as a name."""

import keyword
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

TABLE = "compat/README.md has the table of supported names"

_SHARED = "modules.shared"
PASSED_ON: dict[str, tuple[str, str]] = {
    **{name: (name, "") for name in ("torch", "os", "sys", "json", "math", "random", "re", "time", "datetime")},
    **{name: (name, "") for name in ("logging", "hashlib", "string", "mimetypes", "base64", "copy", "html", "tqdm")},
    **{name: (f"modules.{name}", "") for name in ("shared", "devices", "errors", "images", "masking", "processing")},
    **{name: (f"modules.{name}", "") for name in ("scripts", "script_callbacks", "sd_models", "sd_vae", "sd_hijack")},
    **{name: (f"modules.{name}", "") for name in ("sd_samplers", "sd_samplers_common", "sd_samplers_kdiffusion")},
    **{name: (f"modules.{name}", "") for name in ("sd_samplers_timesteps", "sd_schedulers", "sd_unet", "lowvram")},
    **{name: (f"modules.{name}", "") for name in ("prompt_parser", "extra_networks", "extensions", "infotext_utils")},
    **{name: (f"modules.{name}", "") for name in ("generation_parameters_copypaste", "ui_components", "ui_common")},
    **{name: (f"modules.{name}", "") for name in ("ui_tempdir", "ui_extra_networks", "call_queue", "localization")},
    **{
        name: (f"modules.{name}", "") for name in ("face_restoration", "scripts_postprocessing", "rng", "paths", "util")
    },
    **{
        name: (f"modules.{name}", "")
        for name in ("script_loading", "shared_items", "styles", "hashes", "sd_vae_approx")
    },
    **{name: (_SHARED, name) for name in ("opts", "cmd_opts", "state")},
    "modules": ("modules", ""),
    "np": ("numpy", ""),
    "gr": ("gradio", ""),
    "Image": ("PIL.Image", ""),
    "ImageDraw": ("PIL.ImageDraw", ""),
    "ImageFont": ("PIL.ImageFont", ""),
    "PngImagePlugin": ("PIL.PngImagePlugin", ""),
    "parameters_copypaste": ("modules.infotext_utils", ""),
    "model_hijack": ("modules.sd_hijack", "model_hijack"),
}
"""What files of the reference UI import themselves, and extensions take from there: module and name ("": itself)."""


class _Refused(type):
    """The type of what has no more than its name here: it can be imported, compared and asked for by `isinstance`.
    Whatever else is done with it raises AttributeError with one sentence."""

    sentence: str
    full_name: str

    def _refuse(cls) -> AttributeError:
        return AttributeError(cls.sentence, name=cls.full_name)

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        raise cls._refuse()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise cls._refuse()

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith(("__", "_abc_")):
            super().__setattr__(name, value)
            return
        raise cls._refuse()

    def __getitem__(cls, key: Any) -> Any:
        raise cls._refuse()

    def __iter__(cls) -> Any:
        raise cls._refuse()

    def __bool__(cls) -> bool:
        return False


def named(name: str, reason: str) -> Any:
    """A stand-in for the function, class or object `name` of the reference UI, which this program has not: it can be
    imported and passed around; what is done with it raises an AttributeError with `reason`."""
    short = name.rpartition(".")[2]
    sentence = f"{name} is not supported here: {reason}"
    facts = {"sentence": sentence, "full_name": name, "__doc__": sentence}
    return _Refused(short if short.isidentifier() and not keyword.iskeyword(short) else "Refused", (), facts)


def refusing(module: str, reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: each name of the reference UI in `reasons` as a stand-in that says what to use instead;
    what the reference UI's file imports from elsewhere; any other name raises with where the supported ones are
    listed."""

    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'modules.{module}' has no attribute {name!r}")
        if name in reasons:
            return named(f"modules.{module}.{name}", reasons[name])
        if name in PASSED_ON:
            home, inner = PASSED_ON[name]
            return getattr(import_module(home), inner) if inner else import_module(home)
        raise AttributeError(
            f"module 'modules.{module}' has no attribute {name!r}: it is not supported here; {TABLE}.", name=name
        )

    return refuse


def lazy(module: str, makers: Mapping[str, Callable[[], Any]], reasons: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` for names whose value is looked up each time, and `refusing` for the others."""
    refuse = refusing(module, reasons)
    return lambda name: makers[name]() if name in makers else refuse(name)


def refused_module(name: str, reason: str) -> ModuleType:
    """A module of the reference UI that stands for nothing here: each of its names is a stand-in."""
    module = ModuleType(name, reason)

    def look_up(inner: str) -> Any:
        if inner.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {inner!r}")
        return named(f"{name}.{inner}", reason)

    module.__dict__["__getattr__"] = look_up
    return module
