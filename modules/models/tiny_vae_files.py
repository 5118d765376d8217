"""Which tiny autoencoder (TAESD) goes with a checkpoint: found by name in the folders `VAE-taesd`. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.catalogue import CheckpointInfo

DECODER, ENCODER = "decoder", "encoder"
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


class TinyVaeFolders:
    """Finds files named `NAME_decoder` and `NAME_encoder`, or `NAME` for one with both halves.

    NAME is that of the checkpoint's file, for one made for it alone, or its family's: taesd, taesdxl, taesd3. The
    folders are looked at anew each time, so that a file can be added while the program runs.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._folders = tuple(folders)

    def find(self, half: str, checkpoint: CheckpointInfo, family_name: str) -> Path | None:
        """The file with the "decoder" or "encoder" for this checkpoint's latents; None if there is none."""
        for name in (checkpoint.path.stem, family_name):
            for stem in (f"{name}_{half}", name):
                for folder in self._folders:
                    for suffix in SUFFIXES:
                        path = folder / f"{stem}{suffix}"
                        if path.is_file():
                            return path
        return None

    def get(self, half: str, checkpoint: CheckpointInfo, family_name: str) -> Path:
        """The same; raises `CheckpointError` that says which file to put where."""
        path = self.find(half, checkpoint, family_name)
        if path is None:
            raise CheckpointError(f"{self.missing(half, family_name)} Or choose 'Full' as VAE type for {half[:2]}code.")
        return path

    def missing(self, half: str, family_name: str) -> str:
        """One sentence for people."""
        folder = self._folders[0] if self._folders else Path("models/VAE-taesd")
        return f"There is no TAESD {half} for this model: put {family_name}_{half}.safetensors (or .pth) into {folder}."
