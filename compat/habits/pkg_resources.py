"""`pkg_resources`, which newer versions of setuptools no longer have: what extensions and older packages ask of it,
over `importlib.metadata` and the package packaging."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import packaging.requirements
import packaging.specifiers
import packaging.version
from packaging.version import parse as parse_version

__all__ = ["packaging", "parse_version"]


class ResolutionError(Exception):
    """A requirement that is not met."""


class DistributionNotFound(ResolutionError):  # noqa: N818 - its name there
    """A package that is not installed."""


class VersionConflict(ResolutionError):  # noqa: N818 - its name there
    """A package that is installed in a version that is not wanted."""


class Requirement(packaging.requirements.Requirement):
    """A requirement by its text."""

    @property
    def project_name(self) -> str:
        """Return the package's name."""
        return self.name

    @property
    def key(self) -> str:
        """Return the name in lower case."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Read one."""
        return cls(text)


class Distribution:
    """An installed package."""

    def __init__(self, found: metadata.Distribution) -> None:
        self.project_name = found.metadata["Name"]
        self.key = self.project_name.lower()
        self.version = found.version
        self.location = str(found.locate_file(""))


def parse_requirements(lines: str | Iterable[str]) -> Iterator[Requirement]:
    """Read the requirements of a file's lines."""
    for line in lines.splitlines() if isinstance(lines, str) else lines:
        text = line.partition(" #")[0].strip()
        if text and not text.startswith(("#", "-")):
            yield Requirement(text)


def get_distribution(wanted: str | Requirement) -> Distribution:
    """Return an installed package. Raises `DistributionNotFound` and `VersionConflict`."""
    requirement = Requirement(wanted) if isinstance(wanted, str) else wanted
    try:
        found = Distribution(metadata.distribution(requirement.name))
    except metadata.PackageNotFoundError as error:
        raise DistributionNotFound(f"The package {requirement.name} is not installed.") from error
    if not requirement.specifier.contains(found.version, prereleases=True):
        raise VersionConflict(f"{found.project_name} {found.version} is installed; {requirement} is wanted.")
    return found


def require(*wanted: str | Iterable[str]) -> list[Distribution]:
    """Return the packages of requirements. Raises as `get_distribution`."""
    texts = [text for one in wanted for text in ([one] if isinstance(one, str) else one)]
    return [get_distribution(text) for text in texts]


def resource_filename(package: str, resource: str) -> str:
    """Return the path of a file of a package. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return str(Path(spec.origin).parent / resource)


def fixup_namespace_packages(path: str, parent: Any = None) -> None:
    """Do nothing: namespace packages are Python's own. pytest calls it for each folder that it adds to the path."""


def resource_exists(package: str, resource: str) -> bool:
    """Return whether a package has such a file."""
    return Path(resource_filename(package, resource)).exists()


def __getattr__(name: str) -> Any:
    if name == "working_set":
        return [Distribution(one) for one in metadata.distributions() if one.metadata["Name"]]
    raise AttributeError(f"module 'pkg_resources' has no attribute {name!r}: setuptools no longer has this module.")
