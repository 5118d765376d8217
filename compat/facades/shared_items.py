"""`modules.shared_items`: lists for settings."""

from __future__ import annotations

from compat.facades.refusal import refusing
from compat.facades.sd_samplers import all_samplers
from compat.facades.shared import ui_reorder_categories_builtin_items
from compat.host import host_now


def list_checkpoint_tiles(use_short: bool = False) -> list[str]:
    """The titles of all checkpoints."""
    return [info.short_title if use_short else info.title for info in host_now().engine.catalogue.entries]


def refresh_checkpoints() -> None:
    """Look at the folders again."""
    host_now().engine.catalogue.refresh()


def list_samplers() -> list[str]:
    """The names of all samplers."""
    return [one.name for one in all_samplers]


def sd_vae_items() -> list[str]:
    """List what the setting sd_vae takes."""
    return host_now().engine.vaes.choices()


def refresh_vae_list() -> None:
    """Look at the folders again."""
    host_now().engine.vaes.refresh()


def realesrgan_models_names() -> list[str]:
    """The names of Real-ESRGAN files."""
    entries = host_now().engine.upscalers.catalogue.entries
    return [info.name for info in entries if info.type.folder == "RealESRGAN"]


def dat_models_names() -> list[str]:
    """The names of DAT files."""
    return [info.name for info in host_now().engine.upscalers.catalogue.entries if info.type.folder == "DAT"]


def cross_attention_optimizations() -> list[str]:
    """List what the setting cross_attention_optimization takes."""
    from modules.settings.definitions import SETTINGS

    choices = SETTINGS.get("cross_attention_optimization").choices
    return list(choices) if isinstance(choices, tuple) else []


def sd_unet_items() -> list[str]:
    """List what the setting sd_unet of the reference UI takes: the denoiser is the checkpoint's own."""
    return ["Automatic", "None"]


def refresh_unet_list() -> None:
    """There is none."""


def reload_hypernetworks() -> None:
    """Look at the folder of hypernetworks again."""
    host_now().engine.adapters.files.hypernetworks.refresh()


def ui_reorder_categories() -> list[str]:
    """The parts of the form in their order."""
    return list(ui_reorder_categories_builtin_items)


def postprocessing_scripts() -> list[object]:
    """The operations of the Extras tab."""
    return list(host_now().scripts.operations)


def get_infotext_names() -> list[str]:
    """The names under which images record settings."""
    from modules.settings.definitions import SETTINGS

    return [setting.infotext for _, setting in SETTINGS.items() if setting.infotext]


__getattr__ = refusing("shared_items", {})
