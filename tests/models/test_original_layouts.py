"""Every tensor of every family's published layout is consumed, and every parameter filled."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from modules.models.families.registry import all_families, detect_family
from modules.models.files.catalogue import CheckpointInfo
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.loading.load_model import architecture_of
from modules.models.loading.matching import assign_tensors
from modules.models.names.fused import unfused
from tests.models.original_keys import FULL, SCHEDULE, Shapes, file_shapes
from tests.models.sd3_keys import FULL_SD3, sd3_shapes
from tests.recordings import CONFIGS

FAMILY = {
    **dict.fromkeys(("sd1", "sd1 inpainting", "instruct-pix2pix"), "SD 1.x"),
    **dict.fromkeys(("sd2", "sd2 inpainting", "sd turbo"), "SD 2.x"),
    **dict.fromkeys(("sdxl", "sdxl inpainting", "sdxl v", "ssd-1b"), "SDXL"),
    "sdxl refiner": "SDXL refiner",
    **dict.fromkeys(FULL_SD3, "SD 3"),
}
UNET_PARAMETERS = {"sd1": 859_520_964, "sd2": 865_910_724, "sdxl": 2_567_463_684}
"""As published with the models."""
TENSORS = {"sd1": 1131 + len(SCHEDULE), "sdxl": 2515}
"""In v1-5-pruned-emaonly (less its scalars) and sd_xl_base_1.0."""


class Header(Closing):
    """A `TensorSource` that has names and shapes only."""

    has_offsets = True

    def __init__(self, name: str) -> None:
        self.path = Path(f"{name}.safetensors")
        self.metadata: dict[str, str] = {}
        self.entries: Mapping[str, TensorEntry] = {
            key: TensorEntry(torch.float16, shape, 0, 2 * math.prod(shape)) for key, shape in _shapes(name).items()
        }

    def close(self) -> None:
        """Nothing is open."""

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        raise AssertionError(f"{name} was read")


def _shapes(name: str) -> Shapes:
    return sd3_shapes(FULL_SD3[name]) if name in FULL_SD3 else file_shapes(FULL[name])


@pytest.mark.parametrize("name", [*FULL, *FULL_SD3])
def test_each_tensor_has_its_place(name: str) -> None:
    header = unfused(Header(name), all_families())
    family = detect_family(header)
    assert family.label == FAMILY[name]
    info = CheckpointInfo(path=header.path, name=header.path.name, size_bytes=0, mtime_ns=0)
    architecture = architecture_of(header, info, family, CONFIGS)
    components = family.components(header.entries, architecture, ())
    assignments = assign_tensors(header, components, family.is_ignored)  # raises unless names and shapes fit
    assert len({(item.component.name, item.key) for item in assignments}) == len(assignments)
    unet = next(component.module for component in components if component.name == "unet")
    if name in UNET_PARAMETERS:
        assert sum(parameter.numel() for parameter in unet.parameters()) == UNET_PARAMETERS[name]
    if name in TENSORS:
        assert len(_shapes(name)) == TENSORS[name]
    if name == "sdxl v":
        assert architecture.prediction_type == "v_prediction" and architecture.noise_schedule.zero_terminal_snr
