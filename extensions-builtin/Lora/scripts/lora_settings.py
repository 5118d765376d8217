"""The settings of LoRA, among those of extra networks."""

from modules import script_callbacks
from modules.scripts.settings import ExtensionSettings


def add_settings(settings: ExtensionSettings) -> None:
    """Called while the program starts."""
    adapters = settings.section("extra_networks")
    adapters.text(
        "sd_lora", "Add network to prompt", "None", hint="The name of a LoRA that every image gets. None: none."
    )
    adapters.choice(
        "lora_preferred_name",
        "When adding to prompt, refer to Lora by",
        "Alias from file",
        ("Alias from file", "Filename"),
        hint="A name that another file answers to, or that cannot stand in a tag, is replaced by the file's hash.",
    )
    adapters.flag("lora_add_hashes_to_infotext", "Add Lora hashes to infotext", True)
    adapters.flag(
        "lora_bundled_ti_to_infotext",
        "Add Lora name as TI hashes for embeddings inside of Lora files",
        True,
        hint="Only together with the hashes of textual inversion embeddings.",
    )
    adapters.flag(
        "lora_show_all",
        "Always show all networks on the Lora page",
        False,
        hint="Otherwise those that say they were made for another version of Stable Diffusion are hidden.",
    )
    adapters.many(
        "lora_hide_unknown_for_versions",
        "Hide networks of unknown versions for model versions",
        (),
        ("SD1", "SD2", "SDXL"),
    )
    adapters.kept(
        {
            "lora_in_memory_limit": 0,
            "lora_not_found_warning_console": False,
            "lora_not_found_gradio_warning": False,
        }
    )
    settings.section("compatibility").kept({"lora_functional": False})


script_callbacks.on_ui_settings(add_settings)
