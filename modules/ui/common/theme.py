"""The page's looks for Gradio: system fonts, and its colors by the tokens of assets/style.css for both themes."""

import gradio as gr

FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
TOKENS = {
    "paper": "body_background_fill background_fill_primary block_background_fill checkbox_background_color",
    "field": "background_fill_secondary input_background_fill input_background_fill_focus table_even_background_fill "
    "button_secondary_background_fill checkbox_label_background_fill code_background_fill input_border_color",
    "line": "border_color_primary block_border_color button_secondary_background_fill_hover "
    "checkbox_label_background_fill_hover input_border_color_hover slider_color",
    "accent": "border_color_accent input_border_color_focus button_primary_background_fill "
    "checkbox_background_color_selected checkbox_border_color_selected link_text_color",
    "accent-strong": "button_primary_background_fill_hover",
    "on-accent": "button_primary_text_color",
    "ink": "body_text_color block_info_text_color button_secondary_text_color checkbox_label_text_color",
    "soft": "body_text_color_subdued block_label_text_color block_title_text_color input_placeholder_color",
    "edge": "checkbox_border_color checkbox_border_color_hover",
}
"""Which of Gradio's colors take a token."""


def build_theme() -> gr.themes.Base:
    """A theme without web fonts; colors that reach AA contrast in light and dark."""
    colors = {name: f"var(--fw-{token})" for token, names in TOKENS.items() for name in names.split()}
    return gr.themes.Base(
        neutral_hue=gr.themes.colors.zinc,
        spacing_size=gr.themes.sizes.spacing_md,
        radius_size=gr.themes.sizes.radius_md,
        font=FONTS,
        font_mono=MONO,
    ).set(
        block_label_text_weight="500",
        block_title_text_weight="500",
        button_large_text_weight="500",
        block_border_width="0px",
        block_shadow="none",
        **colors,
        **{f"{name}_dark": color for name, color in colors.items()},
    )
