"""How adapters and cards name these models."""

from modules.models.families.adapter_version import AdapterVersion

SDXL_ADAPTERS = AdapterVersion("SDXL", "sdxl", "stable-diffusion-xl")
