"""`modules.styles`."""

from compat.facades.refusal import refusing
from compat.facades.style_book import PromptStyle, StyleDatabase, apply_styles_to_prompt, merge_prompts

__all__ = ["PromptStyle", "StyleDatabase", "apply_styles_to_prompt", "merge_prompts"]
_BOOK = "shared.prompt_styles.extract_styles_from_prompt(prompt, negative_prompt) does this."
__getattr__ = refusing("styles", dict.fromkeys(("extract_style_text_from_prompt", "extract_original_prompts"), _BOOK))
