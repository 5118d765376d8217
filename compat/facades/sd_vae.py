"""`modules.sd_vae`: the VAE files that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compat.facades.refusal import lazy
from compat.host import host_now
from compat.looked_up import LookedUp

unspecified = object()
loaded_vae_file: str | None = None
checkpoint_info: Any = None
vae_ignore_keys = {"model_ema.decay", "model_ema.num_updates"}
base_vae: Any = None


vae_dict = LookedUp(lambda: {info.name: str(info.path) for info in host_now().engine.vaes.entries})


def refresh_vae_list() -> None:
    """Look at the folders again."""
    host_now().engine.vaes.refresh()


def get_filename(filepath: str) -> str:
    """The name of a file."""
    return Path(filepath).name


def get_loaded_vae_name() -> str | None:
    """The VAE of the settings; None where it is the checkpoint's own."""
    name = host_now().settings.current.vae.sd_vae
    return None if name in ("Automatic", "None", "") else name


def get_loaded_vae_hash() -> str | None:
    """The short hash of that file, where it is known."""
    name = get_loaded_vae_name()
    return next((info.shorthash for info in host_now().engine.vaes.entries if info.name == name), None)


def find_vae_near_checkpoint(checkpoint_file: str) -> str | None:
    """The file NAME.vae.* beside a checkpoint NAME; None where there is none."""
    path = Path(checkpoint_file)
    found = (path.with_name(f"{path.stem}.vae{end}") for end in (".safetensors", ".pt", ".ckpt"))
    return next((str(file) for file in found if file.is_file()), None)


def clear_loaded_vae() -> None:
    """The program knows which VAE is in use."""


def delete_base_vae() -> None:
    """The program keeps no second VAE."""


def reload_vae_weights(sd_model: Any = None, vae_file: Any = unspecified) -> None:
    """Make a file the VAE of the settings."""
    if isinstance(vae_file, str):
        host_now().settings.update({"sd_vae": get_filename(vae_file)})


def _folder() -> str:
    return str(host_now().paths.vae_dirs[0])


_LOADED = "VAEs are loaded by the program; set sd_vae, in the settings or in p.override_settings."
_REASONS = dict.fromkeys(("get_base_vae", "VaeResolution", "resolve_vae_from_setting", "_load_vae_dict"), _LOADED)
_REASONS |= dict.fromkeys(("load_vae", "resolve_vae", "restore_base_vae", "store_base_vae", "load_vae_dict"), _LOADED)
__getattr__ = lazy("sd_vae", {"vae_path": _folder}, _REASONS)
