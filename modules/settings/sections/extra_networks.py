"""Embeddings, hypernetworks and cards of models: how they are listed and recorded."""

from modules.settings.group import SettingsGroup, choice, flag, number, text, whole
from modules.settings.setting import Section

PIXELS = "In pixels; 0: the page decides."


class ExtraNetworkSettings(SettingsGroup):
    """Embeddings, hypernetworks and their cards."""

    section = Section(id="extra_networks", title="Extra Networks", category="Stable Diffusion")

    textual_inversion_add_hashes_to_infotext = flag("Add Textual Inversion hashes to infotext", True)
    sd_hypernetwork = text(
        "Add hypernetwork to prompt",
        "None",
        hint="The name of a hypernetwork that every image gets; None switches it off.",
        affects_image=True,
    )
    extra_networks_default_multiplier = number(
        "Default multiplier for extra networks",
        1.0,
        minimum=0,
        maximum=2,
        step=0.01,
        affects_image=True,
    )
    extra_networks_add_text_separator = text(
        "Extra networks separator",
        " ",
        hint="Put before what a card adds to the prompt.",
    )
    extra_networks_card_order_field = choice(
        "Default order field for Extra Networks cards",
        "Path",
        ("Path", "Name", "Date Created", "Date Modified"),
        needs_reload=True,
    )
    extra_networks_card_order = choice(
        "Default order for Extra Networks cards", "Ascending", ("Ascending", "Descending"), needs_reload=True
    )
    extra_networks_card_width = whole("Card width for Extra Networks", 0, minimum=0, hint=PIXELS)
    extra_networks_card_height = whole("Card height for Extra Networks", 0, minimum=0, hint=PIXELS)
    extra_networks_card_text_scale = number("Card text scale", 1.0, minimum=0, maximum=2, step=0.01)
    extra_networks_card_show_desc = flag("Show description on card", True)
    extra_networks_card_description_is_html = flag(
        "Treat card description as HTML",
        False,
        hint="Plain formatting and links only; scripts, images and styles are left out.",
    )
    extra_networks_tree_view_style = choice(
        "Extra Networks directory view style", "Dirs", ("Tree", "Dirs"), needs_reload=True
    )
    extra_networks_tree_view_default_enabled = flag(
        "Show the Extra Networks directory view by default", True, needs_reload=True
    )
    extra_networks_tree_view_default_width = whole(
        "Default width for the Extra Networks directory tree view", 180, minimum=0, hint="In pixels.", needs_reload=True
    )
    extra_networks_dir_button_function = flag("Add a '/' to the beginning of directory buttons", False)
    extra_networks_show_hidden_directories = flag(
        "Show hidden directories", True, hint="Directories whose name begins with a dot."
    )
    extra_networks_hidden_models = choice(
        "Show cards for models in hidden directories",
        "When searched",
        ("Always", "When searched", "Never"),
        hint="When searched: for at least four letters in the search field.",
    )
    ui_extra_networks_tab_reorder = text(
        "Extra networks tab order",
        "",
        needs_reload=True,
        hint="Names of tabs, separated by commas; the others follow.",
    )
