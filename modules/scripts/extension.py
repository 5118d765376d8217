"""Facts of one extension: its folder, what it brought, what of it failed and why, and what it costs."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from modules.errors import FeatherweightError

_NO_NAME = re.compile(r"cannot import name '([^']+)' from '([^']+)'")
_NO_ATTRIBUTE = re.compile(r"module '([^']+)' has no attribute '([^']+)'")
OWN_PACKAGES = ("scripts", "extensions")  # stand for the folders of extensions
REFERENCE_FOLDERS = ("repositories", "ldm", "sgm", "k_diffusion", "extensions_builtin")
MAX_REASON_CHARACTERS = 400
MAX_FAULTS = 50  # of one extension: a hook that fails for each image is no list of thousands


@dataclass(frozen=True)
class Fault:
    """Something of an extension that failed: where ("scripts/a.py", "ui", "process"), one sentence, and the name that
    is missing where that is the reason ("modules.sd_hijack", "cv2")."""

    where: str
    reason: str
    missing: str = ""

    @classmethod
    def of(cls, where: str, error: BaseException) -> Fault:
        """Read what an error says."""
        return cls(where, reason_of(error), missing_of(error))


def missing_of(error: BaseException) -> str:
    """The module, package or name whose absence an error is about; "" for other errors."""
    text = str(error)
    if found := _NO_NAME.search(text):
        return f"{_imported_name(found[2])}.{found[1]}"
    if found := _NO_ATTRIBUTE.search(text):
        return f"{found[1]}.{found[2]}"
    if isinstance(error, ImportError):
        return error.name or ""
    if isinstance(error, AttributeError) and error.name:
        return error.name
    return ""


def _imported_name(module: str) -> str:
    """The name by which extensions import a module: that of the program's where it has both."""
    found = sys.modules.get(module)
    names = [name for name, one in list(sys.modules.items()) if found is not None and one is found]
    return next((name for name in names if name.startswith("modules.")), module)


def _said_of_name(error: BaseException) -> str:
    """Find what a facade says of a name that was imported from it, which Python replaces by a sentence of its own."""
    found = _NO_NAME.search(str(error)) if isinstance(error, ImportError) else None
    module = sys.modules.get(found[2]) if found else None
    if found is None or module is None:
        return ""
    try:
        getattr(module, found[1])
    except AttributeError as reason:
        return str(reason)
    return ""


def reason_of(error: BaseException) -> str:
    """One sentence for people."""
    missing = missing_of(error)
    package = missing.split(".")[0]
    if isinstance(error, ModuleNotFoundError) and package and package != "modules" and str(error).startswith("No mod"):
        return f"It needs the package {package}, which is not installed."
    if isinstance(error, SystemExit):
        return "It called sys.exit, which would have ended the program; only this file was left out."
    text = " ".join((_said_of_name(error) or str(error)).split())
    if isinstance(error, FeatherweightError) or (isinstance(error, ImportError | AttributeError) and "here" in text):
        sentence = text
    else:
        sentence = f"{type(error).__name__}: {text}" if text else type(error).__name__
    sentence = sentence if len(sentence) <= MAX_REASON_CHARACTERS else sentence[: MAX_REASON_CHARACTERS - 3] + "..."
    return sentence if sentence.endswith((".", "!", "?", "...")) else sentence + "."


@dataclass
class Extension:
    """One folder of extensions. `files` are its scripts that were loaded, `replaced_by` says which part of the program
    does its work instead ("": it does it itself)."""

    name: str
    folder: Path
    is_built_in: bool = False
    is_enabled: bool = True
    files: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    start_s: float = 0.0  # what loading it took
    image_s: float = 0.0  # what its hooks took in the last job, per image
    replaced_by: str = ""
    has_seen_form: bool = False  # whether its code was shown controls of the page that this process builds

    @cached_property
    def about(self) -> dict[str, str]:
        """Read its about.toml: a sentence about it ("about"), and the group of the form in which its folds stand
        ("group": control, guidance or finishing). Empty without the file; one that cannot be read is a fault."""
        file = self.folder / "about.toml"
        try:
            read = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except (OSError, ValueError) as error:
            self.note(file.name, error)
            return {}
        return {name: str(value) for name, value in read.items()}

    def note(self, where: str, error: BaseException) -> Fault:
        """Keep what failed; the same fault is kept once."""
        fault = self._with_own_file(Fault.of(where, error), error)
        if fault not in self.faults and len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)
        return fault

    def _with_own_file(self, fault: Fault, error: BaseException) -> Fault:
        """Say of a module that is not found whose it is: a file of this extension's, or one of the reference UI's."""
        if not isinstance(error, ModuleNotFoundError) or not fault.missing or fault.missing.startswith("modules"):
            return fault
        first = fault.missing.partition(".")[0]
        places = [self.folder / first, self.folder / "scripts" / first]
        if any(place.is_dir() or place.with_suffix(".py").is_file() for place in places) or first in OWN_PACKAGES:
            reason = f"Its own file {fault.missing} was not found: it is missing, or could not be loaded itself."
        elif first in REFERENCE_FOLDERS:
            reason = f"It imports {fault.missing}, a file of the reference UI that is not here."
        else:
            return fault
        return replace(fault, reason=reason)
