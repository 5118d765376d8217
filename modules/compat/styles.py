"""`modules.styles`."""

from modules.compat.style_book import PromptStyle, StyleDatabase, apply_styles_to_prompt, merge_prompts

__all__ = ["PromptStyle", "StyleDatabase", "apply_styles_to_prompt", "merge_prompts"]
