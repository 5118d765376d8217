"""All settings the program knows, in the order of the settings page. A new group is a new file in `sections/`."""

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
        SETTINGS.add(_setting.key, _setting)

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
