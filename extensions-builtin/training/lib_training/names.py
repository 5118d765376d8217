"""The tensors of trained layers under the names that files have: kohya's and LyCORIS', or those of PEFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lib_training.failures import TrainingError
from lib_training.trained import TrainedLayer, parts_of
from modules.models.families.family import LoraNaming

WITH_SCALE = (LoraNaming.PEFT, LoraNaming.DOTTED, LoraNaming.DOTTED_ORIGINAL)
LORA = frozenset({"lora_down.weight", "lora_up.weight"})


def file_tensors(
    layers: Sequence[TrainedLayer], naming: LoraNaming, dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU. With `lora_A` and `lora_B` the scale is in the factors, as readers expect;
    with `KOHYA_FUSED` the LoRAs of layers that are one in the original layout are one.

    Raises `TrainingError` where a value is beyond the range of `dtype`.
    """
    found: dict[str, Tensor] = {}
    for each in layers:
        for name, tensor in _of_layer(each, naming, layers):
            stored = tensor.detach().to("cpu", dtype).contiguous()
            if not torch.isfinite(stored).all():
                raise TrainingError(f"{each.name} has grown beyond the range of 16 bits. Choose a lower learning rate.")
            found[name] = stored
    return found


def _of_layer(each: TrainedLayer, naming: LoraNaming, layers: Sequence[TrainedLayer]) -> Iterator[tuple[str, Tensor]]:
    is_lora = each.parameters.keys() == LORA
    if naming in WITH_SCALE and is_lora:
        name = each.dotted if naming is LoraNaming.PEFT else each.name
        down, up = each.parameters["lora_down.weight"], each.parameters["lora_up.weight"]
        yield f"{name}.lora_A.weight", down
        yield f"{name}.lora_B.weight", up.detach().float() * (each.alpha / len(down))
        return
    if naming is LoraNaming.KOHYA_FUSED and is_lora and each.whole:
        parts = parts_of(each.whole, layers)
        if each is parts[0]:
            yield from joined(each.whole, parts)
        return
    for end, parameter in each.parameters.items():
        yield f"{each.name}.{end}", parameter
    yield f"{each.name}.alpha", torch.tensor(each.alpha)


def joined(name: str, parts: Sequence[TrainedLayer]) -> Iterator[tuple[str, Tensor]]:
    """LoRAs of layers that are one in the file, as kohya's trainer joins query, key and value that it trained apart:
    `down` one below the other, `up` in blocks along the diagonal."""
    downs = [part.parameters["lora_down.weight"].detach().float() for part in parts]
    scales = [part.alpha / len(down) for part, down in zip(parts, downs, strict=True)]
    ups = [
        part.parameters["lora_up.weight"].detach().float() * (scale / scales[0])
        for part, scale in zip(parts, scales, strict=True)
    ]
    down = torch.cat(downs)
    yield f"{name}.lora_down.weight", down
    yield f"{name}.lora_up.weight", torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    yield f"{name}.alpha", torch.tensor(scales[0] * len(down))
