"""The page of LoRA cards beside the prompt."""

from __future__ import annotations

from modules import extra_networks
from modules.adapters.adapter_file import SUFFIXES
from modules.model_cards.card_pages import NOTES_IN_TAG, adapter_files, adapter_hash_of
from modules.scripts import Program
from modules.settings.values import Settings

FILENAME = "Filename"


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
            catalogue, listing, by_alias=settings.text("lora_preferred_name") != FILENAME
        ),
        hash_of=lambda file: adapter_hash_of(catalogue, file),
        other_versions=other_versions,
    )


def other_versions(settings: Settings) -> extra_networks.OtherVersions:
    """Adapters for other versions of Stable Diffusion are hidden at first, unless a setting shows all."""
    if settings.flag("lora_show_all"):
        return extra_networks.OtherVersions()
    return extra_networks.OtherVersions(True, settings.many("lora_hide_unknown_for_versions"))


extra_networks.register_page(lora_page)
