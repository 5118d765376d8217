"""A VAE file as if it were the VAE part of a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from modules.models.layouts.diffusers_names import original_names
from modules.models.layouts.keymaps.ldm_vae import PREFIX
from modules.models.reading.tensor_file import Closing, TensorEntry
from modules.models.reading.tensor_source import TensorSource, open_tensors

LEFT_OVER = ("loss.", "model_ema.")  # of the training of an autoencoder


SIGN = "encoder.down_blocks.0.resnets.0.conv1.weight"
"""Of a VAE file in the diffusers layout."""


class VaeSource(Closing):
    """A `TensorSource` over a VAE file (names begin with `encoder.`, `decoder.` ..., of the original or the diffusers
    layout) or over the VAE of a whole checkpoint; either way names are the original ones and begin with
    `first_stage_model.`. Raises `CheckpointError` as `open_tensors` does."""

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
        entries = {ours: self._file.entries[name] for ours, name in self._names.items()}
        if SIGN in self._file.entries:
            named = {name: there for (_, name), there in original_names({"vae": self._file.entries}).items()}
            self._names = {there.name: name for name, there in named.items() if not name.startswith(LEFT_OVER)}
            entries = {
                ours: replace(self._file.entries[name], shape=named[name].shape) for ours, name in self._names.items()
            }
        self.entries: Mapping[str, TensorEntry] = entries

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, see `TensorSource`."""
        there = self._file.entries[self._names[name]].shape
        tensor = self._file.read(self._names[name], None if into is None else into.reshape(there))
        return tensor.reshape(self.entries[name].shape)
