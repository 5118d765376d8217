"""Names of the reference UI's modules that lead into `compat.facades`: `import modules.shared` finds
`compat/facades/shared.py`, so that each facade is one file and none of ours stands between.

A package of ours whose name extensions use for more than it has (`modules.processing`, see `SHARED`) asks the facade of
its name for what it lacks, by `names_from`. All of that begins with `install`, before the first extension is loaded.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PROGRAM, FACADES = "modules.", "compat.facades."
UNSUPPORTED, REFUSAL = "compat.facades.unsupported", "compat.facades.refusal"
SHARED = ("api", "errors", "images", "postprocessing", "processing", "scripts", "ui")
"""Names that are both modules of ours and facades."""
MOVED = {
    "scripts.processing": "compat.processing",
    **{name: f"modules.system.{name}" for name in ("bounded", "decoding", "model_folders")},
    "api.auth": "modules.api.access.auth",
    "api.documentation": "modules.api.schema.documentation",
    "api.schemas": "modules.api.schema.schemas",
}
"""Modules of ours that extensions import and that are elsewhere now."""
PACKAGES = ("models", "models.diffusion", "hypernetworks")
ACTING = "modules.scripts.acting"
INSIDE = {
    **dict.fromkeys(("ldm", "sgm"), "the model has other modules here; on_cfg_denoiser and its like change each step."),
    "k_diffusion": "samplers are run by the program: set p.sampler_name and give p to process_images(p).",
}
"""Packages that the reference UI computes with. Extensions import names of theirs, for `isinstance` above all."""
ENCODERS = "ldm.modules.encoders.modules"
ENCODERS_HERE = "compat.facades.clip_view"
LORA, LORA_HERE = "extensions-builtin.Lora", "compat.facades.networks"
LORA_FILES = ("networks", "network", "lora", "ui_extra_networks_lora")
"""Files of the reference UI's extension for LoRA, that others import by its folder or by themselves."""
TORCHVISION, VISION, VISION_VERSION = "torchvision", "compat.facades.vision", "0.28.0"
"""A package that extensions import for a few functions, and that cannot be installed next to the program's PyTorch."""
HAVE_NO_VISION = ("transformers", "diffusers")
"""Packages that compute otherwise where torchvision is installed, with more of it than the stand-in has. An extension
may be the first that imports them."""


STAND_INS = {
    "pkg_resources": "compat.habits.pkg_resources",
    "basicsr.utils": "compat.habits.basicsr",
    "basicsr.utils.download_util": "compat.habits.basicsr",
}
"""Packages that the reference UI brings and that cannot be had here, and what stands for them in code of extensions."""
BASICSR = (
    "basicsr is not installed, because it needs torchvision. Of it load_file_from_url, img2tensor and tensor2img are "
    "there; spandrel's ModelLoader reads files of upscalers."
)


def _asking() -> str:
    """Return the package whose code imports something now, or looks for it."""
    frame, passed = sys._getframe(1), (__name__, "importlib", "_frozen_importlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(passed):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


class _AliasLoader(Loader):
    """Gives the facade itself, so that both names mean one module."""

    def __init__(self, facade: str) -> None:
        self._facade = facade
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The facade, imported now."""
        module = import_module(self._facade)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Put back what the import wrote over; the module ran under its own name."""
        module.__spec__ = self._spec


class _RefusedLoader(Loader):
    """Gives a module of the reference UI whose names can be imported and say why they cannot be used."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module of stand-ins."""
        made: ModuleType = import_module(REFUSAL).refused_module(spec.name.replace(FACADES, PROGRAM), self._reason)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class _VisionLoader(Loader):
    """Gives a module of the stand-in for torchvision."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, which has what extensions use of it."""
        made: ModuleType = import_module(VISION).stand_in(spec.name)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class FacadeFinder:
    """Finds `modules.NAME` in `compat.facades.NAME` where the program has no module of that name; for names of the
    reference UI that stand for nothing here a module whose names refuse to be used, each with a sentence; the same of
    packages that the reference UI computes with, where an extension imports one that is not installed; and the files of
    the reference UI's extension for LoRA."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if (top := name.partition(".")[0]) in INSIDE and import_module(ACTING).is_foreign_code():
            if name == ENCODERS:
                return ModuleSpec(name, _AliasLoader(ENCODERS_HERE))
            return ModuleSpec(name, _RefusedLoader(INSIDE[top]), is_package=True)
        if name.rpartition(".")[2] in LORA_FILES and import_module(ACTING).is_foreign_code():
            parent, _, file = name.rpartition(".")
            if file in LORA_FILES and parent in ("", LORA):
                return ModuleSpec(name, _AliasLoader(LORA_HERE))
        if LORA.startswith(name) and import_module(ACTING).is_foreign_code():
            return ModuleSpec(name, None, is_package=True)  # folders that lie on no path of Python's
        if top == TORCHVISION and import_module(ACTING).is_foreign_code() and _asking() not in HAVE_NO_VISION:
            return ModuleSpec(name, _VisionLoader(), is_package=True)
        if name in STAND_INS and import_module(ACTING).is_foreign_code():
            return ModuleSpec(name, _AliasLoader(STAND_INS[name]), is_package=name == "basicsr.utils")
        if top == "basicsr" and import_module(ACTING).is_foreign_code():
            return ModuleSpec(name, _RefusedLoader(BASICSR), is_package=True)
        if not name.startswith((PROGRAM, FACADES)):
            return None
        # `from modules.PACKAGE import NAME` asks for the second.
        inner = name.removeprefix(PROGRAM).removeprefix(FACADES)
        if inner in MOVED:
            return ModuleSpec(name, _AliasLoader(MOVED[inner]))
        try:
            found = find_spec(FACADES + inner) if name.startswith(PROGRAM) else None
        except ModuleNotFoundError:
            found = None
        if found is not None:
            return ModuleSpec(name, _AliasLoader(FACADES + inner), is_package=bool(found.submodule_search_locations))
        reasons: dict[str, str] = import_module(UNSUPPORTED).MODULES
        if inner in reasons:
            return ModuleSpec(name, _RefusedLoader(reasons[inner]), is_package=inner in PACKAGES)
        return None

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        """See `importlib.metadata.DistributionFinder`: extensions ask for the version of the package that stands in."""
        if getattr(context, "name", None) == TORCHVISION and import_module(ACTING).is_foreign_code():
            yield _StandInDistribution()


class _StandInDistribution(Distribution):
    """Metadata of the package that the stand-in is for."""

    def read_text(self, filename: str) -> str | None:
        """Return the text of one of its files."""
        return f"Name: {TORCHVISION}\nVersion: {VISION_VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Return the path as it is; there are no files."""
        return Path(path)


def install() -> None:
    """Put the finder behind those of Python, and have our modules ask their facades; once is enough."""
    if any(isinstance(finder, FacadeFinder) for finder in sys.meta_path):
        return
    sys.meta_path.append(FacadeFinder())
    vars(import_module("modules"))["__getattr__"] = _submodule
    for name in SHARED:
        vars(import_module(PROGRAM + name))["__getattr__"] = names_from(name)


def _submodule(name: str) -> Any:
    """The `__getattr__` of `modules`: code of extensions reads `modules.NAME` without an import of its own, because in
    the reference UI all of them have been imported by then."""
    acting = sys.modules.get(ACTING)
    if acting is None or not getattr(acting, "is_foreign_code", bool)() or find_spec(PROGRAM + name) is None:
        raise AttributeError(f"module 'modules' has no attribute {name!r}")
    return import_module(PROGRAM + name)


def names_from(facade: str) -> Callable[[str], Any]:
    """A module's `__getattr__` that looks names up in a facade, which is imported when it is first asked."""

    package = PROGRAM + facade

    def look_up(name: str) -> Any:
        places = vars(import_module(package)).get("__path__")
        if name.startswith("__") or (places and PathFinder.find_spec(f"{package}.{name}", places)):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")  # a submodule: Python imports it then
        return getattr(import_module(FACADES + facade), name)

    return look_up
