"""The page: prompt editing, gallery, what is shown, infotext, live previews."""

from modules.settings.group import SettingsGroup, choice, flag, many, number, text, whole
from modules.settings.sections.stable_diffusion import FULL, TINY
from modules.settings.setting import Section
from modules.system.texts import page_text

APPROX = "Approx NN"
MODIFIERS = ("Shift", "Ctrl", "Alt")


class PromptEditingSettings(SettingsGroup):
    """Keys and counters of the prompt fields."""

    section = Section(id="ui_prompt_editing", title="Prompt editing", category="User Interface")

    keyedit_precision_attention = number(
        "Precision for (attention:1.1) when editing the prompt with Ctrl+up/down",
        0.1,
        minimum=0.01,
        maximum=0.2,
        step=0.001,
    )
    keyedit_precision_extra = number(
        "Precision for <extra networks:0.9> when editing the prompt with Ctrl+up/down",
        0.05,
        minimum=0.01,
        maximum=0.2,
        step=0.001,
    )
    keyedit_delimiters = text("Word delimiters when editing the prompt with Ctrl+up/down", r".,\/!?%^*;:{}=`~() ")
    keyedit_delimiters_whitespace = many(
        "Ctrl+up/down whitespace delimiters",
        ("Tab", "Carriage Return", "Line Feed"),
        ("Tab", "Carriage Return", "Line Feed"),
    )
    keyedit_move = flag("Alt+left/right moves prompt elements", True)
    disable_token_counters = flag("Disable prompt token counters", False)
    include_styles_into_token_counters = flag("Count tokens of enabled styles", True)


class CanvasHotkeySettings(SettingsGroup):
    """Keys of the canvases of img2img, beside those that are always there ([ ], +, -, 0, F)."""

    section = Section(id="canvas_hotkey", title="Canvas Hotkeys", category="User Interface")

    canvas_hotkey_zoom = choice("Zoom the canvas: the wheel with this key", "Alt", MODIFIERS)
    canvas_hotkey_adjust = choice("Brush size: the wheel with this key", "Ctrl", MODIFIERS)
    canvas_hotkey_shrink_brush = text("Make the brush smaller", "Q", hint="One key; empty: none.")
    canvas_hotkey_grow_brush = text("Make the brush larger", "W")
    canvas_hotkey_move = text("Move the canvas while this key is held", "F")
    canvas_hotkey_fullscreen = text("Canvas on the full screen, and back", "S")
    canvas_hotkey_reset = text("Show the whole canvas", "R")
    canvas_hotkey_overlap = text("Canvas over the whole page, and back", "O")
    canvas_show_tooltip = flag("List the keys on the canvas", True)
    canvas_auto_expand = flag(
        "Show all of a tall image",
        True,
        hint="Off: the image fills the width of the canvas and scrolls.",
    )
    canvas_blur_prompt = flag("Take the focus off the prompt while the pointer is on a canvas", False)
    canvas_disabled_functions = many(
        "Functions of the canvas that are switched off",
        ("Overlap",),
        (
            *("Zoom", page_text("Adjust brush size"), "Hotkey enlarge brush", "Hotkey shrink brush", "Moving canvas"),
            *("Fullscreen", "Reset Zoom", "Overlap"),
        ),
    )


class GallerySettings(SettingsGroup):
    """The gallery and its full page viewer."""

    section = Section(id="ui_gallery", title="Gallery", category="User Interface")

    return_grid = flag("Show grid in gallery", True)
    do_not_show_images = flag("Do not show any images in gallery", False)
    js_modal_lightbox = flag("Full page image viewer: enable", True)
    js_modal_lightbox_initially_zoomed = flag("Full page image viewer: show images zoomed in by default", True)
    sd_webui_modal_lightbox_icon_opacity = number(
        "Full page image viewer: opacity of its buttons while the mouse is elsewhere",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
    )
    js_modal_lightbox_gamepad = flag(
        "Full page image viewer: go through the images with a gamepad",
        False,
        hint="By its stick or cross, left and right.",
    )
    js_modal_lightbox_gamepad_repeat = whole(
        "Gamepad repeat period, in milliseconds",
        250,
        minimum=50,
        hint="How fast images change while the stick is held.",
    )
    open_dir_button_choice = choice(
        "What Open folder opens",
        "Subdirectory",
        ("Output Root", "Subdirectory", "Subdirectory (even temp dir)"),
        hint="Images are never kept in a temporary folder here: the last two are the same.",
    )
    gallery_height = text("Gallery height", "", needs_reload=True, hint="A CSS length such as 768px or 70vh.")


class InterfaceSettings(SettingsGroup):
    """The page as a whole."""

    section = Section(id="ui", title="User interface", category="User Interface")

    quicksettings_list = many(
        "Quicksettings list",
        ("sd_model_checkpoint",),
        "settings",
        needs_reload=True,
        hint="Settings shown at the top of the page.",
    )
    localization = choice(
        "Localization",
        "None",
        "localizations",
        needs_reload=True,
        hint="None: as the browser prefers. The header of each page can say otherwise.",
    )
    ui_tab_order = many(
        "UI tab order",
        (),
        "tabs",
        needs_reload=True,
        hint="The tabs that come first, in this order; Reload UI shows it.",
    )
    hidden_tabs = many(
        "Hidden UI tabs", (), "tabs", needs_reload=True, hint="Reload UI shows it. Settings always stay."
    )
    gradio_theme = choice(
        "Gradio theme",
        "Default",
        "themes",
        needs_reload=True,
        hint="High contrast: dark text on white, or white on black, with borders. Reload UI shows it.",
    )
    ui_layout = choice(
        "Layout",
        "Work",
        ("Simple", "Work", "Classic"),
        hint="Work: form, image and line beside each other, each scrolling for itself, from 1200 pixels on. Classic: "
        "as the reference UI has it, prompts on top and the form beside the image. Simple: prompt, size and style.",
    )
    enqueue_always = flag("Always show Enqueue", False, hint="Otherwise the button appears while a job runs.")
    ui_density = choice(
        "Density",
        "Comfortable",
        ("Comfortable", "Compact"),
        hint="Compact: the whole form and the image on one screen of 1440x900 pixels.",
    )
    show_progress_in_title = flag("Show generation progress in window title", True)
    send_seed = flag("Send the seed along with a prompt or image", True)
    send_size = flag("Send the size along with a prompt or image", True)


class InterfaceAlternativeSettings(SettingsGroup):
    """Habits of the page that can be chosen."""

    section = Section(id="ui_alternatives", title="UI alternatives", category="User Interface")

    interrupt_after_current = flag(
        "Don't interrupt in the middle",
        True,
        hint="The first press of the Interrupt button finishes the current image of a batch; a second press "
        "stops at once.",
    )


class InfotextSettings(SettingsGroup):
    """Settings of what is written about an image, and what pasting reads."""

    section = Section(id="infotext", title="Infotext", category="User Interface")

    enable_pnginfo = flag("Write infotext to metadata of the generated image", True)
    stealth_pnginfo = choice(
        "Write infotext into the pixels of PNG images too",
        "None",
        ("None", "Alpha", "RGB"),
        hint="Survives services that drop the texts of files. Alpha: in the lowest bits of transparency, which the "
        "image then has. RGB: in those of the colors.",
    )
    save_txt = flag("Create a text file with infotext next to every generated image", False)
    add_model_name_to_info = flag("Add model name to infotext", True)
    add_model_hash_to_info = flag("Add model hash to infotext", True)
    add_vae_name_to_info = flag("Add VAE name to infotext", True)
    add_vae_hash_to_info = flag("Add VAE hash to infotext", True)
    add_user_name_to_info = flag("Add user name to infotext when authenticated", False)
    add_version_to_infotext = flag("Add program version to infotext", True)
    disable_weights_auto_swap = flag(
        "Disregard checkpoint information from pasted infotext", True, hint="Pasting then never switches the model."
    )
    infotext_skip_pasting = many("Disregard fields from pasted infotext", (), "infotext_fields")
    infotext_styles = choice(
        "Infer styles from prompts of pasted infotext",
        "Apply if any",
        ("Ignore", "Apply", "Discard", "Apply if any"),
        hint="Ignore: the prompt stays as it is. Apply: styles found in it are taken out and chosen instead. "
        "Discard: they are only taken out. Apply if any: as Apply, but the chosen styles stay if none is found.",
    )


class PreviewSettings(SettingsGroup):
    """Progress and live previews."""

    section = Section(id="ui", title="Live previews", category="User Interface")

    show_progressbar = flag("Show progressbar", True)
    live_previews_enable = flag("Show live previews of the created image", True)
    live_previews_image_format = choice("Live preview file format", "png", ("jpeg", "png", "webp"))
    show_progress_grid = flag(
        "Show previews of all images generated in a batch as a grid", True, hint="Off: only the first of a batch."
    )
    prevent_screen_sleep_during_generation = flag(
        "Prevent screen sleep during generation",
        True,
        hint="Where the browser allows it: on this machine, or over https.",
    )
    show_progress_every_n_steps = whole(
        "Live preview display period",
        10,
        minimum=-1,
        maximum=32,
        step=1,
        hint="In sampling steps; -1: after every batch.",
    )
    show_progress_type = choice(
        "Live preview method",
        APPROX,
        (FULL, APPROX, "Approx cheap", TINY),
        hint="Full: the VAE itself, slow. TAESD: a tiny VAE in models/VAE-taesd. Approx NN: an even smaller one in "
        "models/VAE-approx; without that file Approx cheap is used, which only mixes colors.",
    )
    live_preview_allow_lowvram_full = flag(
        "Allow Full live preview method with lowvram/medvram",
        False,
        hint="Each preview then moves streamed weights out for the VAE. Off: such previews use Approx cheap.",
    )
    live_preview_refresh_period = whole(
        "Progressbar and preview update period", 1000, minimum=50, hint="In milliseconds."
    )
