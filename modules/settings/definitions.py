"""All settings the program knows, in the order of the settings page. A new group is a class in `sections/` and one
line here; `Settings` (`values.py`) then has an attribute of that name."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from modules.flags.flags import Flags
from modules.settings.group import SettingsGroup
from modules.settings.sections import without_effect
from modules.settings.sections.extra_networks import ExtraNetworkSettings
from modules.settings.sections.interface import (
    CanvasHotkeySettings,
    GallerySettings,
    InfotextSettings,
    InterfaceAlternativeSettings,
    InterfaceSettings,
    PreviewSettings,
    PromptEditingSettings,
)
from modules.settings.sections.interrogate import InterrogateSettings
from modules.settings.sections.optimizations import CompatibilitySettings, OptimizationSettings
from modules.settings.sections.postprocessing import FaceRestorationSettings, PostprocessingSettings, UpscalingSettings
from modules.settings.sections.samplers import SamplerSettings
from modules.settings.sections.saving import ImageSavingSettings, SavingFolderSettings, SavingPathSettings
from modules.settings.sections.stable_diffusion import (
    Img2ImgSettings,
    Sd3Settings,
    SdxlSettings,
    StableDiffusionSettings,
    VaeSettings,
)
from modules.settings.sections.system import ApiSettings, HiddenSettings, SystemSettings
from modules.settings.setting import Section, Setting, SettingType, SettingValue
from modules.system.registry import Registry

__all__ = ["DIRECTORY_KEYS", "SETTINGS", "Section", "Setting", "SettingType", "SettingValue", "visible_sections"]

G = TypeVar("G", bound=SettingsGroup)


class GroupAttribute(Generic[G]):
    """A group as an attribute of a mapping of all values: reading it gives the group's view of those values."""

    def __init__(self, group: type[G]) -> None:
        self.group = group

    def __get__(self, values: Mapping[str, SettingValue], owner: type[object]) -> G:
        return self.group(values)


class SettingsGroups(Mapping[str, SettingValue]):
    """The groups by name; mixed into `Settings`, which has the values."""

    saving = GroupAttribute(ImageSavingSettings)
    saving_paths = GroupAttribute(SavingPathSettings)
    saving_folders = GroupAttribute(SavingFolderSettings)
    stable_diffusion = GroupAttribute(StableDiffusionSettings)
    vae = GroupAttribute(VaeSettings)
    img2img = GroupAttribute(Img2ImgSettings)
    sdxl = GroupAttribute(SdxlSettings)
    sd3 = GroupAttribute(Sd3Settings)
    optimizations = GroupAttribute(OptimizationSettings)
    compatibility = GroupAttribute(CompatibilitySettings)
    sampler = GroupAttribute(SamplerSettings)
    extra_networks = GroupAttribute(ExtraNetworkSettings)
    prompt_editing = GroupAttribute(PromptEditingSettings)
    canvas_hotkeys = GroupAttribute(CanvasHotkeySettings)
    gallery = GroupAttribute(GallerySettings)
    interface = GroupAttribute(InterfaceSettings)
    interface_alternatives = GroupAttribute(InterfaceAlternativeSettings)
    infotext = GroupAttribute(InfotextSettings)
    previews = GroupAttribute(PreviewSettings)
    system = GroupAttribute(SystemSettings)
    api = GroupAttribute(ApiSettings)
    hidden = GroupAttribute(HiddenSettings)
    interrogate = GroupAttribute(InterrogateSettings)
    upscaling = GroupAttribute(UpscalingSettings)
    face_restoration = GroupAttribute(FaceRestorationSettings)
    postprocessing = GroupAttribute(PostprocessingSettings)


PROGRAM_SETTINGS: tuple[Setting, ...] = tuple(
    setting
    for entry in vars(SettingsGroups).values()
    if isinstance(entry, GroupAttribute)
    for setting in entry.group.definitions()
)
"""The settings of the groups, without those of extensions and those without an effect."""


def _program_settings() -> Registry[Setting]:
    settings: Registry[Setting] = Registry("setting")
    for setting in (*PROGRAM_SETTINGS, *without_effect.SETTINGS):
        settings.add(setting.key, setting)
    return settings


SETTINGS = _program_settings()
"""Every setting by its key; extensions add theirs while the program starts."""

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


def locked_settings(flags: Flags) -> frozenset[str]:
    """The settings that the command line forbids to change."""
    if flags.freeze_settings:
        return frozenset(SETTINGS)
    locked = set((flags.freeze_specific_settings or "").split(",")) - {""}
    locked |= {key for key, setting in SETTINGS.items() if setting.by_hand}
    sections = set((flags.freeze_settings_in_sections or "").split(",")) - {""}
    for key, setting in SETTINGS.items():
        if setting.section.id in sections or (flags.hide_ui_dir_config and key in DIRECTORY_KEYS):
            locked.add(key)
    return frozenset(locked)
