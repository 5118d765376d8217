"""YOLOv8 detectors as their training saves them, `.pt`, or with nothing but the weights, `.pt` or `.safetensors`.

Layout of the first: a dict whose `ema` or else `model` is the whole module as an object, with its layers below `model`
and the names of the classes as `names`, and whose `train_args` has the image size as `imgsz`. It is read as data
(`inert_pickle`). Of a plain state dict the names are the same, with or without `model.` before them; it says nothing of
the classes.
"""

import math
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from lib_detailer.yolo_v8 import YoloV8, fold, matching
from modules.errors import CheckpointError
from modules.models.files.header import REMEDY
from modules.models.files.inert_pickle import InertFile
from modules.models.files.pickled import Inert, StoredTensor, modules_of, tensors_of
from modules.models.files.tensor_file import DTYPES
from modules.models.files.tensor_source import open_tensors

USUAL_SIDE_PX = 640
MAX_SIDE_PX = 2048
STEP_PX = 32  # sides are multiples of it
PREFIX = re.compile(r"^(module\.)?(model\.)*")
OTHER_TASKS = ("PoseModel", "OBBModel", "ClassificationModel")
OTHER_PROGRAM = "models."  # the classes of YOLOv5 and YOLOv7


@dataclass(frozen=True)
class YoloFile:
    """`labels` by the number of the class. Images go into a square of `side_px`."""

    network: YoloV8
    labels: Mapping[int, str] = field(default_factory=dict)
    side_px: int = USUAL_SIDE_PX


def read_yolo_file(path: Path) -> YoloFile:
    """Raises `CheckpointError` for a file that is damaged or holds another network."""
    try:
        is_zip = zipfile.is_zipfile(path)
    except OSError as error:
        raise CheckpointError(
            f"{path.name}: cannot be opened ({error.strerror or error}). Check that it is there and readable."
        ) from error
    if not is_zip:
        with open_tensors(path) as source:
            shapes = {name: entry.shape for name, entry in source.entries.items()}
            return YoloFile(_network(path, shapes, source.read))
    with InertFile(path) as file:
        content: Mapping[object, object] = file.content if isinstance(file.content, dict) else {"model": file.content}
        model = next((content[key] for key in ("ema", "model") if isinstance(content.get(key), Inert)), None)
        if isinstance(model, Inert):
            return _of_module(path, file, model, content.get("train_args"))
        levels = (content.get(key) for key in ("state_dict", "model"))
        weights = next((level for level in levels if isinstance(level, dict)), content)
        tensors = {str(name): tensor for name, tensor in weights.items() if isinstance(tensor, StoredTensor)}
        return YoloFile(_of_stored(path, file, tensors, {}))


def _of_module(path: Path, file: InertFile, model: Inert, train_args: object) -> YoloFile:
    """A whole module and what was saved beside it."""
    known = model.members("yaml").get("yaml_file") or model.get("yaml_file") or model.name.rpartition(".")[2]
    name = Path(known).name if isinstance(known, str) else ""
    if model.name.startswith(OTHER_PROGRAM) or model.name.endswith(OTHER_TASKS):
        raise CheckpointError(
            f"{path.name} is not a YOLOv8 detector or segmenter ({name}), and cannot be used in any form. Choose a "
            "detector that was trained as YOLOv8."
        )
    try:
        modules = modules_of(model)
    except ValueError as error:
        raise CheckpointError(f"{path.name}: is not a readable checkpoint: {error}. {REMEDY}") from error
    for place, module in modules.items():
        if place.endswith(".act") and not module.name.endswith(".SiLU"):
            raise _other_layout(path, f"it has the activation {module.name.rpartition('.')[2]}", name)
    eps = {
        PREFIX.sub("", place): value
        for place, module in modules.items()
        if isinstance(value := module.get("eps"), float) and value > 0
    }
    network = _of_stored(path, file, tensors_of(modules), eps, name)
    return YoloFile(network, _labels(model.get("names")), _side_px(train_args))


def _of_stored(
    path: Path, file: InertFile, tensors: Mapping[str, StoredTensor], eps: Mapping[str, float], layout: str = ""
) -> YoloV8:
    if sum(math.prod(one.shape) * DTYPES[one.storage.dtype].itemsize for one in tensors.values()) > path.stat().st_size:
        raise CheckpointError(f"{path.name}: has tensors larger than what the file holds for them. {REMEDY}")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return _network(path, shapes, lambda name: file.read(tensors[name]), eps, layout)


def _network(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Tensor],
    eps: Mapping[str, float] | None = None,
    layout: str = "",
) -> YoloV8:
    """The network with its weights, on the CPU. Nothing is read before all names and shapes fit."""
    names = {PREFIX.sub("", name): name for name in shapes}
    if not names:
        raise CheckpointError(f"{path.name}: holds no tensors. {REMEDY}")
    try:
        network = matching({short: shapes[name] for short, name in names.items()})
    except ValueError as error:
        raise _other_layout(path, str(error), layout) from error
    network.load_state_dict(fold({short: read(name) for short, name in names.items()}, eps or {}), assign=True)
    return network.requires_grad_(False)


def _other_layout(path: Path, reason: str, layout: str) -> CheckpointError:
    shown = f"{layout}: {reason}" if layout else reason
    return CheckpointError(
        f"{path.name} is not a YOLOv8 detector or segmenter ({shown}), and other layouts are read as ONNX only: export "
        f"it (yolo export model={path.name} format=onnx) and put {path.stem}.onnx in its place."
    )


def _labels(names: object) -> dict[int, str]:
    """The names of the classes, which are a list or by number."""
    table = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(table, dict):
        return {}
    return {number: name for number, name in table.items() if isinstance(number, int) and isinstance(name, str)}


def _side_px(train_args: object) -> int:
    """The size of the images it was trained on, as far as that is sensible."""
    args = train_args.state if isinstance(train_args, Inert) else train_args
    side = args.get("imgsz") if isinstance(args, dict) else None
    if not isinstance(side, int) or not STEP_PX <= side <= MAX_SIDE_PX:
        return USUAL_SIDE_PX
    return -(-side // STEP_PX) * STEP_PX
