"""The virtual environment next to `launch.py`: where its parts lie, whether it works, and making it."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.setup.installed import installed_versions
from modules.setup.pip import failure_message
from modules.setup.process import Run, SetupError

LOCK_NAME = "setup.lock"
VARIABLE = "FEATHERWEIGHT_VENV"
"""Names another folder for the virtual environment than `.venv` next to `launch.py`."""
INSTALLED_IN = ("site-packages", "dist-packages")


def command_of(root: Path) -> str:
    """Return what starts the program in `root`: its installed command, or `launch.py`."""
    return "featherweight" if root.parent.name in INSTALLED_IN else "python launch.py"


@dataclass(frozen=True)
class Environment:
    """A virtual environment in `folder`, whether it exists or not."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def site_packages(self) -> list[Path]:
        """Its package folders (one, or none before it is made)."""
        pattern = "Lib/site-packages" if os.name == "nt" else "lib/python3*/site-packages"
        return sorted(self.folder.glob(pattern))

    @property
    def python_version(self) -> str:
        """Such as "3.11.7", from pyvenv.cfg; empty before it is made."""
        config = self.folder / "pyvenv.cfg"
        lines = config.read_text(encoding="utf-8").splitlines() if config.is_file() else []
        facts = {name.strip(): item.strip() for name, _, item in (line.partition("=") for line in lines)}
        return facts.get("version") or facts.get("version_info", "")

    @property
    def is_usable(self) -> bool:
        """Whether its Python is there (the link dangles after the system's Python was removed) and pip with it."""
        return self.python.exists() and "pip" in self.installed()

    def installed(self) -> dict[str, str]:
        """Normal name -> version of its packages."""
        return installed_versions(self.site_packages)

    @classmethod
    def of(cls, root: Path, environ: Mapping[str, str]) -> "Environment":
        """That of the program in `root`."""
        return cls(Path(environ.get(VARIABLE) or root / ".venv"))

    def is_active(self) -> bool:
        """Whether this very process runs in it."""
        return Path(sys.prefix).resolve() == self.folder.resolve()

    def create(self, run: Run) -> None:
        """Make it with the running Python, over the remains of a broken one.

        Raises `SetupError` if the folder is something else, or if Python lacks its venv or ensurepip module.
        """
        self._clear()
        outcome = run([sys.executable, "-m", "venv", str(self.folder)])
        if not outcome.ok or not self.is_usable:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise SetupError(
                failure_message(f"making the virtual environment {self.folder}", outcome)
                + f" On Debian and Ubuntu the package python{version}-venv is needed for this."
            )

    def _clear(self) -> None:
        """Remove what a broken environment left; the lock file stays, because this process holds it."""
        remains = [path for path in self.folder.iterdir() if path.name != LOCK_NAME] if self.folder.is_dir() else []
        if remains and not (self.folder / "pyvenv.cfg").is_file():
            raise SetupError(
                f"{self.folder} exists and is no virtual environment; move it away, then run the same command again."
            )
        # pyvenv.cfg goes last, so that an interrupted clearing is recognized and finished by the next run.
        for path in sorted(remains, key=lambda item: item.name == "pyvenv.cfg"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
