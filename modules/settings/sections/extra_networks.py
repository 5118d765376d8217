"""Embeddings, hypernetworks and cards of models: how they are listed and recorded."""

from modules.settings.group import Group
from modules.settings.setting import Section

ADAPTERS = Group(Section(id="extra_networks", title="Extra Networks", category="Stable Diffusion"))
PIXELS = "In pixels; 0: as the page likes it."

SETTINGS = (
    ADAPTERS.flag("textual_inversion_add_hashes_to_infotext", "Add Textual Inversion hashes to infotext", True),
    ADAPTERS.text(
        "sd_hypernetwork",
        "Add hypernetwork to prompt",
        "None",
        hint="The name of a hypernetwork that every image gets. None: none.",
    ),
    ADAPTERS.number(
        "extra_networks_default_multiplier",
        "Default multiplier for extra networks",
        1.0,
        minimum=0,
        maximum=2,
        step=0.01,
    ),
    ADAPTERS.text(
        "extra_networks_add_text_separator",
        "Extra networks separator",
        " ",
        hint="Put before what a card adds to the prompt.",
    ),
    ADAPTERS.choice(
        "extra_networks_card_order_field",
        "Default order field for Extra Networks cards",
        "Path",
        ("Path", "Name", "Date Created", "Date Modified"),
        needs_reload=True,
    ),
    ADAPTERS.choice(
        "extra_networks_card_order",
        "Default order for Extra Networks cards",
        "Ascending",
        ("Ascending", "Descending"),
        needs_reload=True,
    ),
    ADAPTERS.whole("extra_networks_card_width", "Card width for Extra Networks", 0, minimum=0, hint=PIXELS),
    ADAPTERS.whole("extra_networks_card_height", "Card height for Extra Networks", 0, minimum=0, hint=PIXELS),
    ADAPTERS.number("extra_networks_card_text_scale", "Card text scale", 1.0, minimum=0, maximum=2, step=0.01),
    ADAPTERS.flag("extra_networks_card_show_desc", "Show description on card", True),
    ADAPTERS.flag(
        "extra_networks_card_description_is_html",
        "Treat card description as HTML",
        False,
        hint="Plain formatting and links only; scripts, images and styles are left out.",
    ),
    ADAPTERS.choice(
        "extra_networks_tree_view_style",
        "Extra Networks directory view style",
        "Dirs",
        ("Tree", "Dirs"),
        needs_reload=True,
    ),
    ADAPTERS.flag(
        "extra_networks_tree_view_default_enabled",
        "Show the Extra Networks directory view by default",
        True,
        needs_reload=True,
    ),
    ADAPTERS.whole(
        "extra_networks_tree_view_default_width",
        "Default width for the Extra Networks directory tree view",
        180,
        minimum=0,
        hint="In pixels.",
        needs_reload=True,
    ),
    ADAPTERS.flag("extra_networks_dir_button_function", "Add a '/' to the beginning of directory buttons", False),
    ADAPTERS.flag(
        "extra_networks_show_hidden_directories",
        "Show hidden directories",
        True,
        hint="Directories whose name begins with a dot.",
    ),
    ADAPTERS.choice(
        "extra_networks_hidden_models",
        "Show cards for models in hidden directories",
        "When searched",
        ("Always", "When searched", "Never"),
        hint="When searched: for at least four letters in the search field.",
    ),
    ADAPTERS.text(
        "ui_extra_networks_tab_reorder",
        "Extra networks tab order",
        "",
        needs_reload=True,
        hint="Names of tabs with commas between; those that are not named come after.",
    ),
    *ADAPTERS.reserved(
        {
            "textual_inversion_print_at_load": False,
        }
    ),
)
