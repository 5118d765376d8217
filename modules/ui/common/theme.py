"""The page's looks for Gradio: system fonts, calm colors; everything else is in assets/style.css."""

import gradio as gr

FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]


def build_theme() -> gr.themes.Base:
    """A theme without web fonts; colors that reach AA contrast in light and dark."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        spacing_size=gr.themes.sizes.spacing_md,
        radius_size=gr.themes.sizes.radius_md,
        font=FONTS,
        font_mono=MONO,
    ).set(
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_text_color="white",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_primary_text_color_dark="white",
        block_label_text_weight="600",
        block_title_text_weight="600",
        block_border_width="0px",
        block_shadow="none",
        input_border_color="*neutral_300",
        input_border_color_dark="*neutral_600",
    )
