"""All settings the program knows, in the order of the settings page. A new group is a new file in `sections/`."""

from dataclasses import replace

from modules.registry import Registry
from modules.settings.sections import (
    extra_networks,
    interface,
    optimizations,
    postprocessing,
    samplers,
    saving,
    stable_diffusion,
    system,
)
from modules.settings.setting import Kind, Section, Setting, SettingValue

__all__ = ["DIRECTORY_KEYS", "SETTINGS", "Kind", "Section", "Setting", "SettingValue", "visible_sections"]

# Accepted, kept and recorded, but not shown until something in the program listens to them.
WITHOUT_EFFECT = frozenset(
    {
        "enable_batch_seeds",
        "list_hidden_files",
        *("api_enable_requests", "api_forbid_local_requests", "api_useragent"),
    }
)

OWN_KEYS = frozenset(
    {
        *("fp8_format", "fp8_skip", "fp8_text_encoder", "compute_dtype", "compute_mode", "lora_mode"),
        "vae_tile_size",
        "queue_limit",
        "split_feed_forward",
        *("sd_checkpoints_ram_gb", "sd_checkpoints_vram_gb"),
        *("stream_weights", "stream_keep_gb", "offload_quota_gb"),
    }
)
"""The keys that the reference UI does not have."""

SETTINGS: Registry[Setting] = Registry("setting")
for _group in (
    saving.SETTINGS,
    stable_diffusion.SETTINGS,
    optimizations.SETTINGS,
    samplers.SETTINGS,
    extra_networks.SETTINGS,
    interface.SETTINGS,
    system.SETTINGS,
    postprocessing.SETTINGS,
):
    for _setting in _group:
        SETTINGS.add(_setting.key, replace(_setting, hidden=True) if _setting.key in WITHOUT_EFFECT else _setting)

DIRECTORY_KEYS = frozenset(
    {"samples_filename_pattern", "directories_filename_pattern", "temp_dir", "clean_temp_dir_at_start"}
    | {key for key in SETTINGS if key.startswith("outdir_")}
)
"""What `--hide-ui-dir-config` keeps from being changed: everything that says where files are written."""


def visible_sections(settings: Registry[Setting] = SETTINGS) -> dict[Section, tuple[Setting, ...]]:
    """The settings page: sections in order, each with the settings that are shown; empty sections are left out."""
    page: dict[Section, list[Setting]] = {}
    for _, setting in settings.items():
        if not setting.hidden:
            page.setdefault(setting.section, []).append(setting)
    return {section: tuple(rows) for section, rows in page.items()}
