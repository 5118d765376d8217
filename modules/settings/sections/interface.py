"""The page: prompt editing, gallery, what is shown, infotext, live previews."""

from modules.settings.group import Group
from modules.settings.setting import Section

PROMPT = Group(Section(id="ui_prompt_editing", title="Prompt editing", category="User Interface"))
GALLERY = Group(Section(id="ui_gallery", title="Gallery", category="User Interface"))
ALTERNATIVES = Group(Section(id="ui_alternatives", title="UI alternatives", category="User Interface"))
UI = Group(Section(id="ui", title="User interface", category="User Interface"))
INFOTEXT = Group(Section(id="infotext", title="Infotext", category="User Interface"))
PREVIEWS = Group(Section(id="ui", title="Live previews", category="User Interface"))
CANVAS = Group(Section(id="canvas_hotkey", title="Canvas Hotkeys"))
EXTRA_OPTIONS = Group(Section(id="settings_in_ui", title="Settings in UI", category="User Interface"))

SETTINGS = (
    PROMPT.number(
        "keyedit_precision_attention",
        "Precision for (attention:1.1) when editing the prompt with Ctrl+up/down",
        0.1,
        minimum=0.01,
        maximum=0.2,
        step=0.001,
    ),
    PROMPT.number(
        "keyedit_precision_extra",
        "Precision for <extra networks:0.9> when editing the prompt with Ctrl+up/down",
        0.05,
        minimum=0.01,
        maximum=0.2,
        step=0.001,
    ),
    PROMPT.text(
        "keyedit_delimiters", "Word delimiters when editing the prompt with Ctrl+up/down", r".,\/!?%^*;:{}=`~() "
    ),
    PROMPT.many(
        "keyedit_delimiters_whitespace",
        "Ctrl+up/down whitespace delimiters",
        ("Tab", "Carriage Return", "Line Feed"),
        ("Tab", "Carriage Return", "Line Feed"),
    ),
    PROMPT.flag("keyedit_move", "Alt+left/right moves prompt elements", True),
    PROMPT.flag("disable_token_counters", "Disable prompt token counters", False),
    PROMPT.flag("include_styles_into_token_counters", "Count tokens of enabled styles", True),
    GALLERY.flag("return_grid", "Show grid in gallery", True),
    GALLERY.flag("do_not_show_images", "Do not show any images in gallery", False),
    GALLERY.flag("js_modal_lightbox", "Full page image viewer: enable", True),
    GALLERY.flag(
        "js_modal_lightbox_initially_zoomed", "Full page image viewer: show images zoomed in by default", True
    ),
    GALLERY.number(
        "sd_webui_modal_lightbox_icon_opacity",
        "Full page image viewer: opacity of its buttons where the mouse is elsewhere",
        1.0,
        minimum=0,
        maximum=1,
        step=0.01,
    ),
    GALLERY.choice(
        "open_dir_button_choice",
        "What Open folder opens",
        "Subdirectory",
        ("Output Root", "Subdirectory", "Subdirectory (even temp dir)"),
        hint="Images are never kept in a temporary folder here: the last two are the same.",
    ),
    GALLERY.text("gallery_height", "Gallery height", "", needs_reload=True, hint="A CSS length such as 768px or 70vh."),
    UI.many(
        "quicksettings_list",
        "Quicksettings list",
        ("sd_model_checkpoint",),
        "settings",
        needs_reload=True,
        hint="Settings shown at the top of the page.",
    ),
    ALTERNATIVES.flag(
        "interrupt_after_current",
        "Don't interrupt in the middle",
        True,
        hint="The Interrupt button first lets the present image be finished, where more are to come; a second press "
        "stops at once.",
    ),
    UI.flag("show_progress_in_title", "Show generation progress in window title", True),
    UI.flag("send_seed", "Send the seed along with a prompt or image", True),
    UI.flag("send_size", "Send the size along with a prompt or image", True),
    INFOTEXT.flag("enable_pnginfo", "Write infotext to metadata of the generated image", True),
    INFOTEXT.flag("save_txt", "Create a text file with infotext next to every generated image", False),
    INFOTEXT.flag("add_model_name_to_info", "Add model name to infotext", True),
    INFOTEXT.flag("add_model_hash_to_info", "Add model hash to infotext", True),
    INFOTEXT.flag("add_vae_name_to_info", "Add VAE name to infotext", True),
    INFOTEXT.flag("add_vae_hash_to_info", "Add VAE hash to infotext", True),
    INFOTEXT.flag("add_user_name_to_info", "Add user name to infotext when authenticated", False),
    INFOTEXT.flag("add_version_to_infotext", "Add program version to infotext", True),
    INFOTEXT.flag(
        "disable_weights_auto_swap",
        "Disregard checkpoint information from pasted infotext",
        True,
        hint="Pasting then never switches the model.",
    ),
    INFOTEXT.many("infotext_skip_pasting", "Disregard fields from pasted infotext", (), "infotext_fields"),
    INFOTEXT.choice(
        "infotext_styles",
        "Infer styles from prompts of pasted infotext",
        "Apply if any",
        ("Ignore", "Apply", "Discard", "Apply if any"),
        hint="Ignore: the prompt stays as it is. Apply: styles found in it are taken out and chosen instead. "
        "Discard: they are only taken out. Apply if any: as Apply, but the chosen styles stay if none is found.",
    ),
    PREVIEWS.flag("show_progressbar", "Show progressbar", True),
    PREVIEWS.flag("live_previews_enable", "Show live previews of the created image", True),
    PREVIEWS.choice("live_previews_image_format", "Live preview file format", "png", ("jpeg", "png", "webp")),
    PREVIEWS.flag(
        "show_progress_grid",
        "Show previews of all images generated in a batch as a grid",
        True,
        hint="Off: only the first of a batch.",
    ),
    PREVIEWS.flag(
        "prevent_screen_sleep_during_generation",
        "Prevent screen sleep during generation",
        True,
        hint="Where the browser allows it: on this machine, or over https.",
    ),
    PREVIEWS.whole(
        "show_progress_every_n_steps",
        "Live preview display period",
        10,
        minimum=-1,
        maximum=32,
        step=1,
        hint="In sampling steps; -1: after every batch.",
    ),
    PREVIEWS.choice(
        "show_progress_type",
        "Live preview method",
        "Approx NN",
        ("Full", "Approx NN", "Approx cheap", "TAESD"),
        hint="Full: the VAE itself, slow. TAESD: a tiny network in models/VAE-taesd. Approx NN: an even smaller one in "
        "models/VAE-approx; without its file as Approx cheap, which only mixes colours.",
    ),
    PREVIEWS.flag(
        "live_preview_allow_lowvram_full",
        "Allow Full live preview method with lowvram/medvram",
        False,
        hint="Streamed weights then make way for the VAE at each preview; off: such previews are Approx cheap.",
    ),
    PREVIEWS.whole(
        "live_preview_refresh_period",
        "Progressbar and preview update period",
        1000,
        minimum=50,
        hint="In milliseconds.",
    ),
    *GALLERY.reserved(
        {
            "js_modal_lightbox_gamepad": False,
            "js_modal_lightbox_gamepad_repeat": 250,
            "sd_webui_modal_lightbox_toolbar_opacity": 0.9,
        }
    ),
    *ALTERNATIVES.reserved(
        {
            "compact_prompt_box": False,
            "samplers_in_dropdown": True,
            "dimensions_and_batch_together": True,
            "sd_checkpoint_dropdown_use_short": False,
            "hires_fix_show_sampler": False,
            "hires_fix_show_prompts": False,
            "txt2img_settings_accordion": False,
            "img2img_settings_accordion": False,
        }
    ),
    *UI.reserved(
        {
            "localization": "None",
            "ui_tab_order": (),
            "hidden_tabs": (),
            "ui_reorder_list": (),
            "gradio_theme": "Default",
            "gradio_themes_cache": True,
            "enable_reloading_ui_scripts": False,
        }
    ),
    *INFOTEXT.reserved({"infotext_explanation": ""}),
    *PREVIEWS.reserved(
        {
            "live_preview_content": "Prompt",
            "live_preview_fast_interrupt": False,
            "js_live_preview_in_modal_lightbox": False,
        }
    ),
    *CANVAS.reserved(
        {
            "canvas_hotkey_zoom": "Alt",
            "canvas_hotkey_adjust": "Ctrl",
            "canvas_hotkey_shrink_brush": "Q",
            "canvas_hotkey_grow_brush": "W",
            "canvas_hotkey_move": "F",
            "canvas_hotkey_fullscreen": "S",
            "canvas_hotkey_reset": "R",
            "canvas_hotkey_overlap": "O",
            "canvas_show_tooltip": True,
            "canvas_auto_expand": True,
            "canvas_blur_prompt": False,
            "canvas_disabled_functions": ("Overlap",),
        }
    ),
    *EXTRA_OPTIONS.reserved(
        {
            "settings_in_ui": "",
            "extra_options_txt2img": (),
            "extra_options_img2img": (),
            "extra_options_cols": 1,
            "extra_options_accordion": False,
        }
    ),
)
