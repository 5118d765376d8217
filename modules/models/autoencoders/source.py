"""Where the tensors of a VAE come from, when not from the checkpoint itself."""

from contextlib import ExitStack
from pathlib import Path

from modules.models.autoencoders.autoencoder import PREFIX
from modules.models.autoencoders.registry import autoencoder_type
from modules.models.detection.parts import VAE_LEVELS
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.component import Header
from modules.models.names.diffusers_names import Named, original_names
from modules.models.names.view import Place, View

LEFT_OVER = ("loss.", "model_ema.")  # of the training of an autoencoder


def open_vae(path: Path) -> View:
    """Open a file with a VAE, see `vae_of`. Raises `CheckpointError` as `open_tensors` does."""
    return vae_of(open_tensors(path))


def vae_of(file: TensorSource) -> View:
    """Return the VAE in a file (names begin with `encoder.`, `decoder.` ..., of the original or the diffusers layout)
    or in a whole checkpoint; either way names are the original ones and begin with `first_stage_model.`. The file is
    closed with the result."""
    with ExitStack() as files:
        files.push(file)
        places = {there.name: Place(file, name, there.shape) for name, there in _named(file.entries).items()}
        return View(file.path, places, files.pop_all(), file.metadata)


def _named(entries: Header) -> dict[str, Named]:
    """Original name and shape of each tensor of the VAE by its name in the file."""
    level = next((level for level in VAE_LEVELS if any(name.startswith(level) for name in entries)), "")
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
