"""Captioning models in the files they were published as: DeepDanbooru's `.pt` and BLIP's `.pth`."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import BlipConfig, BlipForConditionalGeneration

from modules.captioning import deepdanbooru
from modules.captioning.blip import pixel_values
from modules.captioning.blip_file import BlipWords, load_blip_file, model_name
from modules.captioning.captioners import Captioners
from modules.captioning.deepdanbooru import STAGES, DeepDanbooru, DeepDanbooruNet, StageOfNet
from modules.errors import CheckpointError
from modules.settings.values import Settings

SMALL = (StageOfNet(2, 8, 2, stride=1), StageOfNet(2, 8, 1, shortcut_last=True))
TAGS = ["zebra", "blue_sky", "rating:safe"]
WORDS = ("[PAD]", "[SEP]", "a", "red", "cat", "##s", "dog", "on", "blue")
CPU = torch.device("cpu")


def captioners(folder: Path) -> Captioners:
    return Captioners(folder, lambda part: CPU)


def put_tagger(folder: Path, **changes: Any) -> Path:
    """A file of the published layout with few layers. Convolutions in its order: stem, shortcut, three, three; three,
    shortcut; head."""
    shapes = [(64, 3, 7), (8, 64, 1), (2, 64, 1), (2, 2, 3), (8, 2, 1), (2, 8, 1), (2, 2, 3), (8, 2, 1)]
    shapes += [(2, 8, 1), (2, 2, 3), (8, 2, 1), (8, 8, 1), (3, 8, 1)]
    generator = torch.Generator().manual_seed(1)
    weights: dict[str, Any] = {"tags": TAGS}
    for number, (outputs, inputs, side) in enumerate(shapes):
        weights[f"n_Conv_{number}.weight"] = torch.randn(outputs, inputs, side, side, generator=generator) * 0.3
        if number < len(shapes) - 1:
            weights[f"n_Conv_{number}.bias"] = torch.randn(outputs, generator=generator) * 0.1
    weights |= changes
    path = folder / "torch_deepdanbooru" / "model-resnet_custom_v3.pt"
    path.parent.mkdir()
    torch.save({key: value for key, value in weights.items() if value is not None}, path)
    return path


def by_hand(weights: dict[str, Any], x: Tensor) -> Tensor:
    """The same step by step."""

    def conv(number: int, x: Tensor, stride: int = 1) -> Tensor:
        return F.conv2d(x, weights[f"n_Conv_{number}.weight"], weights.get(f"n_Conv_{number}.bias"), stride)

    x = F.relu(conv(0, F.pad(x, (2, 3, 2, 3)), 2))
    x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-1e9), 3, 2)
    x = F.relu(conv(1, x) + conv(4, F.relu(conv(3, F.pad(F.relu(conv(2, x)), (1, 1, 1, 1))))))
    x = F.relu(x + conv(7, F.relu(conv(6, F.pad(F.relu(conv(5, x)), (1, 1, 1, 1))))))
    x = F.relu(conv(11, x, 2) + conv(10, F.relu(conv(9, F.pad(F.relu(conv(8, x)), (0, 1, 0, 1)), 2))))
    return conv(12, x).mean(dim=(2, 3)).sigmoid()


def test_the_published_network_has_its_convolutions_in_order() -> None:
    with torch.device("meta"):
        layers = DeepDanbooruNet(9176).in_file_order
    assert len(layers) == 179
    known = {0: (64, 3, 7, 2), 11: (512, 256, 1, 2), 13: (128, 128, 3, 2), 35: (512, 128, 1, 1), 38: (256, 256, 3, 2)}
    known |= {97: (256, 1024, 1, 1), 98: (256, 256, 3, 2), 99: (1024, 256, 1, 1), 100: (1024, 1024, 1, 2)}
    known |= {158: (2048, 1024, 1, 2), 168: (4096, 2048, 1, 2), 177: (4096, 1024, 1, 1), 178: (9176, 4096, 1, 1)}
    for number, (outputs, inputs, side, stride) in known.items():
        layer = layers[number]
        assert (*layer.weight.shape, layer.stride[0]) == (outputs, inputs, side, side, stride), number
    assert layers[178].bias is None and len(STAGES) == 6


def test_deepdanbooru_gives_the_scores_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_tagger(tmp_path)
    image = Image.linear_gradient("L").resize((512, 512)).convert("RGB")
    scores = DeepDanbooru(path, CPU, SMALL).scores(image)
    pixels = torch.tensor(list(image.getdata())).view(512, 512, 3).permute(2, 0, 1)[None] / 255
    expected = by_hand(torch.load(path, weights_only=True), pixels)[0].tolist()
    assert scores == pytest.approx({"zebra": expected[0], "blue_sky": expected[1]}, abs=1e-5)
    monkeypatch.setattr(deepdanbooru.DeepDanbooru.__init__, "__defaults__", (SMALL,))
    settings = Settings().changed(interrogate_deepbooru_score_threshold=0.0)
    assert set(captioners(tmp_path).caption(image, "deepdanbooru", settings).split(", ")) == {"zebra", "blue sky"}


def test_another_file_in_its_place_is_named(tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"tags": None}, "it names no tags"),
        ({"n_Conv_3.bias": None}, "n_Conv_3.bias is missing"),
        ({"n_Conv_0.weight": torch.zeros(1)}, r"n_Conv_0.weight is \[1\], and should be \[64, 3, 7, 7\]"),
    )
    for number, (changes, said) in enumerate(refused):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = put_tagger(folder, **changes)
        with pytest.raises(CheckpointError, match=f"{path.name} is not DeepDanbooru's .*{said}"):
            DeepDanbooru(path, CPU, SMALL)


def test_a_tagger_as_weights_alone_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "deepbooru").mkdir()
    (tmp_path / "deepbooru" / "wd-vit.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"put a folder with model\.onnx .*wd-vit\.safetensors holds a tagger's wei"
    ):
        captioners(tmp_path).caption(Image.new("RGB", (8, 8)), "deepbooru", Settings())


def original_name(name: str) -> str:
    """The name in BLIP's own files."""
    name = re.sub(
        r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.projection", r"visual_encoder.blocks.\1.attn.proj", name
    )
    name = re.sub(r"^vision_model\.encoder\.layers\.(\d+)\.self_attn", r"visual_encoder.blocks.\1.attn", name)
    name = re.sub(r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual_encoder.blocks.\1.norm", name)
    name = re.sub(r"^vision_model\.encoder\.layers\.(\d+)\.mlp", r"visual_encoder.blocks.\1.mlp", name)
    name = name.replace("vision_model.post_layernorm", "visual_encoder.norm")
    name = name.replace("vision_model.embeddings.class_embedding", "visual_encoder.cls_token")
    name = name.replace("vision_model.embeddings.position_embedding", "visual_encoder.pos_embed")
    return name.replace("vision_model.embeddings.patch_embedding", "visual_encoder.patch_embed.proj")


@pytest.fixture(scope="module")
def blip() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 9, "eos_token_id": 1, "sep_token_id": 1, "pad_token_id": 0}
    config = BlipConfig(
        text_config={**sizes, **ids, "vocab_size": 11, "encoder_hidden_size": 128, "max_position_embeddings": 32},
        vision_config={**sizes, "image_size": 32, "patch_size": 16, "layer_norm_eps": 1e-6},
    )
    model = BlipForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def put_blip(folder: Path, model: Any, vocabulary: tuple[str, ...] | None = WORDS) -> Path:
    path = folder / "BLIP" / "model_base_caption_capfilt_large.pth"
    path.parent.mkdir()
    weights = {original_name(name): value for name, value in model.state_dict().items()}
    weights["text_decoder.bert.embeddings.position_ids"] = torch.arange(32)[None]
    torch.save({"model": weights}, path)
    if vocabulary is not None:
        path.with_name("vocab.txt").write_text("\n".join(vocabulary))
    return path


def test_blips_own_file_is_the_same_model(blip: Any, tmp_path: Path) -> None:
    model, words = load_blip_file(put_blip(tmp_path, blip))
    model.eval()
    image = Image.radial_gradient("L").convert("RGB")
    asked = {"pixel_values": pixel_values(image, 32), "num_beams": 3, "min_length": 4, "max_length": 9}
    tokens = model.generate(**asked)
    assert tokens.tolist() == blip.generate(**asked).tolist()
    settings = Settings().changed(
        interrogate_clip_min_length=4, interrogate_clip_max_length=9, interrogate_clip_num_beams=3
    )
    assert captioners(tmp_path).caption(image, "clip", settings) == words.decode(tokens[0])


def test_pieces_of_words_are_joined(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    words = BlipWords(tmp_path / "vocab.txt")
    assert words.decode([9, 2, 3, 4, 5, 7, 8, 1, 0]) == "a red cats on blue"
    assert words.index("[DEC]") == 9 and words.index("[ENC]") == 10


def test_names_that_mean_nothing_are_left_out() -> None:
    assert model_name("text_decoder.bert.embeddings.position_ids") is None
    assert model_name("text_encoder.embeddings.word_embeddings.weight") is None
    assert model_name("visual_encoder.norm.bias") == "vision_model.post_layernorm.bias"


def test_blips_file_without_its_words_or_weights_says_what_is_missing(blip: Any, tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8))
    for number, (vocabulary, said) in enumerate(
        (
            (None, r"put vocab\.txt of bert-base-uncased into .*BLIP"),
            (WORDS[:-1], "it has 11 words, vocab.txt with its additions has 10"),
            (("[PAD]", "x", *WORDS[2:]), r"vocab\.txt lacks \[SEP\]"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        put_blip(folder, blip, vocabulary)
        with pytest.raises(CheckpointError, match=said):
            captioners(folder).caption(image, "clip", Settings())
    path = tmp_path / "0" / "BLIP" / "model_base_caption_capfilt_large.pth"
    torch.save({"model": {"visual_encoder.cls_token": torch.zeros(1)}}, path)
    path.with_name("vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(CheckpointError, match="is no captioning model of BLIP"):
        captioners(tmp_path / "0").caption(image, "clip", Settings())
