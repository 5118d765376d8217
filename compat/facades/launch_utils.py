"""`modules.launch_utils`: what install.py of extensions calls. Packages are installed when the user says yes on the
Extensions tab, under the program's own versions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from compat.facades.paths_internal import script_path
from compat.facades.refusal import lazy
from compat.store.packages import NotInstalledHere, install_now

log = logging.getLogger(__name__)
python = sys.executable
index_url = os.environ.get("INDEX_URL", "")
dir_repos = "repositories"
skip_install = False
re_requirement = re.compile(r"\s*([-_a-zA-Z0-9]+)\s*(?:==\s*([-+_.a-zA-Z0-9]+))?\s*")
_WORD = re.compile(r"[A-Za-z0-9._-]+")


def is_installed(package: str) -> bool:
    """Whether a package can be imported, or a distribution of this name is installed."""
    try:
        if importlib.util.find_spec(package) is not None:
            return True
    except (ModuleNotFoundError, ValueError):
        pass
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run_pip(command: str, desc: str | None = None, live: bool = False) -> Any:
    """`pip install ...` under the program's versions. Raises RuntimeError outside of an installation that the user
    agreed to."""
    return install_now(command, desc or command)


def run(
    command: Any, desc: str | None = None, errdesc: str | None = None, custom_env: Any = None, live: bool = False
) -> str:
    """Raises RuntimeError: commands of extensions are not run, but for run_pip. git, with which extensions keep their
    own folders up to date, says nothing, as if there was nothing new: the Extensions tab installs and updates them."""
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    if words and Path(words[0]).stem.lower() == "git":
        log.info("%s was not run: the Extensions tab updates extensions, with their submodules.", " ".join(words))
        return ""
    raise NotInstalledHere(f"The command {command!r} was not run: extensions may call run_pip alone.")


run_python = run


def requirements_met(requirements_file: str) -> bool:
    """Whether every package of a requirements file is installed in a version that it takes."""
    from compat.store.packages import missing_of

    return not missing_of(Path(requirements_file).read_text(encoding="utf-8").splitlines())


def git_tag() -> str:
    """The version of the program."""
    from modules.version import PROGRAM_VERSION

    return PROGRAM_VERSION


def commit_hash() -> str:
    """The version of the program."""
    return git_tag()


def _args() -> Any:
    from compat.facades.shared_cmd_options import cmd_opts

    return cmd_opts


def repo_dir(name: str) -> str:
    """Where the reference UI keeps other programs; there are none here."""
    return str(Path(script_path, dir_repos, name))


_GIT = "git repositories are not cloned here."
_REASONS = {"git_clone": _GIT, "prepare_environment": "launch.py does that.", "start": "launch.py does that."}
_REASONS |= dict.fromkeys(("run_extension_installer", "run_extensions_installers"), "the Extensions tab installs.")
_REASONS |= dict.fromkeys(("check_run_python", "list_extensions"), "launch.py does that.")
__getattr__ = lazy("launch_utils", {"args": _args, "git": lambda: "git"}, _REASONS)
