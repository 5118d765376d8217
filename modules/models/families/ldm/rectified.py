"""UNets that were tuned until they predict a rectified flow (Liu et al. 2022, arXiv:2209.03003): the same tensors as
before, and nothing in most files tells, so that their names do."""

from dataclasses import replace

from modules.models.families.architecture import LdmArchitecture
from modules.models.files.tensor_source import TensorSource

NAME = "rectified"
"""In the names of such files, in any case."""
SHIFT = 3.0
"""Towards noise; their makers name 3 to 8."""


def rectified_architecture(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    """The architecture with the prediction and the noise levels of a flow, where the file's name or its metadata say
    that it is one; unchanged for other files."""
    if architecture.prediction_type != "flow" and NAME not in file.path.name.lower():
        return architecture
    schedule = replace(architecture.noise_schedule, flow_shift=SHIFT, zero_terminal_snr=False)
    return replace(architecture, noise_schedule=schedule, prediction_type="flow")
