"""Where the tensors of a VAE come from, when not from the checkpoint itself."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from modules.models.autoencoders.autoencoder import PREFIX
from modules.models.autoencoders.registry import autoencoder_type
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.component import Header
from modules.models.names.diffusers_names import Named, original_names

LEFT_OVER = ("loss.", "model_ema.")  # of the training of an autoencoder
LEVELS = (f"{PREFIX}.", "vae.")
"""Before the names of a VAE in a whole checkpoint."""


class VaeSource(Closing):
    """A `TensorSource` over a VAE file (names begin with `encoder.`, `decoder.` ..., of the original or the diffusers
    layout) or over the VAE of a whole checkpoint; either way names are the original ones and begin with
    `first_stage_model.`. Raises `CheckpointError` as `open_tensors` does."""

    def __init__(self, path: Path) -> None:
        self._file: TensorSource = open_tensors(path)
        self.path = path
        self.metadata = self._file.metadata
        self.has_offsets = self._file.has_offsets  # names and shapes differ, the bytes do not
        named = _named(self._file.entries)
        self._names = {there.name: name for name, there in named.items()}
        self.entries: Mapping[str, TensorEntry] = {
            there.name: replace(self._file.entries[name], shape=there.shape) for name, there in named.items()
        }

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, see `TensorSource`."""
        there = self._file.entries[self._names[name]].shape
        tensor = self._file.read(self._names[name], None if into is None else into.reshape(there))
        return tensor.reshape(self.entries[name].shape)


def _named(entries: Header) -> dict[str, Named]:
    """Original name and shape of each tensor of the VAE by its name in the file."""
    level = next((level for level in LEVELS if any(name.startswith(level) for name in entries)), "")
    inner = {name.removeprefix(level): name for name in entries if name.startswith(level)}
    inner = {short: name for short, name in inner.items() if not short.startswith(LEFT_OVER)}
    header = {short: entries[name] for short, name in inner.items()}
    found = autoencoder_type(header)
    if found is not None and found[1]:
        names = original_names({"vae": header}, vae_names=found[0].diffusers_names)
        return {inner[short]: there for (_, short), there in names.items()}
    renames = found[0].renames if found is not None else {}
    named = {}
    for short, name in inner.items():
        module, _, leaf = short.rpartition(".")
        named[name] = Named(f"{PREFIX}.{renames.get(module, module)}.{leaf}", entries[name].shape)
    return named
