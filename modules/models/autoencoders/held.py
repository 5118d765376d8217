"""Which type of VAE a file holds, known by its header alone."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.autoencoders.autoencoder import PREFIX
from modules.models.autoencoders.registry import AUTOENCODERS, autoencoder_type, without_level
from modules.models.autoencoders.source import open_vae
from modules.models.files.tensor_source import open_tensors
from modules.models.names.component import Header

FIRST_OF_DECODER = (f"{PREFIX}.decoder.conv_in.weight", f"{PREFIX}.decoder.conv1.weight")
"""What takes own latents, in the original layouts."""


@dataclass(frozen=True)
class HeldAutoencoder:
    """A name of `AUTOENCODERS`, and the channels of own latents."""

    type: str
    channels: int


def own_channels(header: Header) -> int | None:
    """Channels of the latents that the VAE in a checkpoint's header has, before they are packed; None without one."""
    entry = next((header[name] for name in FIRST_OF_DECODER if name in header), None)
    return entry.shape[1] if entry is not None and len(entry.shape) > 1 else None


def autoencoder_in(path: Path) -> HeldAutoencoder | None:
    """What VAE a file holds; None for one that holds none, or cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _autoencoder_in(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _autoencoder_in(path: Path, size_bytes: int, mtime_ns: int) -> HeldAutoencoder | None:
    del size_bytes, mtime_ns  # of the file as it was when it was looked at
    try:
        with open_tensors(path) as file:
            inner = without_level(file.entries)
            found = autoencoder_type(inner) if len(inner) == len(file.entries) else None
        if found is None:
            return None
        with open_vae(path) as source:
            channels = own_channels(source.entries)
    except CheckpointError:  # a damaged file among others: loading it by name says what is wrong
        return None
    name = next(name for name, item in AUTOENCODERS.items() if item is found[0])
    return None if channels is None else HeldAutoencoder(name, channels)
