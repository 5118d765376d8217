"""The page of LoRA cards next to the prompt."""

from __future__ import annotations

from modules.adapters.adapter_facts import SUFFIXES
from modules.model_cards.card_pages import NOTES_IN_TAG, adapter_files, adapter_hash_of
from modules.scripts import Program, extra_networks, script_callbacks
from modules.scripts.settings import ExtensionSettings
from modules.settings.group import SettingsGroup, choice, flag, many
from modules.settings.sections.extra_networks import ExtraNetworkSettings
from modules.settings.values import Settings

FILENAME = "Filename"


class LoraPageSettings(SettingsGroup):
    """Which cards are shown, and what a click on one writes."""

    section = ExtraNetworkSettings.section

    lora_preferred_name = choice(
        "When adding to prompt, refer to Lora by",
        "Alias from file",
        ("Alias from file", FILENAME),
        hint="A name that another file answers to, or that cannot stand in a tag, is replaced by the file's hash.",
    )
    lora_show_all = flag(
        "Always show all networks on the Lora page",
        False,
        hint="Otherwise those that say they were made for another version of Stable Diffusion are hidden.",
    )
    lora_hide_unknown_for_versions = many(
        "Hide networks of unknown versions for model versions", (), ("SD1", "SD2", "SDXL")
    )


def add_settings(settings: ExtensionSettings) -> None:
    """Called while the program starts."""
    settings.add(LoraPageSettings)
    settings.section("extra_networks").kept(
        {
            "lora_in_memory_limit": 0,
            "lora_not_found_warning_console": False,
            "lora_not_found_gradio_warning": False,
        }
    )
    settings.section("compatibility").kept({"lora_functional": False})


def lora_page(program: Program) -> extra_networks.CardPage:
    """`<lora:name:weight>`, by the alias in the file or by the file's name, as the setting says."""
    catalogue = program.adapters().catalogue
    return extra_networks.CardPage(
        id="lora",
        title="Lora",
        folders=program.folders("Lora"),
        suffixes=SUFFIXES,
        tag="lora",
        tag_aliases=("lyco",),
        notes=NOTES_IN_TAG,
        list_files=lambda listing, settings: adapter_files(
            catalogue, listing, by_alias=LoraPageSettings(settings).lora_preferred_name != FILENAME
        ),
        hash_of=lambda file: adapter_hash_of(catalogue, file),
        other_versions=other_versions,
        few_steps=lambda file: extra_networks.adapter_few_steps(file.path, file.metadata),
    )


def other_versions(settings: Settings) -> extra_networks.OtherVersions:
    """Adapters for other versions of Stable Diffusion are hidden at first, unless a setting shows all."""
    page = LoraPageSettings(settings)
    if page.lora_show_all:
        return extra_networks.OtherVersions()
    return extra_networks.OtherVersions(True, page.lora_hide_unknown_for_versions)


script_callbacks.on_ui_settings(add_settings)
extra_networks.register_page(lora_page)
