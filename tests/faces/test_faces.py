"""Faces: found in a drawing, aligned and laid back, restored by files of the kinds there are, and what is refused."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from modules.errors import CheckpointError, FeatherweightError, UnknownNameError
from modules.faces import loading, mtcnn
from modules.faces.alignment import SIDE_PX, TEMPLATE, Alignment
from modules.faces.loading import SpandrelFaceModel, load_restorer
from modules.faces.mtcnn import FaceDetector
from modules.faces.restorer_types import CODEFORMER, GFPGAN, RESTOREFORMER
from modules.faces.restorers import FaceRestorers
from modules.postprocessing.faces import CodeFormerOperation, GfpganOperation
from modules.postprocessing.operation import PostprocessedImage
from modules.postprocessing.operations import Operations
from modules.upscalers.spandrel_import import import_spandrel
from tests.faces.drawing import face_drawing
from tests.upscalers.models import esrgan_weights

CPU = torch.device("cpu")


class Red:
    """Restores a face to a red square."""

    def restore(self, face: Image.Image, weight: float) -> Image.Image:
        assert face.size == (SIDE_PX, SIDE_PX)
        return Image.new("RGB", face.size, (round(255 * weight), 0, 0))


def restorers(folder: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> FaceRestorers:
    if monkeypatch is not None:
        monkeypatch.setattr(loading, "load_restorer", lambda path, kind, device: Red())
    folders = {kind.folder: folder / kind.folder for kind in (GFPGAN, CODEFORMER, RESTOREFORMER)}
    return FaceRestorers(folders, lambda part: CPU)


def put(folder: Path, kind: Any, name: str, weights: dict[str, torch.Tensor] | None = None) -> Path:
    path: Path = folder / kind.folder / name
    path.parent.mkdir(exist_ok=True)
    torch.save(weights or {"a": torch.zeros(1)}, path)
    return path


@pytest.fixture(scope="module")
def detector() -> FaceDetector:
    return FaceDetector(CPU)


def test_a_drawn_face_is_found_with_its_landmarks(detector: FaceDetector) -> None:
    canvas = Image.new("RGB", (300, 200), "white")
    canvas.paste(face_drawing(128), (150, 40))
    (face,) = detector.find(canvas)
    left, top, right, bottom = face.box
    assert abs((left + right) / 2 - 214) < 10 and abs((top + bottom) / 2 - 107) < 15
    drawn = np.array([[100, 113], [156, 113], [128, 150], [105, 182], [150, 182]]) / 2 + (150, 40)
    assert np.abs(face.landmarks - drawn).max() < 8
    assert face.score > 0.95 and 20 < face.eye_distance < 36


def test_where_there_is_no_face_none_is_found(detector: FaceDetector) -> None:
    assert detector.find(Image.new("RGB", (64, 64), "green")) == []
    assert detector.find(Image.new("RGB", (8, 8))) == []
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    assert detector.find(Image.fromarray(noise)) == []


def test_a_large_image_is_looked_at_smaller_and_boxes_are_its_own(detector: FaceDetector) -> None:
    (face,) = detector.find(face_drawing(128).resize((2048, 2048)))
    assert face.width > 800


@pytest.mark.parametrize(("scale", "angle"), [(0.3, 20.0), (1.5, -35.0), (4.2, 5.0)])
def test_alignment_is_the_similarity_that_was_there(scale: float, angle: float) -> None:
    turn = np.deg2rad(angle)
    matrix = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    landmarks = TEMPLATE @ matrix.T + (40, 70)
    alignment = Alignment.of(landmarks)
    assert alignment.scale == pytest.approx(1 / scale)
    assert np.allclose(landmarks @ alignment.matrix[:, :2].T + alignment.matrix[:, 2], TEMPLATE)


def test_a_face_that_is_laid_back_unchanged_changes_nothing_to_see() -> None:
    image = face_drawing(256).resize((700, 700), Image.Resampling.BICUBIC)
    alignment = Alignment.of(TEMPLATE * 0.8 + (120, 90))
    back = alignment.pasted(image, alignment.face(image))
    difference = np.abs(np.asarray(back, int) - np.asarray(image, int))
    assert difference.max() <= 12 and difference.mean() < 0.5
    corner = np.asarray(alignment.pasted(image, Image.new("RGB", (SIDE_PX, SIDE_PX), "red")))
    assert np.array_equal(corner[:60, :60], np.asarray(image)[:60, :60])
    assert tuple(corner[300, 330]) == (255, 0, 0)


def test_a_large_face_is_made_smaller_without_aliasing() -> None:
    stripes = Image.new("RGB", (2048, 2048))
    pen = ImageDraw.Draw(stripes)
    for x in range(0, 2048, 2):
        pen.line([x, 0, x, 2048], fill="white")
    found = np.asarray(Alignment.of(TEMPLATE * 4.1).face(stripes))
    assert abs(float(found.mean()) - 127.5) < 2 and float(found.std()) < 2


def test_only_faces_change_and_as_far_as_they_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, CODEFORMER, "codeformer.pth")
    faces = restorers(tmp_path, monkeypatch)
    image = face_drawing(192)
    operations = Operations([CodeFormerOperation(faces), GfpganOperation(faces)])

    def done(**args: Any) -> PostprocessedImage:
        pp = PostprocessedImage(image)
        operations.run(pp, {"CodeFormer": {"enable": True, "codeformer_weight": 1.0, **args}})
        return pp

    found = done()
    pixels = np.asarray(found.image)
    assert tuple(pixels[105, 96]) == (255, 0, 0)
    assert np.array_equal(pixels[:4, :4], np.asarray(image)[:4, :4])
    assert found.info == {"CodeFormer visibility": 1.0, "CodeFormer weight": 1.0}
    half = np.asarray(done(codeformer_visibility=0.5).image).astype(int)
    assert abs(half[105, 96, 1] - np.asarray(image)[105, 96, 1] / 2) <= 1
    assert done(enable=False).info == done(codeformer_visibility=0).info == {}
    plain = Image.new("RGB", (64, 64), "blue")
    assert faces.restore(plain, "codeformer") is plain


def test_each_kind_takes_its_own_file_and_the_latest(tmp_path: Path) -> None:
    faces = restorers(tmp_path)
    for name in ("GFPGANv1.3.pth", "GFPGANv1.4.pth", "detection_Resnet50_Final.pth", "parsing_parsenet.pth", "z.txt"):
        put(tmp_path, GFPGAN, name)
    put(tmp_path, RESTOREFORMER, "other.safetensors")
    assert [path and path.name for path in map(faces.file_of, (GFPGAN, RESTOREFORMER, CODEFORMER))] == [
        "GFPGANv1.4.pth",
        "other.safetensors",
        None,
    ]
    named = FaceRestorers({}, lambda part: CPU, {"GFPGAN": tmp_path / "mine.pth"})
    assert named.file_of(GFPGAN) == tmp_path / "mine.pth"


def test_what_is_missing_says_which_file_goes_where(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"GFPGAN has no file: put one, such as GFPGANv1.4.pth, into .*GFPGAN\."):
        restorers(tmp_path).restore(face_drawing(64), "GFPGAN")
    with pytest.raises(UnknownNameError, match=r"Unknown face restorer 'x'. Known: CodeFormer, GFPGAN, RestoreFormer"):
        restorers(tmp_path).check("x")


def test_files_that_are_no_face_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, GFPGAN, "GFPGAN.pth", esrgan_weights())
    with pytest.raises(CheckpointError, match=r"GFPGAN\.pth holds a model of architecture ESRGAN, not GFPGAN"):
        load_restorer(path, GFPGAN, CPU)
    with pytest.raises(CheckpointError, match=r"model\.ckpt is no face model of the type GFPGAN"):
        load_restorer(put(tmp_path, GFPGAN, "model.ckpt"), GFPGAN, CPU)
    monkeypatch.setattr(loading, "EXTRA_PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(CheckpointError, match="licence allows no commercial use"):
        load_restorer(path, CODEFORMER, CPU)


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_without_the_weights_of_the_detector_it_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(mtcnn, "WEIGHTS", tmp_path / "mtcnn.safetensors")
    if content is not None:
        mtcnn.WEIGHTS.write_bytes(content)
    with pytest.raises(FeatherweightError, match=r"mtcnn\.safetensors cannot be read: .*from the release"):
        FaceDetector(CPU)


def test_a_restoreformer_file_is_read_and_run_without_torchvision(tmp_path: Path) -> None:
    import_spandrel()
    architecture: Any = importlib.import_module("spandrel.architectures.RestoreFormer")
    torch.manual_seed(0)
    network = architecture.RestoreFormer(
        n_embed=8, embed_dim=32, ch=32, ch_mult=(1, 1), num_res_blocks=1, attn_resolutions=(), z_channels=32
    )
    path = put(tmp_path, RESTOREFORMER, "RestoreFormer.pth", network.state_dict())
    model = load_restorer(path, RESTOREFORMER, CPU)
    face = face_drawing(64)
    first, again = model.restore(face, 0.5), model.restore(face, 0.5)
    assert first.size == (64, 64) and first.tobytes() == again.tobytes() != face.tobytes()


def test_gfpgan_and_codeformer_are_called_in_their_own_range_and_without_chance() -> None:
    calls: list[tuple[float, float, dict[str, Any]]] = []

    class Descriptor:
        def model(self, face: torch.Tensor, **options: Any) -> tuple[torch.Tensor]:
            calls.append((float(face.min()), float(face.max()), options))
            return (face,)

    black_and_white = Image.fromarray(np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8))
    for kind in (GFPGAN, CODEFORMER):
        same = SpandrelFaceModel(kind, Descriptor(), CPU).restore(black_and_white, 0.25)
        assert same.tobytes() == black_and_white.tobytes()
    assert calls == [(-1.0, 1.0, {"return_rgb": False, "randomize_noise": False}), (-1.0, 1.0, {"weight": 0.25})]
