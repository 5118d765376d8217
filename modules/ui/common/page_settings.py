"""The settings that the page's script follows; they come with the engine's state, so a change needs no reload."""

from typing import Any

from modules.settings.values import Settings

PAGE_SETTINGS = (
    *("show_progress_in_title", "show_progressbar", "live_preview_refresh_period"),
    *("do_not_show_images", "js_modal_lightbox", "js_modal_lightbox_initially_zoomed", "gallery_height"),
    *("keyedit_precision_attention", "keyedit_precision_extra", "keyedit_delimiters"),
    *("keyedit_delimiters_whitespace", "keyedit_move", "disable_token_counters"),
    *("canvas_hotkey_zoom", "canvas_hotkey_adjust", "canvas_hotkey_shrink_brush", "canvas_hotkey_grow_brush"),
    *("canvas_hotkey_move", "canvas_hotkey_fullscreen", "canvas_hotkey_reset"),
    *("canvas_hotkey_overlap", "canvas_show_tooltip", "canvas_auto_expand"),
    *("canvas_blur_prompt", "canvas_disabled_functions"),
    *("notification_audio", "notification_volume", "prevent_screen_sleep_during_generation"),
    *("gradio_theme", "ui_density", "ui_layout", "enqueue_always"),
    *("js_modal_lightbox_gamepad", "js_modal_lightbox_gamepad_repeat"),
    "sd_webui_modal_lightbox_icon_opacity",
    *("img2img_editor_height", "img2img_sketch_default_brush_color", "img2img_inpaint_mask_brush_color"),
    *("img2img_inpaint_sketch_default_brush_color", "img2img_batch_show_results_limit"),
)


def page_settings(settings: Settings) -> dict[str, Any]:
    """Their values as JSON, by key."""
    values = settings.to_json()
    return {key: values[key] for key in PAGE_SETTINGS}
