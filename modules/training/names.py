"""The tensors of trained layers under the names that files have: kohya's and LyCORIS', or those of PEFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from modules.models.families.family import LoraNaming
from modules.training.options import TrainingError
from modules.training.trained import TrainedLayer


def file_tensors(
    layers: Sequence[TrainedLayer], naming: LoraNaming, dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU. Under PEFT's names the scale is in the factors, as its readers expect.

    Raises `TrainingError` where a value is beyond the range of `dtype`.
    """
    found: dict[str, Tensor] = {}
    for each in layers:
        for name, tensor in _of_layer(each, naming):
            stored = tensor.detach().to("cpu", dtype).contiguous()
            if not torch.isfinite(stored).all():
                raise TrainingError(f"{each.name} has grown beyond the range of 16 bits. Choose a lower learning rate.")
            found[name] = stored
    return found


def _of_layer(each: TrainedLayer, naming: LoraNaming) -> Iterator[tuple[str, Tensor]]:
    is_lora = set(each.parameters) == {"lora_down.weight", "lora_up.weight"}
    if naming is LoraNaming.PEFT and is_lora:
        down, up = each.parameters["lora_down.weight"], each.parameters["lora_up.weight"]
        yield f"{each.dotted}.lora_A.weight", down
        yield f"{each.dotted}.lora_B.weight", up.detach().float() * (each.alpha / len(down))
        return
    for end, parameter in each.parameters.items():
        yield f"{each.name}.{end}", parameter
    yield f"{each.name}.alpha", torch.tensor(each.alpha)
