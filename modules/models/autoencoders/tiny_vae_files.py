"""Which small models stand in for a checkpoint's VAE: TAESD in the folders `VAE-taesd`, and for previews the even
smaller ones in `VAE-approx`. Found by name. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.files.catalogue import CheckpointInfo

DECODER, ENCODER = "decoder", "encoder"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


class TinyVaeFolders:
    """Finds files named `NAME_decoder` and `NAME_encoder`, or `NAME` for one with both halves.

    NAME is that of the checkpoint's file, for one made for it alone, or that of its family. The
    folders are looked at again each time, so that a file can be added while the program runs.
    """

    def __init__(self, folders: Iterable[Path] = (), approx: Iterable[Path] = ()) -> None:
        """`approx`: the folders `VAE-approx`."""
        self._folders = tuple(folders)
        self._approx = tuple(approx)

    def find(self, half: str, checkpoint: CheckpointInfo, family_name: str) -> Path | None:
        """The file with the "decoder" or "encoder" for this checkpoint's latents; None if there is none."""
        names = (checkpoint.path.stem, family_name)
        return _first(self._folders, (stem for name in names for stem in (f"{name}_{half}", name)))

    @property
    def decoders(self) -> list[str]:
        """The NAMEs that there is a decoder for."""
        stems = (path.stem for folder in self._folders if folder.is_dir() for path in folder.iterdir())
        return sorted({stem.removesuffix(f"_{DECODER}") for stem in stems if not stem.endswith(f"_{ENCODER}")})

    def find_approx(self, checkpoint: CheckpointInfo, family_name: str) -> Path | None:
        """The VAE-approx decoder; None if there is none. `family_name`: of that for the family's latents."""
        return _first(self._approx, (checkpoint.path.stem, family_name))

    def get(self, half: str, checkpoint: CheckpointInfo, family_name: str) -> Path:
        """Return the file of a half; raises `CheckpointError` that says which file to put where."""
        path = self.find(half, checkpoint, family_name)
        if path is None:
            raise CheckpointError(f"{self.missing(half, family_name)} Or choose 'Full' as VAE type for {half[:2]}code.")
        return path

    def missing(self, half: str, family_name: str) -> str:
        """One sentence for people."""
        folder = self._folders[0] if self._folders else Path("models/VAE-taesd")
        return f"There is no TAESD {half} for this model: put {family_name}_{half}.safetensors (or .pth) into {folder}."


def _first(folders: Iterable[Path], stems: Iterable[str]) -> Path | None:
    """The first file of one of these stems, with any of `SUFFIXES`, in one of the folders."""
    paths = (folder / f"{stem}{suffix}" for stem in stems for folder in folders for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)
