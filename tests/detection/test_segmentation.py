"""SAM 2, CLIPSeg and OWLv2 from the user's files through the engine: what they compute is what transformers' classes,
and SAM 2's own repository, compute with the same weights."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.errors import CheckpointError, InvalidValueError, UnknownNameError
from modules.processing.engine.engine import Engine
from modules.scripts.program import Program
from tests.detection import segmentation_files as files
from tests.extensions import built_in

NAMES = Path(__file__).with_name("sam2_names.txt")
SAM, OWL, CLIPSEG = "SAM 2", "OWLv2", "CLIPSeg"


def close(seen: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(seen, wanted, atol=1e-4, rtol=1e-4)


def library(name: str) -> Any:
    """A module of the extension."""
    built_in()
    __import__(f"lib_segmentation.{name}")
    return sys.modules[f"lib_segmentation.{name}"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Engine, Program]]:
    folder = tmp_path_factory.mktemp("segmentation")
    built_in()
    with files.running(folder) as (engine, program):
        yield folder / "segmentation", engine, program


@pytest.fixture
def folder(place: tuple[Path, Engine, Program]) -> Iterator[Path]:
    """The empty folder of the user's models."""
    import shutil

    place[0].mkdir(exist_ok=True)
    yield place[0]
    shutil.rmtree(place[0])


@pytest.fixture
def segmenter(place: tuple[Path, Engine, Program]) -> Any:
    return library("segmenter").Segmenter(place[2])


@pytest.fixture
def program(place: tuple[Path, Engine, Program]) -> Program:
    return place[2]


def photo(width: int = 96, height: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 255, (height, width, 3), dtype=np.uint8))


def point(x: float, y: float, is_included: bool = True) -> Any:
    return library("asked").Point(x, y, is_included)


@contextmanager
def lent(program: Program, path: Path, kind: str) -> Iterator[Any]:
    with torch.no_grad():
        yield program.compute_alone(path, library("building").BUILDERS[kind], lambda loaded: loaded)


@pytest.mark.parametrize(
    ("kind", "has_config"), [(SAM, True), (CLIPSEG, True), (CLIPSEG, False), (OWL, True), (OWL, False)]
)
def test_a_file_of_transformers_computes_the_same(folder: Path, program: Program, kind: str, has_config: bool) -> None:
    network = {SAM: files.sam, CLIPSEG: files.clipseg, OWL: files.owl}[kind]()
    path = files.save(network, folder / "model.safetensors", has_config)
    torch.manual_seed(4)
    ids = torch.tensor([[49406, 320, 2368, 49407]])
    given: dict[str, Any] = {
        SAM: {"pixel_values": torch.randn(1, 3, 128, 128), "input_points": torch.tensor([[[[40.0, 30.0]]]])},
        CLIPSEG: {"pixel_values": torch.randn(1, 3, 352, 352), "input_ids": ids},
        OWL: {"pixel_values": torch.randn(1, 3, 64, 64), "input_ids": ids, "attention_mask": torch.ones_like(ids)},
    }[kind]
    name = {SAM: "pred_masks", CLIPSEG: "logits", OWL: "pred_boxes"}[kind]
    with torch.no_grad():
        wanted = network(**given)
    with lent(program, path, kind) as loaded:
        seen = loaded.module(**given)
    close(seen[name], wanted[name])
    if kind == OWL:
        close(seen.logits, wanted.logits)


OF_POINTS = (
    (0.4913271, 0.9731385, 0.4028199),
    *((-0.8444759, -0.5904272, -0.0341923, -0.0071643, -0.5570986, 0.4572486, 0.0925792, -0.1975761),),
    *((-1.861017, -3.5845635, -0.5671246, -1.7625668, -3.0117411, -1.9744002, -0.7305163, -3.2048345),),
    *((-0.8490654, 0.7837008, -0.0362965, 0.5863053, 0.1891812, 1.2685564, 0.1278036, 1.2344106),),
)
OF_A_BOX = (
    (0.9731488,),
    (-1.8609617, -3.5844467, -0.5670952, -1.7625132, -3.0116465, -1.9742784, -0.7304465, -3.2047083),
)
"""Scores, and each mask at every 8th row and 16th column, by the modules of facebookresearch/sam2 at 2b90b9f in the
sizes of `files.SAM_SIZES`, with the weights and the pixels of `files.weight_of`."""


def test_a_file_of_sam_2s_own_repository_computes_the_same(folder: Path, program: Program) -> None:
    """The original layout, as a pickle with the weights below "model", and with tensors for videos besides."""
    network = files.sam()
    (folder / "config.json").write_text(json.dumps(network.config.to_dict()))
    building = library("building")
    own = {building.original_name(name): tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    own.pop("sam_prompt_encoder.shared_embedding.positional_embedding")
    table = own.pop("sam_prompt_encoder.point_embeddings.weight")
    own |= {f"sam_prompt_encoder.point_embeddings.{number}.weight": (1, table[1]) for number in range(table[0])}
    tensors = {name: files.weight_of(name, shape) for name, shape in own.items()}
    tensors["memory_attention.norm.weight"] = torch.ones(4)
    path = folder / "sam2_tiny.pt"
    torch.save({"model": tensors}, path)
    assert library("files").model_files(folder)[0].kind == SAM
    pixels = files.weight_of("pixels", (1, 3, 128, 128))
    with lent(program, path, SAM) as loaded:
        levels = loaded.module.get_image_embeddings(pixels)
        by_points = loaded.module(
            image_embeddings=levels,
            input_points=torch.tensor([[[[40.0, 30.0], [90.0, 100.0]]]]),
            input_labels=torch.tensor([[[1, 0]]]),
        )
        corners = torch.tensor([[[20.0, 30.0, 100.0, 110.0]]])
        by_box = loaded.module(image_embeddings=levels, input_boxes=corners, multimask_output=False)
    for seen, (scores, *masks) in ((by_points, OF_POINTS), (by_box, OF_A_BOX)):
        close(seen.iou_scores[0, 0], torch.tensor(scores))
        close(seen.pred_masks[0, 0, :, ::8, ::16].flatten(1), torch.tensor(masks))


@pytest.mark.parametrize("layout", ["original", "transformers", "transformers, with videos"])
def test_the_names_of_the_published_file_are_known(layout: str) -> None:
    """All tensors of the real file, by shape; nothing is missing and nothing is left over."""
    rows = [line.split() for line in NAMES.read_text().splitlines() if not line.startswith("#")]
    shapes = {name: tuple(map(int, sides)) for name, *sides in rows}
    if layout != "original":
        from transformers import Sam2Config, Sam2Model, Sam2VideoConfig, Sam2VideoModel

        with torch.device("meta"):
            whole: Any = Sam2VideoModel(Sam2VideoConfig()) if "videos" in layout else Sam2Model(Sam2Config())
        shapes = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
    entries = {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}
    source: Any = SimpleNamespace(path=Path("/nowhere/sam.pt"), entries=entries)
    parts = library("building").build_sam(source, None)
    wanted = {name: tuple(tensor.shape) for name, tensor in parts.component.module.state_dict().items()}
    found = {parts.component.keymap.to_ours(name): shape for name, shape in shapes.items() if not parts.ignores(name)}
    assert found == wanted


def masks_of_transformers(network: Any, image: Image.Image, places: list[Any], labels: list[int]) -> Any:
    """The best mask by transformers' class, in the size of the image."""
    pixels = torch.from_numpy(np.array(image.resize((128, 128), Image.Resampling.BILINEAR), np.float32) / 255)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    scale = torch.tensor([128 / image.width, 128 / image.height])
    with torch.no_grad():
        answer = network(
            pixel_values=((pixels - mean) / std).permute(2, 0, 1)[None],
            input_points=torch.tensor(places, dtype=torch.float32)[None, None] * scale,
            input_labels=torch.tensor(labels)[None, None],
            multimask_output=len(places) == 1,
        )
    best = int(answer.iou_scores[0, 0].argmax())
    wide = torch.nn.functional.interpolate(answer.pred_masks[:, 0], image.size[::-1], mode="bilinear")[0, best]
    return wide.numpy()


def test_clicks_give_the_mask_of_transformers_and_the_image_is_looked_at_once(folder: Path, segmenter: Any) -> None:
    network = files.sam()
    files.save(network, folder / "sam2" / "model.safetensors", config=True)
    image = photo()
    for points in ([point(30, 20)], [point(30, 20), point(80, 60, False)], [point(60, 40), point(10, 10)]):
        found = segmenter.by_points(image, points)
        places, labels = [[p.x, p.y] for p in points], [int(p.is_included) for p in points]
        wanted = masks_of_transformers(network, image, places, labels)
        sure = abs(wanted) > 1e-3
        assert ((np.asarray(found.outline) > 0) == (wanted > 0))[sure].all() and found.outline.size == image.size
    assert segmenter.seen.encoded == 1
    segmenter.by_points(photo(64, 64), [point(30, 20)])
    assert segmenter.seen.encoded == 2


def test_what_is_kept_of_images_is_bounded(folder: Path, program: Program) -> None:
    files.save(files.sam(), folder / "sam2" / "model.safetensors", config=True)
    one = 4 * (8 * 32 * 32 + 16 * 16 * 16 + 64 * 8 * 8)
    segmenter = library("segmenter").Segmenter(program, library("segmenter").SeenImages(max_bytes=2 * one))
    for width in (32, 40, 48, 40, 32):
        segmenter.by_points(photo(width), [point(3, 2)])
    assert segmenter.seen.size_bytes == 2 * one and segmenter.seen.encoded == 4  # 40 was still there, 32 not


def test_an_image_of_20000_pixels_is_masked(folder: Path, segmenter: Any) -> None:
    files.save(files.sam(), folder / "sam2" / "model.safetensors", config=True)
    found = segmenter.by_points(Image.new("RGB", (20_000, 300), "red"), [point(19_000, 200)])
    assert found.outline.size == (20_000, 300)


def of_words(answer: Any, length: int = 16, side: int = 64) -> Any:
    """A network that gives this answer, and keeps what it is asked."""
    sizes = SimpleNamespace(max_position_embeddings=length)
    facts = SimpleNamespace(text_config=sizes, vision_config=SimpleNamespace(image_size=side))
    asked: dict[str, Any] = {}

    def module(**given: Any) -> Any:
        asked.update(given)
        return answer

    return SimpleNamespace(module=module, facts=facts, device="cpu", dtype=torch.float32, asked=asked)


def test_areas_of_clipseg_are_things_of_their_own() -> None:
    logits = torch.full((352, 352), -5.0)
    logits[88:176, 0:88] = 3.0
    logits[300:340, 200:300] = 1.0
    logits[10:12, 300:302] = 9.0  # noise
    network = of_words(SimpleNamespace(logits=logits))
    found = library("networks").areas(network, Image.new("RGB", (704, 352)), "a cat", 0.4)
    assert network.asked["input_ids"].tolist() == [[49406, 320, 2368, 49407]]
    assert [round(item.score, 2) for item in found] == [0.95, 0.73]
    assert np.allclose(found[0].box, (0, 88, 176, 176), atol=2) and found[0].label == "a cat"
    assert np.asarray(found[0].outline)[100:160, 20:150].min() == 255 and np.asarray(found[0].outline)[:80].max() == 0


def test_boxes_of_owl_are_those_of_the_padded_square_without_doubles() -> None:
    logits = torch.tensor([[[2.0], [1.9], [0.0], [-9.0]]])
    boxes = torch.tensor([[[0.5, 0.25, 0.2, 0.1], [0.5, 0.25, 0.21, 0.1], [0.1, 0.1, 0.1, 0.1], [0.5, 0.5, 1, 1]]])
    network = of_words(SimpleNamespace(logits=logits, pred_boxes=boxes))
    found = library("networks").boxes(network, Image.new("RGB", (200, 100)), "cat", 0.2)
    assert [round(item.score, 2) for item in found] == [0.88, 0.5]
    assert np.allclose(found[0].box, (80, 40, 120, 60)) and np.allclose(found[1].box, (10, 10, 30, 30))
    assert network.asked["input_ids"][0, :4].tolist() == [49406, 2368, 49407, 0]
    assert network.asked["pixel_values"].shape == (1, 3, 64, 64)


def test_boxes_of_owl_are_outlined_by_sam(folder: Path, segmenter: Any) -> None:
    files.save(files.owl(), folder / "owl.safetensors")
    bare = segmenter.by_words(photo(), "cat", 0.0)
    assert bare and all(item.outline is None for item in bare)
    files.save(files.sam(), folder / "sam2" / "model.safetensors", config=True)
    outlined = segmenter.by_words(photo(), "cat", 0.0)
    assert [item.box for item in outlined] == [item.box for item in bare]
    assert all(item.outline.size == (96, 64) for item in outlined)


def test_a_missing_model_says_what_to_get(folder: Path, segmenter: Any) -> None:
    with pytest.raises(
        CheckpointError, match=r"no model of SAM 2 in models/segmentation\. Get sam2\.1-hiera-tiny in the tab"
    ):
        segmenter.by_points(photo(), [point(1, 1)])
    save_file({"some.weight": torch.zeros(2)}, folder / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"OWLv2 or CLIPSeg .* It holds other\.safetensors, none of which"):
        segmenter.by_words(photo(), "cat")
    files.save(files.clipseg(), folder / "clipseg.safetensors")
    with pytest.raises(UnknownNameError, match=r"Unknown model of OWLv2 or CLIPSeg 'x'.*Known: clipseg\.safetensors"):
        segmenter.by_words(photo(), "cat", model="x")


def test_weights_of_another_model_are_refused(folder: Path, program: Program) -> None:
    network = files.sam()
    tensors = network.state_dict()
    del tensors["mask_decoder.mask_tokens.weight"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="5 blocks and 16 channels, which is none of the published sizes"):
        lent(program, folder / "model.safetensors", SAM).__enter__()
    (folder / "config.json").write_text(json.dumps(network.config.to_dict()))
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: mask_decoder\.mask_tokens\.weight"):
        lent(program, folder / "model.safetensors", SAM).__enter__()
    (folder / "config.json").write_text('{"vision_config": {"blocks_per_stage": [1, 2, 99999, 1]}}')
    with pytest.raises(CheckpointError, match=r"blocks_per_stage is 99999, which model\.safetensors does not hold"):
        lent(program, folder / "model.safetensors", SAM).__enter__()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Give either points or a box, or words"),
        ({"words": " , "}, "Give either points or a box, or words"),
        ({"words": "cat", "points": [[1, 2]]}, "and not both"),
        ({"points": [[1]]}, "A point has 1 values"),
        ({"points": [["a", 2]]}, "x is 'a'; it takes a number"),
        ({"points": [[float("nan"), 2]]}, "x is nan; allowed"),
        ({"points": [[1, 2, 0]]}, "All points are excluded"),
        ({"points": [[1, 2]] * 65}, "points has 65 points; allowed are 64"),
        ({"box": [1, 2, 3]}, "box has 3 numbers"),
        ({"box": [1, 2, 1, 9]}, "box has no area"),
        ({"words": "x" * 501}, "words has 501 characters"),
        ({"words": "cat", "grow": 9999}, "grow is 9999; allowed is -512 to 512"),
        ({"words": "cat", "invert": "maybe"}, "invert is 'maybe'; it takes true or false"),
    ],
)
def test_bad_requests_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        library("asked").Asked.read(given)


def test_a_click_outside_of_the_image_is_refused(folder: Path, segmenter: Any) -> None:
    asked = library("asked").Asked.read({"points": [[97, 5]]})
    with pytest.raises(InvalidValueError, match="97, 5 is outside of the image, which is 96x64 pixels"):
        library("work").mask_of(segmenter, photo(), asked)


def test_words_that_name_nothing_are_said_and_nothing_is_masked(folder: Path, segmenter: Any) -> None:
    files.save(files.clipseg(), folder / "clipseg.safetensors")
    asked = library("asked").Asked.read({"words": "zebra", "score": 1})
    with pytest.raises(InvalidValueError, match="is found for 'zebra' with a score of 1, and nothing is masked"):
        library("work").mask_of(segmenter, photo(), asked)


def test_masks_grow_shrink_blur_and_invert() -> None:
    read, changed = library("asked").Asked.read, library("work").changed
    mask = Image.new("L", (40, 40))
    mask.paste(255, (10, 10, 20, 20))
    box = (11, 11, 19, 19)
    assert changed(mask, read({"words": "x", "grow": 3})).getbbox() == (7, 7, 23, 23)
    assert changed(mask, read({"words": "x", "grow": "-1"})).getbbox() == box
    turned = changed(mask, read({"words": "x", "invert": True}))
    assert turned.getpixel((0, 0)) == 255 and turned.getpixel((15, 15)) == 0
    assert 0 < changed(mask, read({"words": "x", "blur": 2})).getpixel((9, 15)) < 255


def test_tags_take_words_and_options() -> None:
    tags_of = library("work").tags_of
    (asked,) = tags_of("a fox <segment:red hat, scarf:grow=8:invert=1:score=0.5> in snow")
    assert (asked.words, asked.grow_px, asked.is_inverted, asked.min_score) == ("red hat, scarf", 8, True, 0.5)
    with pytest.raises(InvalidValueError, match=r"<segment:hat:size=3> has size=; it takes score=, grow=, blur="):
        tags_of("<segment:hat:size=3>")
    with pytest.raises(InvalidValueError, match=r"<segment:grow=3>: Give either points or a box, or words"):
        tags_of("<segment:grow=3>")


def test_everything_is_outlined_once(folder: Path, segmenter: Any) -> None:
    """A network that sees the quarter of the image that a point lies in."""
    sides = SimpleNamespace(prompt_encoder_config=SimpleNamespace(image_size=128))

    def module(image_embeddings: Any, input_points: torch.Tensor, input_labels: torch.Tensor) -> Any:
        logits = torch.full((1, input_points.shape[1], 3, 32, 32), -9.0)
        for number, (x, y) in enumerate((input_points[0, :, 0] > 64).int().tolist()):
            logits[0, number, :, 16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = 9.0
        scores = torch.tensor([0.9, 0.8, 0.2]).expand(1, input_points.shape[1], 3)
        return SimpleNamespace(pred_masks=logits, iou_scores=scores)

    network = SimpleNamespace(module=module, facts=sides, device="cpu")
    found = library("networks").everything((100, 60), [], network, 0.7)
    assert {item.box for item in found} == {(0, 0, 50, 30), (50, 0, 100, 30), (0, 30, 50, 60), (50, 30, 100, 60)}
    files.save(files.sam(), folder / "sam2" / "model.safetensors", config=True)
    assert isinstance(segmenter.by_words(photo(), "*", 0.0), list)
