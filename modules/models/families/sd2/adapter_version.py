"""How adapters and cards name these models."""

from modules.models.families.adapter_version import AdapterVersion

SD2_ADAPTERS = AdapterVersion("SD2", "sd_v2", "stable-diffusion-v2", v2="True")
