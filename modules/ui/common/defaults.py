"""First values of the form: a size that suits the checkpoint, and prompts to try with the bundled model."""

from pathlib import Path

from modules.errors import FeatherweightError
from modules.models.families.architecture import read_architecture
from modules.services import Services

SHIPPED_MODEL = "featherweight-scenes"
EXAMPLES = (
    "a large red circle on a blue background",
    "a yellow star on a purple background",
    "sea at sunset with a sailboat, the sun",
    "meadow at sunset with a white house with a red roof, sun",
    "snow by day with mountains, the sun",
)
USUAL_SIZE_PX = 512


def wanted_checkpoint(services: Services) -> str:
    """The title of the checkpoint that the settings name, or of the first there is; empty when there is none."""
    found = (
        services.catalogue.find(services.settings.current.stable_diffusion.sd_model_checkpoint)
        or services.catalogue.first
    )
    return found.title if found else ""


def default_size(services: Services, title: str) -> int:
    """The side in pixels that a checkpoint was trained on, as its model says if it is loaded, or from its YAML; no
    model is loaded for it."""
    info = services.catalogue.find(title)
    loaded = services.models.status.model
    if info is not None and loaded is not None and info.answers_to(loaded.title):
        return loaded.default_size_px
    yaml: Path = (info.config_path if info else None) or services.paths.model_config
    try:
        architecture = read_architecture(yaml)
    except FeatherweightError:
        return USUAL_SIZE_PX  # the load will say what is wrong with the YAML
    return architecture.latent_side * architecture.autoencoder.downscale


def is_shipped(title: str) -> bool:
    """Whether this is the small bundled model."""
    return title.startswith(SHIPPED_MODEL)
