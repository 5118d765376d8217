"""The weights of a loaded model in full precision: read from its checkpoint file again, tensor by tensor."""

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.files.eight_bits import STORED_AS
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.loaded import LoadedModel
from modules.models.opening.checkpoint import open_checkpoint


class FullPrecisionFile:
    """Reads what `load_model` read, without keeping any of it. Raises `CheckpointError` if the file has changed."""

    def __init__(self, model: LoadedModel) -> None:
        self._info = model.info
        self._sources = model.sources
        self._with_optional = model.plan.with_optional
        self._file: TensorSource | None = None

    def read(self, component: str, key: str) -> Tensor:
        """A parameter of ours as the file has it (8-bit ones as float32), on the CPU."""
        assignment = self._sources[component, key]
        file = self._open()
        tensor = assignment.component.keymap.tensor_to_ours(assignment.original_key, file.read(assignment.original_key))
        if tensor.element_size() > 1:
            return tensor
        wide = tensor.to(torch.float32)
        if assignment.scale_key is None:
            return wide
        return wide * file.read(assignment.scale_key).float().reshape(-1, *(1,) * (wide.ndim - 1))

    def is_source(self, component: str, key: str) -> bool:
        """Whether encoding what `read` gives makes the loaded weight again: it was not in 8 bits in the file."""
        assignment = self._sources[component, key]
        entry = self._open().entries[assignment.original_key]
        is_coarse = entry.packed is not None or entry.rotated is not None
        return not is_coarse and (entry.dtype, assignment.scale_key is not None) not in STORED_AS

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TensorSource:
        if self._info.has_changed:
            self.close()
            raise CheckpointError(
                f"{self._info.name} has changed or gone since it was loaded, and its weights are needed in full "
                "precision for a LoRA. Load the checkpoint again, or choose LoRA mode exact."
            )
        if self._file is None:
            self._file = open_checkpoint(self._info.path, self._with_optional, modules=self._info.modules)
        return self._file
