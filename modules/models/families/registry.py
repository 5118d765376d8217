"""The families, in the order in which a checkpoint's header is held against them.

Folders in the diffusers layout are held against them from the last to the first, which is what none of the others is.
"""

from modules.models.families.family import ModelFamily
from modules.models.families.sd1.family import SD1
from modules.models.families.sd2.family import SD2
from modules.models.families.sd3.family import StableDiffusion3
from modules.models.families.sdxl.family import SDXL, SDXL_REFINER
from modules.registry import Registry

FAMILIES: Registry[ModelFamily] = Registry("model family")
FAMILIES.add("sd1", SD1)
FAMILIES.add("sd2", SD2)
FAMILIES.add("sdxl", SDXL)
FAMILIES.add("sdxl_refiner", SDXL_REFINER)
FAMILIES.add("sd3", StableDiffusion3())
