"""`modules.util`: files and paths."""

from pathlib import Path
from urllib.parse import urlparse

from modules.compat.paths_internal import cwd, script_path
from modules.compat.refusal import refusing
from modules.compat.shared import html_path, listfiles, natural_sort_key, walk_files

__all__ = [
    "cwd",
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


__getattr__ = refusing("util", {})
