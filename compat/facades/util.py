"""`modules.util`: files and paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlparse

from compat.facades.paths_internal import cwd, script_path
from compat.facades.refusal import refusing
from compat.facades.shared import html, html_path, listfiles, natural_sort_key, walk_files

__all__ = [
    "cwd",
    "html",
    "html_path",
    "listfiles",
    "load_file_from_url",
    "natural_sort_key",
    "script_path",
    "truncate_path",
    "walk_files",
]


def truncate_path(target_path: str, base_path: str = cwd) -> str:
    """A path, relative where it lies in the working directory."""
    absolute, base = Path(target_path).absolute(), Path(base_path).absolute()
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


def topological_sort(dependencies: Mapping[str, Sequence[str]]) -> list[str]:
    """Names so that each stands behind those it depends on."""
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in found or name in above:
            return
        for other in dependencies.get(name, ()):
            visit(other, (*above, name))
        found.append(name)

    for name in dependencies:
        visit(name, ())
    return found


class MassFileLister:
    """Looks at many files of the same folders."""

    def find(self, path: str) -> tuple[str, float, int] | None:
        """Name, time of change and time of creation; None for no file."""
        file = Path(path)
        if not file.is_file():
            return None
        stat = file.stat()
        return file.name, stat.st_mtime, int(stat.st_ctime)

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return Path(path).is_file()

    def mctime(self, path: str) -> tuple[float, float]:
        """Times of change and creation; (0, 0) for no file."""
        found = self.find(path)
        return (found[1], found[2]) if found is not None else (0, 0)

    def reset(self) -> None:
        """Nothing is kept."""


def ldm_print(*args: object) -> None:
    """Print, unless the settings hide what models print."""
    print(*args)


def load_file_from_url(
    url: str, *, model_dir: str, progress: bool = True, file_name: str | None = None, **unused: object
) -> str:
    """The path of a file in `model_dir`. Raises FileNotFoundError where it is not there: nothing is downloaded."""
    name = file_name or Path(urlparse(url).path).name
    path = Path(model_dir, name).absolute()
    if not path.exists():
        raise FileNotFoundError(
            f"{name} is missing: download it from {url} and put it into {model_dir}. The program downloads nothing by "
            "itself."
        )
    return str(path)


__getattr__ = refusing("util", {"open_folder": "the program opens folders by the button under images."})
