"""The axis "LoRA mode" of grids."""

from modules.scripts.axes import add_axis, setting_axis

add_axis(setting_axis("LoRA mode", "lora_mode", cost=0.3, compares_precision=True))
