"""A program with extensions as people have them, and a tiny model that computes in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat.foreign import Foreign
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.scripts.axes import AXES
from modules.services import Services
from modules.settings.definitions import SETTINGS
from tests.recordings import TINY

Files = dict[str, str]
"""Texts by their paths below extensions/."""


def write(folder: Path, files: Files) -> None:
    """Put these files there."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def registries_kept() -> Iterator[None]:
    """Settings and axes that extensions add inside are taken away at the end."""
    known = [(registry, set(registry)) for registry in (SETTINGS, AXES)]
    try:
        yield
    finally:
        for registry, names in known:
            for name in set(registry) - names:
                registry.remove(name)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[Files], Services]]:
    """Builds a program with these files in its extensions folder; its queue works."""
    built: list[Services] = []

    def build(files: Files) -> Services:
        write(tmp_path / "extensions", files)
        services = build_services(
            Flags(data_dir=str(tmp_path), ckpt=str(TINY), use_cpu=("all",), no_hashing=True), foreign=Foreign()
        )
        services.dispatcher.start()
        built.append(services)
        return services

    with registries_kept():
        yield build
        for services in built:
            services.dispatcher.close()
