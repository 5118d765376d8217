"""The families, in the order in which a checkpoint's header is compared with them (see `detection.families`)."""

from modules.errors import CheckpointError
from modules.models.detection.families import checkpoint_family, denoiser_family
from modules.models.detection.files import detected
from modules.models.detection.kinds import Kind
from modules.models.families.anima.family import FAMILY as ANIMA
from modules.models.families.chroma.family import FAMILY as CHROMA
from modules.models.families.ernie_image.family import FAMILY as ERNIE_IMAGE
from modules.models.families.family import ModelFamily
from modules.models.families.flux1.family import DEV, SCHNELL
from modules.models.families.flux2.family import DEV as FLUX2_DEV
from modules.models.families.flux2.family import KLEIN
from modules.models.families.flux3.family import FAMILY as FLUX3
from modules.models.families.krea2.family import FAMILY as KREA2
from modules.models.families.qwen_image.family import FAMILY as QWEN_IMAGE
from modules.models.families.qwen_image21.family import FAMILY as QWEN_IMAGE21
from modules.models.families.sd1.family import FAMILY as SD1
from modules.models.families.sd2.family import FAMILY as SD2
from modules.models.families.sd3.family import FAMILY as SD3
from modules.models.families.sdxl.family import BASE, REFINER
from modules.models.families.z_image.family import FAMILY as Z_IMAGE
from modules.models.files.header import ARCHITECTURE, Stored
from modules.models.files.header import Header as FileHeader
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Header
from modules.system.registry import Registry

FAMILIES: Registry[ModelFamily] = Registry("model family")
for _family in (
    *(SD1, SD2, BASE, REFINER, SD3, Z_IMAGE, ANIMA, SCHNELL, DEV, KLEIN, FLUX2_DEV, CHROMA, KREA2),
    *(QWEN_IMAGE, ERNIE_IMAGE, QWEN_IMAGE21, FLUX3),
):
    FAMILIES.add(_family.signs.name, _family)


def all_families() -> tuple[ModelFamily, ...]:
    """Return the families in their order."""
    return tuple(family for _, family in FAMILIES.items())


def denoiser_family_of(header: Header) -> ModelFamily | None:
    """Return the family of the denoiser in a checkpoint's header, whose text encoders may be in other files."""
    signs = denoiser_family(header)
    return None if signs is None else FAMILIES.get(signs.name)


def detect_family(file: TensorSource) -> ModelFamily:
    """Return the family whose names and shapes the header has; raises `CheckpointError` that lists the known ones."""
    signs = checkpoint_family(file.entries)
    if signs is not None:
        return FAMILIES.get(signs.name)
    tensors = {name: Stored(tuple(entry.shape), "") for name, entry in file.entries.items()}
    found = detected(FileHeader("gguf" if ARCHITECTURE in file.metadata else "safetensors", tensors, file.metadata))
    said = f"is {found.line}" if found.kind is Kind.CHECKPOINT and not found.missing else found.sentence
    known = ", ".join(family.label for _, family in FAMILIES.items())
    raise CheckpointError(
        f"{file.path.name}: of no known model family: it {said}. Known: {known}. "
        "Choose a full checkpoint: one file, or a folder in the diffusers layout."
    )
