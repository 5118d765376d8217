"""A module in memory, stored as loading stores what it reads from a file."""

from dataclasses import replace

import torch
from torch import nn

from modules.memory.formats.format import Encoded
from modules.memory.layer import SCALE_SUFFIX, read_weight, stored_state
from modules.memory.storage import StorageRules, StoredLayers


def apply_storage(
    root: nn.Module, rules: StorageRules, compute_dtype: torch.dtype, cast_inputs: bool = True
) -> dict[str, int]:
    """Store the weights below `root` by `rules`; all other floating-point parameters and buffers are cast to
    `compute_dtype`. Tied weights stay tied. Returns how many values were saturated, by parameter."""
    stored, encoded = StoredLayers(), dict[int, tuple[nn.Parameter, Encoded]]()
    for path, layer in root.named_modules():
        for name, parameter in list(layer._parameters.items()):
            storage = None if parameter is None else rules.format_of(path, layer, name, tuple(parameter.shape))
            if parameter is None or storage is None:
                continue
            if id(parameter) not in encoded:  # the original is kept alive, so that its id stays its own
                weight = parameter.data if stored_state(layer) is None else read_weight(layer, name)
                new = storage.encode(weight)
                encoded[id(parameter)] = parameter, replace(new, data=nn.Parameter(new.data, requires_grad=False))
            stored.put(layer, name, storage, encoded[id(parameter)][1], f"{path}.{name}".lstrip("."))
    stored.manage(compute_dtype, cast_inputs)
    for layer in root.modules():
        state = stored_state(layer)
        for name, parameter in layer._parameters.items():
            is_stored = state is not None and name in state.formats
            if parameter is not None and not is_stored and parameter.is_floating_point():
                parameter.data = parameter.data.to(compute_dtype)
        for name, buffer in layer._buffers.items():
            if buffer is not None and buffer.is_floating_point() and not name.endswith(SCALE_SUFFIX):
                layer._buffers[name] = buffer.to(compute_dtype)
    return stored.saturated
