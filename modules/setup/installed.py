"""Packages installed in a virtual environment, read from the names of its dist-info folders; nothing is imported."""

import platform
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_CONDITION = re.compile(r'(sys_platform|platform_machine) == "([^"]*)"')


def normal_name(name: str) -> str:
    """The normal form of a package name (PEP 503): lower case, runs of `-_.` as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_versions(site_packages: Iterable[Path]) -> dict[str, str]:
    """Normal name -> version of every completely installed package.

    pip writes RECORD last, so a folder without it is the rest of an interrupted installation and does not count.
    """
    found: dict[str, str] = {}
    for folder in site_packages:
        for info in folder.glob("*.dist-info"):
            name, dash, version = info.name.removesuffix(".dist-info").partition("-")
            if dash and (info / "RECORD").is_file():
                found[normal_name(name)] = version
    return found


def read_pins(requirements: str) -> dict[str, str]:
    """Normal name -> version of the "name==version" lines of a requirements file; comments, blanks and lines whose
    marker is for other systems are skipped.

    Raises `ValueError` for any other line: our requirements files hold nothing else.
    """
    pins: dict[str, str] = {}
    for raw in requirements.splitlines():
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        requirement, _, marker = line.partition(";")
        name, pinned, version = requirement.strip().partition("==")
        conditions = [_CONDITION.fullmatch(part.strip()) for part in marker.split(" and ")] if marker else []
        if not pinned or not re.fullmatch(r"[\w.+!-]+", version) or not all(conditions):
            raise ValueError(f"not a name==version line: {raw!r}")
        here = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
        if all(here[found[1]] == found[2] for found in conditions if found):
            pins[normal_name(name.strip())] = version
    return pins


def unsatisfied(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """The pins that are missing or installed in another version; "2.13.0+cpu" satisfies a pin of "2.13.0"."""
    return [
        f"{name}=={version}"
        for name, version in pins.items()
        if installed.get(name, "") != version and installed.get(name, "").partition("+")[0] != version
    ]
