"""The families by the words of model cards, and which one an adapter's metadata names. Imports no torch."""

from collections.abc import Mapping

from modules.models.families.sd1.adapter_version import SD1_ADAPTERS
from modules.models.families.sd2.adapter_version import SD2_ADAPTERS
from modules.models.families.sdxl.adapter_version import SDXL_ADAPTERS

VERSIONS = (SD1_ADAPTERS, SD2_ADAPTERS, SDXL_ADAPTERS)
"""In the order in which metadata is compared with them."""


def adapter_versions() -> tuple[str, ...]:
    """What model cards call the families that have a word there."""
    return tuple(version.name for version in VERSIONS)


def version_of_metadata(metadata: Mapping[str, str]) -> str:
    """The word of model cards for the models that an adapter's metadata says it is for; "" where nothing is known."""
    base = metadata.get("ss_base_model_version", "").lower()
    architecture = metadata.get("modelspec.architecture", "").lower()
    for version in VERSIONS:
        if base.startswith(version.base) or version.architecture in architecture:
            return version.name
    v2 = "" if base else metadata.get("ss_v2", "")
    return next((version.name for version in VERSIONS if v2 and version.v2 == v2), "")
