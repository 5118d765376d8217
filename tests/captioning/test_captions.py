"""Captions: of the bundled model's world by looking, by tiny models in the layouts of users' files, and refusals."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    PreTrainedTokenizerFast,
)

from modules.captioning import tagger
from modules.captioning.captioners import Captioners
from modules.captioning.tagger import written
from modules.errors import CheckpointError, UnknownNameError
from modules.settings.values import Settings
from recipes.scenes.images import draw
from recipes.scenes.layout import ShapesScene
from recipes.scenes.pool import scene_of_seed
from tests.extensions import built_in

built_in()
describe = sys.modules["featherweight_scripts.scene_captions.scene_captions"].describe
HERE = Path(__file__).parent
WORDS = ("[PAD]", "[UNK]", "[DEC]", "[SEP]", "a", "red", "cat", "blue", "dog", "photo", "drawing")


def captioners(folder: Path) -> Captioners:
    return Captioners(folder, lambda part: torch.device("cpu"))


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]", bos_token="[DEC]", eos_token="[SEP]"
    )


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few units, as a user has it in models/BLIP/NAME."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BlipConfig(
        text_config={
            **{**sizes, "vocab_size": len(WORDS), "encoder_hidden_size": 16, "max_position_embeddings": 64},
            **{"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0, "projection_dim": 8},
        },
        vision_config={**sizes, "image_size": 32, "patch_size": 16, "projection_dim": 8},
    )
    folder = tmp_path_factory.mktemp("models")
    BlipForConditionalGeneration(config).save_pretrained(folder / "BLIP" / "tiny")
    tokenizer().save_pretrained(folder / "BLIP" / "tiny")
    return folder


def test_scenes_are_named_as_they_were_drawn() -> None:
    right = 0
    for seed in range(60):
        scene, _ = scene_of_seed(seed)
        found = describe(draw(scene)) or ""
        if isinstance(scene, ShapesScene):
            things = [" ".join(filter(None, (one.size, one.color, one.kind))) for one in scene.shapes]
            right += all(thing in found for thing in (*things, f"{scene.background} background"))
        else:
            right += found.startswith(f"{scene.land} ") and scene.time in found
    assert right >= 57


def test_images_of_the_bundled_model_are_named_by_color_and_object() -> None:
    """The sheet is what the model made of the prompts beside it, 128x128 each, eight in a row."""
    sheet = Image.open(HERE / "bundled.jpg").convert("RGB")
    prompts = (HERE / "bundled.txt").read_text(encoding="utf-8").splitlines()
    right = 0
    for index, prompt in enumerate(prompts):
        left, top = index % 8 * 128, index // 8 * 128
        found = describe(sheet.crop((left, top, left + 128, top + 128))) or ""
        words = prompt.replace(" an ", " a ").removeprefix("an ").removeprefix("a ").split()
        thing, background = " ".join(words[: words.index("on")][-2:]), words[-2]
        right += thing in found and f"{background} background" in found
    assert len(prompts) >= 20
    assert right >= 0.8 * len(prompts), right


@pytest.mark.parametrize("seed", range(3))
def test_other_images_get_no_caption(seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), np.uint8)
    assert describe(Image.fromarray(noise)) is None
    assert describe(Image.new("RGB", (64, 64), "red")) is None


def test_without_models_scenes_are_described_and_others_say_what_goes_where(tmp_path: Path) -> None:
    found = captioners(tmp_path)
    scene, _ = scene_of_seed(1)
    while not (isinstance(scene, ShapesScene) and len(scene.shapes) == 1):
        scene, _ = scene_of_seed(hash(str(scene)) % 1000)
    (shape,) = scene.shapes
    thing = " ".join(filter(None, (shape.size, shape.color, shape.kind)))
    assert found.caption(draw(scene), "deepdanbooru", Settings()) == f"{thing}, {scene.background} background"
    assert thing in found.caption(draw(scene), "clip", Settings())
    plain = Image.new("RGB", (32, 32))
    with pytest.raises(CheckpointError, match=r"put a folder of BLIP .* into .*BLIP\. Nothing is downloaded"):
        found.caption(plain, "clip", Settings())
    with pytest.raises(CheckpointError, match=r"put a folder with model\.onnx and selected_tags\.csv"):
        found.caption(plain, "DeepBooru", Settings())
    with pytest.raises(UnknownNameError, match="Unknown interrogate model 'x'"):
        found.caption(plain, "x", Settings())


def test_blip_writes_as_many_words_as_the_settings_want(blip: Path) -> None:
    settings = Settings().changed(interrogate_clip_min_length=5, interrogate_clip_max_length=9)
    image = Image.new("RGB", (40, 20), "red")
    text = captioners(blip).caption(image, "clip", settings)
    assert text == captioners(blip).caption(image, "clip", settings)
    assert set(text.split()) <= set(WORDS)
    beams = settings.changed(interrogate_clip_num_beams=3)
    assert set(captioners(blip).caption(image, "clip", beams).split()) <= set(WORDS)


def test_clip_adds_the_best_lines_of_each_list(blip: Path) -> None:
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config=CLIPTextConfig(
            **sizes, vocab_size=len(WORDS), projection_dim=8, eos_token_id=3, bos_token_id=2, pad_token_id=0
        ).to_dict(),
        vision_config=CLIPVisionConfig(**sizes, image_size=32, patch_size=16, projection_dim=8).to_dict(),
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(blip / "CLIP" / "tiny")
    tokenizer().save_pretrained(blip / "CLIP" / "tiny")
    lists = blip / "interrogate"
    lists.mkdir()
    (lists / "animals.top2.txt").write_text("red cat\nblue dog\n\na dog\n")
    (lists / "media.txt").write_text("photo\ndrawing\n")
    settings = Settings().changed(interrogate_clip_min_length=2, interrogate_clip_max_length=5)
    image = Image.new("RGB", (32, 32), "red")
    parts = captioners(blip).caption(image, "clip", settings).split(", ")
    assert len(parts) == 4 and parts[3] in ("photo", "drawing") and set(parts[1:3]) < {"red cat", "blue dog", "a dog"}
    ranked = captioners(blip).caption(image, "clip", settings.changed(interrogate_return_ranks=True)).split(", ")
    assert re.fullmatch(rf"\({parts[3]}:[01]\.\d\d\d\)", ranked[3])
    skipped = settings.changed(interrogate_clip_skip_categories=["media"], interrogate_clip_dict_limit=1)
    assert captioners(blip).caption(image, "clip", skipped).split(", ")[1:] == ["red cat"]


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "BLIP").mkdir()
    (tmp_path / "BLIP" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"BLIP cannot be read from .*BLIP"):
        captioners(tmp_path).caption(Image.new("RGB", (8, 8)), "clip", Settings())


class Session:
    """What onnxruntime makes of a file; remembers what it was given."""

    given: Any = None

    def __init__(self, count: int) -> None:
        self._count = count

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="input", shape=["batch", 16, 16, 3])]

    def run(self, names: object, values: dict[str, Any]) -> list[Any]:
        Session.given = values["input"]
        return [np.linspace(1, 0.2, self._count, dtype=np.float32)[None]]


def put_tagger(folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 4) -> None:
    place = folder / "deepbooru" / "wd"
    place.mkdir(parents=True)
    (place / "model.onnx").write_bytes(b"")
    rows = "tag_id,name,category,count\n1,explicit,9,1\n2,zebra_(animal),0,1\n3,blue_sky,0,1\n4,rare,0,1\n"
    (place / "selected_tags.csv").write_text(rows)
    monkeypatch.setattr(tagger, "_session", lambda path: Session(count))


def test_a_tagger_names_what_is_above_the_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tagger(tmp_path, monkeypatch)
    image = Image.new("RGB", (20, 10), (10, 20, 30))
    assert captioners(tmp_path).caption(image, "deepbooru", Settings()) == r"zebra \(animal\)"
    lower = Settings().changed(interrogate_deepbooru_score_threshold=0.4)
    assert captioners(tmp_path).caption(image, "deepbooru", lower) == r"blue sky, zebra \(animal\)"
    assert Session.given.shape == (1, 16, 16, 3) and Session.given.dtype == np.float32
    assert Session.given[0, 8, 8].tolist() == [30.0, 20.0, 10.0]
    assert Session.given[0, 0, 0].tolist() == [255.0] * 3


def test_tags_are_written_as_set() -> None:
    scores = {"zebra_(animal)": 0.9, "blue_sky": 0.6}
    options = Settings().changed(
        deepbooru_sort_alpha=False, deepbooru_use_spaces=False, deepbooru_escape=False, interrogate_return_ranks=True
    )
    assert written(scores, options.interrogate) == "(zebra_(animal):0.900), (blue_sky:0.600)"
    assert written(scores, Settings().changed(deepbooru_filter_tags="Blue Sky, x").interrogate) == r"zebra \(animal\)"


def test_taggers_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tagger(tmp_path, monkeypatch, count=3)
    with pytest.raises(CheckpointError, match=r"gives 3 scores, and selected_tags.csv names 4 tags"):
        captioners(tmp_path).caption(Image.new("RGB", (8, 8)), "deepbooru", Settings())
    (tmp_path / "deepbooru" / "wd" / "selected_tags.csv").write_text("x\n1\n")
    with pytest.raises(CheckpointError, match=r"selected_tags\.csv must lie next to"):
        captioners(tmp_path).caption(Image.new("RGB", (8, 8)), "deepbooru", Settings())


def test_without_onnxruntime_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagger, "RUNTIME", "a_package_that_nobody_has")
    with pytest.raises(CheckpointError, match="pip install a_package_that_nobody_has"):
        tagger._session(tmp_path / "model.onnx")
