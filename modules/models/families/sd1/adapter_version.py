"""How adapters and cards name these models."""

from modules.models.families.adapter_version import AdapterVersion

SD1_ADAPTERS = AdapterVersion("SD1", "sd_v1", "stable-diffusion-v1", v2="False")
