"""Detectors as YOLOv8's training saves them: what they find, and that nothing of their pickle is run."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from lib_detailer.detectors import Detectors
from lib_detailer.yolo_file import read_yolo_file
from modules.errors import CheckpointError, UnknownNameError
from modules.models.files import pickled as pickled_data
from modules.models.files.inert_pickle import InertFile
from modules.models.files.pickled import Inert
from modules.scripts import program as programs
from modules.scripts.library import BUILT_IN, ScriptLibrary
from tests.detection.yolo_files import Tensors, expected_outputs, random_tensors, save_detector


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    """What float16 holds of them."""
    return {name: tensor.half().float() for name, tensor in random_tensors().items()}


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(2))


def save_pickled(path: Path, pickled: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickled)


@pytest.mark.parametrize("masks", [False, True])
def test_a_pickled_detector_computes_what_its_layers_say(masks: bool, pixels: Tensor, tmp_path: Path) -> None:
    tensors = {name: tensor.half().float() for name, tensor in random_tensors(masks).items()}
    save_detector(tmp_path / "hand.pt", tensors, "tasks.SegmentationModel" if masks else "tasks.DetectionModel")
    file = read_yolo_file(tmp_path / "hand.pt")
    assert file.labels == {0: "cat", 1: "hand"} and file.side_px == 64
    rows, maps = file.network(pixels)
    expected, expected_maps = expected_outputs(tensors, pixels)
    assert rows.shape == (1, 10 if masks else 6, 96 + 24 + 6) and rows[:, 4:6].std() > 0.1
    torch.testing.assert_close(rows, expected, rtol=1e-3, atol=2e-3)
    if masks:
        assert maps is not None and maps.shape == (1, 4, 16, 24)
        torch.testing.assert_close(maps, expected_maps, rtol=1e-3, atol=2e-3)
    else:
        assert maps is None


def test_a_pickled_detector_finds_boxes_by_the_way_of_the_onnx_files(tmp_path: Path) -> None:
    tensors = random_tensors()
    for name in tensors:  # only the place in the middle of the second level scores, as a hand
        if name.startswith("22.cv3.") and name.endswith(".2.weight"):
            tensors[name].zero_()
    for level, bias in enumerate(([-9.0, -9.0], [-9.0, 3.0], [-9.0, -9.0])):
        tensors[f"22.cv3.{level}.2.bias"] = torch.tensor(bias)
        tensors[f"22.cv2.{level}.2.weight"].zero_()
        tensors[f"22.cv2.{level}.2.bias"] = torch.full((64,), -50.0)
        tensors[f"22.cv2.{level}.2.bias"][[0, 16, 32, 48]] = 50.0  # distances of 0 ...
        tensors[f"22.cv2.{level}.2.bias"][[2, 17, 34, 49]] = 100.0  # ... but 2, 1, 2 and 1 places count
    save_detector(tmp_path / "hand.pt", tensors)
    detectors = Detectors(lambda *_: [], tmp_path)
    assert detectors.names[-1] == "hand.pt" and detectors.check("hand.onnx") == "hand.pt"
    found = detectors.find(Image.new("RGB", (128, 128)), "HAND.PT", 0.3)
    assert {box.label for box in found} == {"hand"} and found[0].score == pytest.approx(0.9526, abs=1e-3)
    assert {(16.0, 16.0, 128.0, 80.0), (0.0, 48.0, 112.0, 112.0)} <= {box.box for box in found}


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "legacy.pt"])
def test_a_state_dict_will_do(suffix: str, tensors: Tensors, pixels: Tensor, tmp_path: Path) -> None:
    path = tmp_path / f"hand.{suffix}"
    named = {f"model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    if suffix == "safetensors":
        save_file(named, path)
    else:
        torch.save(named, path, _use_new_zipfile_serialization=suffix == "pt")
    file = read_yolo_file(path)
    torch.testing.assert_close(file.network(pixels)[0], expected_outputs(tensors, pixels)[0], rtol=1e-3, atol=2e-3)
    assert file.labels == {} and file.side_px == 640


def test_the_averaged_model_of_a_training_run_is_preferred(tensors: Tensors, pixels: Tensor, tmp_path: Path) -> None:
    save_detector(tmp_path / "average.pt", tensors)
    other = {name: tensor + 1 if name == "0.bn.bias" else tensor for name, tensor in tensors.items()}
    save_detector(tmp_path / "hand.pt", other, ema=None)
    assert not torch.equal(*(read_yolo_file(tmp_path / name).network(pixels)[0] for name in ("average.pt", "hand.pt")))
    content = InertFile(tmp_path / "hand.pt").content
    assert isinstance(content, dict) and content["ema"] is None and isinstance(content["model"], Inert)


class Program:
    """What would run a program when it is unpickled."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_nothing_of_a_pickle_is_run(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "was_run"
    content = {"model": Program(os.system, f"touch {marker}"), "more": [Program(eval, "1/0"), {1, 2}, (1, 2, 3, 4)]}
    save_pickled(tmp_path / "hand.pt", pickle.dumps(content, protocol))
    with InertFile(tmp_path / "hand.pt") as file:
        read = file.content
    assert isinstance(read, dict) and isinstance(read["model"], Inert) and read["model"].name.endswith(".system")
    assert read["more"][0].name.endswith(".eval") and read["more"][2] == (1, 2, 3, 4)
    with pytest.raises(CheckpointError, match=r"hand.pt is not a YOLOv8 detector|holds no tensors"):
        read_yolo_file(tmp_path / "hand.pt")
    assert not marker.exists()


def test_a_program_beside_the_weights_is_not_run(tensors: Tensors, tmp_path: Path) -> None:
    marker = tmp_path / "was_run"
    save_detector(tmp_path / "hand.pt", tensors, more=Program(os.system, f"touch {marker}"))
    assert read_yolo_file(tmp_path / "hand.pt").labels == {0: "cat", 1: "hand"}
    assert not marker.exists()


def change_name(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            change_name("22.", "23."),
            r"22.cv2.0.0.conv.weight is missing.*yolo export model=hand.pt format=onnx.*hand.o",
        ),
        (lambda tensors: tensors | {"12.attn.bias": torch.zeros(2)}, "it has 12.attn.bias"),
        (lambda tensors: tensors | {"3.conv.weight": torch.zeros(8, 4, 3, 3)}, "its layers do not fit together"),
        (lambda tensors: tensors | {"3.bn.bias": torch.zeros(5)}, r"3.bn.bias has the shape \[5\]"),
    ],
)
def test_another_layout_is_named_with_what_to_do(
    change: Callable[[Tensors], Tensors], sentence: str, tensors: Tensors, tmp_path: Path
) -> None:
    torch.save(change(tensors), tmp_path / "hand.pt")
    with pytest.raises(CheckpointError, match=sentence):
        read_yolo_file(tmp_path / "hand.pt")


def test_other_activations_and_other_tasks_are_named(tensors: Tensors, tmp_path: Path) -> None:
    save_detector(tmp_path / "hand.pt", tensors, activation=nn.ReLU)
    with pytest.raises(CheckpointError, match=r"yolov8n.yaml: it has the activation ReLU.*format=onnx"):
        read_yolo_file(tmp_path / "hand.pt")
    for root in ("tasks.PoseModel", "models.yolo.DetectionModel"):
        save_detector(tmp_path / "hand.pt", tensors, root)
        with pytest.raises(CheckpointError, match=r"hand.pt is not a YOLOv8 detector .*cannot be used in any form"):
            read_yolo_file(tmp_path / "hand.pt")


def test_damaged_files_are_named(tensors: Tensors, tmp_path: Path) -> None:
    path = tmp_path / "hand.pt"
    save_detector(path, tensors)
    whole = path.read_bytes()
    place = whole.index(tensors["5.conv.weight"].half().contiguous().numpy().tobytes())
    for damaged in (whole[: len(whole) // 2], whole[:place] + b"\xff\xff" + whole[place + 2 :], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"^hand.pt"):
            read_yolo_file(path)
    for pickled in (b"", b"\x80\x02.", b"\x80\x02}q\x00h\x07.", b"\x80\x02\x82\x01.", b"\x80\x02]K\x01\x86.", b"(("):
        save_pickled(path, pickled)
        with pytest.raises(CheckpointError, match=r"^hand.pt"):
            read_yolo_file(path)
    with pytest.raises(CheckpointError, match=r"none.pt: cannot be opened"):
        read_yolo_file(tmp_path / "none.pt")


def test_a_small_file_cannot_ask_for_much(tensors: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hand.pt"
    large = torch.zeros(1).expand(1 << 15, 1 << 15, 3, 3)
    torch.save(tensors | {"0.conv.weight": large}, path)
    with pytest.raises(CheckpointError, match="larger than what the file holds"):
        read_yolo_file(path)
    nested: object = ()
    for _ in range(100):
        nested = (nested, nested)
    save_pickled(path, pickle.dumps({"deep": nested}))
    with pytest.raises(CheckpointError, match="holds no tensors"):
        read_yolo_file(path)
    monkeypatch.setattr(pickled_data, "MAX_OPCODES", 100)
    with pytest.raises(CheckpointError, match="more than 100 opcodes"):
        read_yolo_file(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 20))
    with pytest.raises(CheckpointError, match="compressed"):
        read_yolo_file(path)


def test_a_tree_of_modules_that_contains_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_data, "MAX_MODULES", 50)
    root = Inert("a.Model")
    root.state = {"_modules": {"again": root}}
    with pytest.raises(ValueError, match="more than 50 modules"):
        pickled_data.modules_of(root)


def test_extensions_give_the_program_its_detectors(tmp_path: Path) -> None:
    program = programs.Program(folders=lambda name: (tmp_path / name,))
    off = [path.name for path in BUILT_IN.iterdir() if path.name != "detailer"]
    library = ScriptLibrary.load([BUILT_IN], off, program=program)
    (tmp_path / "adetailer").mkdir()
    (tmp_path / "adetailer" / "hand.onnx").touch()
    assert library.detectors().names == ("face_mtcnn", "eyes_mtcnn", "hand.onnx")
    assert library.detectors() is library.detectors()
    without = ScriptLibrary.load([BUILT_IN], [*off, "detailer"], program=program)
    assert without.detectors().names == ()
    for ask in (without.detectors().check, lambda name: without.detectors().find(Image.new("RGB", (8, 8)), name)):
        with pytest.raises(UnknownNameError, match="detector"):
            ask("face_mtcnn")
