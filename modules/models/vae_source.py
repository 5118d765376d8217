"""A VAE file as if it were the VAE part of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from modules.models.closing import Closing
from modules.models.keymaps.ldm_vae import PREFIX
from modules.models.tensor_file import TensorEntry
from modules.models.tensor_source import TensorSource, open_tensors

LEFT_OVER = ("loss.", "model_ema.")  # of the training of an autoencoder


class VaeSource(Closing):
    """A `TensorSource` over a VAE file (names begin with `encoder.`, `decoder.` ...) or over the VAE of a whole
    checkpoint; either way names begin with `first_stage_model.`. Raises `CheckpointError` as `open_tensors` does."""

    has_offsets = False

    def __init__(self, path: Path) -> None:
        self._file: TensorSource = open_tensors(path)
        self.path = path
        self.metadata = self._file.metadata
        whole = any(name.startswith(f"{PREFIX}.") for name in self._file.entries)
        self._names = {
            (name if whole else f"{PREFIX}.{name}"): name
            for name in self._file.entries
            if (name.startswith(f"{PREFIX}.") if whole else not name.startswith(LEFT_OVER))
        }
        self.entries: Mapping[str, TensorEntry] = {ours: self._file.entries[name] for ours, name in self._names.items()}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, see `TensorSource`."""
        return self._file.read(self._names[name], into)
