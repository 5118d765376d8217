"""Embeddings, LoRA and hypernetworks: how they are listed and recorded."""

from modules.settings.group import Group
from modules.settings.setting import Section

NETWORKS = Group(Section(id="extra_networks", title="Extra Networks", category="Stable Diffusion"))

SETTINGS = (
    NETWORKS.flag("textual_inversion_add_hashes_to_infotext", "Add Textual Inversion hashes to infotext", True),
    NETWORKS.text(
        "sd_lora", "Add network to prompt", "None", hint="The name of a LoRA that every picture gets. None: none."
    ),
    NETWORKS.text(
        "sd_hypernetwork",
        "Add hypernetwork to prompt",
        "None",
        hint="The name of a hypernetwork that every picture gets. None: none.",
    ),
    NETWORKS.flag("lora_add_hashes_to_infotext", "Add Lora hashes to infotext", True),
    NETWORKS.number(
        "extra_networks_default_multiplier",
        "Default multiplier for extra networks",
        1.0,
        minimum=0,
        maximum=2,
        step=0.01,
    ),
    *NETWORKS.reserved(
        {
            "extra_networks_show_hidden_directories": True,
            "extra_networks_dir_button_function": False,
            "extra_networks_hidden_models": "When searched",
            "extra_networks_card_width": 0,
            "extra_networks_card_height": 0,
            "extra_networks_card_text_scale": 1.0,
            "extra_networks_card_show_desc": True,
            "extra_networks_card_description_is_html": False,
            "extra_networks_card_order_field": "Path",
            "extra_networks_card_order": "Ascending",
            "extra_networks_tree_view_style": "Dirs",
            "extra_networks_tree_view_default_enabled": True,
            "extra_networks_tree_view_default_width": 180,
            "extra_networks_add_text_separator": " ",
            "ui_extra_networks_tab_reorder": "",
            "textual_inversion_print_at_load": False,
            "lora_preferred_name": "Alias from file",
            "lora_bundled_ti_to_infotext": True,
            "lora_show_all": False,
            "lora_hide_unknown_for_versions": (),
            "lora_in_memory_limit": 0,
            "lora_not_found_warning_console": False,
            "lora_not_found_gradio_warning": False,
        }
    ),
)
