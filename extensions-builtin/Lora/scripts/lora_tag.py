"""`<lora:name:te:unet:dyn=N>`, also written `<lyco:...>`: adapters of the LoRA family on the model of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modules.adapters.preset_file import FILE, read_presets
from modules.adapters.tags import added_by_setting, lora_tags
from modules.errors import InvalidValueError
from modules.scripts import extra_networks, program_now, script_callbacks
from modules.settings.group import SettingsGroup, flag, text
from modules.settings.sections.extra_networks import ExtraNetworkSettings
from modules.system.texts import page_text

PROGRAM = program_now()


class LoraTagSettings(SettingsGroup):
    """A LoRA for every image, and what an image records."""

    section = ExtraNetworkSettings.section

    sd_lora = text(
        "Add network to prompt", "None", hint="The name of a LoRA that every image gets; None switches it off."
    )
    lora_add_hashes_to_infotext = flag("Add Lora hashes to infotext", True)
    lora_bundled_ti_to_infotext = flag(
        "Add Lora name as TI hashes for embeddings inside of Lora files",
        True,
        hint="Only together with the hashes of textual inversion embeddings.",
    )


def own_presets() -> tuple[Mapping[str, str], list[str]]:
    """The user's presets of block weights, and what to say of a file that cannot be read."""
    try:
        return read_presets(PROGRAM.folders(FILE)), []
    except InvalidValueError as error:
        return {}, [str(error)]


class LoraTags(extra_networks.ExtraNetwork):
    """The kind of tags; the setting "Add network to prompt" counts as one."""

    def activate(self, job: extra_networks.AdapterJob, tags: Sequence[extra_networks.PromptTag]) -> None:
        settings = LoraTagSettings(job.settings)
        strength = job.settings.extra_networks.extra_networks_default_multiplier
        added = added_by_setting(tags, settings.sd_lora, strength)
        job.record_added(self.name, [tag for tag in added if job.adapters.knows(tag.items[0])])
        presets, problems = own_presets() if tags else ({}, [])
        wanted, unread = lora_tags({self.name: [*tags, *added]}, job.adapters.knows, presets)
        problems += unread
        found = job.adapters.put_on(job.model, wanted)
        job.notices += problems
        job.notices += [
            page_text(f"The adapter {name!r} was not found and was left out. Refresh the list of adapters.")
            for name in found.missing
        ]
        job.notices += found.notices
        job.uses += found.uses
        job.mode, job.retention = found.mode, found.retention
        job.embeddings |= found.embeddings
        if not settings.lora_bundled_ti_to_infotext:
            job.unrecorded |= set(found.embeddings)
        if found.hashes and settings.lora_add_hashes_to_infotext:
            job.fields["Lora hashes"] = ", ".join(f"{name}: {short}" for name, short in found.hashes.items())
        if found.mode_matters:
            job.fields["LoRA mode"] = found.mode


script_callbacks.on_ui_settings(lambda settings: settings.add(LoraTagSettings))
extra_networks.register_extra_network(LoraTags("lora", aliases=("lyco",)))
