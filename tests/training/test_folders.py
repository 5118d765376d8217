"""Folders of images: captions in any encoding, kohya's repeats, what is wrong in words, and the order of the data."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lib_training.config import DataConfig, FolderConfig
from lib_training.dataset import Dataset, View, make_dataset
from lib_training.failures import TrainingError
from lib_training.folders import FolderReport, read_captions, read_folders, write_captions
from lib_training.latents import LatentCache, cut
from modules.system.decoding import decode_text


def draw(path: Path, size: tuple[int, int] = (64, 64), seed: int = 0, caption: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")
    return path


def read(*folders: FolderConfig, **options: Any) -> FolderReport:
    return read_folders(DataConfig(folders=list(folders), **options), 64)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_captions_are_read_in_any_encoding(encoding: str) -> None:
    assert decode_text("café, señal — toy".encode(encoding)).strip("\ufeff") == "café, señal — toy"


def test_old_encodings_are_guessed() -> None:
    text = "une petite fille près de la fenêtre, un château à l'été, des élèves où ça"
    assert decode_text(text.encode("cp1252")) == text
    other = "девушка в красном платье стоит у окна и смотрит на старый город"
    assert decode_text(other.encode("cp1251")) == other


def test_what_is_wrong_with_a_folder_is_said_in_words(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", seed=1, caption="a toy, red")
    draw(tmp_path / "b.png", seed=1, caption="a toy")
    draw(tmp_path / "c.png", size=(20, 20), seed=2, caption="a toy")
    draw(tmp_path / "d.png", seed=3)
    (tmp_path / "e.png").write_bytes(b"no image at all")
    whole = draw(tmp_path / "f.png", seed=5).read_bytes()
    (tmp_path / "f.png").write_bytes(whole[: len(whole) // 2])
    report = read(FolderConfig(path=str(tmp_path)))
    text = "\n".join(report.problems)
    assert "Unreadable and left out (2): e.png (no image), f.png" in text
    assert "Without a caption (1): d.png" in text
    assert "Duplicates (1): b.png = a.png" in text
    assert "Much smaller than 64 px and will be enlarged (1)" in text
    assert "Few images (4)" in text
    assert report.tags == (("a toy", 3), ("red", 1))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="there are no images to learn from"):
        read(FolderConfig(path=str(tmp_path)))
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(TrainingError, match=r"Unreadable and left out \(1\): a\.png"):
        read(FolderConfig(path=str(tmp_path)))
    with pytest.raises(TrainingError, match="is no folder"):
        read(FolderConfig(path=str(tmp_path / "missing")))


def test_kohyas_folders_repeat_and_name_what_has_no_caption(tmp_path: Path) -> None:
    draw(tmp_path / "3_zorp cat" / "a.png", seed=1)
    draw(tmp_path / "reg" / "1_cat" / "b.png", seed=2, caption="cat")
    report = read(
        FolderConfig(path=str(tmp_path)), FolderConfig(path=str(tmp_path / "reg"), regularization=True, repeats=2)
    )
    found = {sample.path.name: sample for sample in report.samples}
    assert (found["a.png"].repeats, found["a.png"].captions) == (3, ("zorp cat",))
    assert (found["b.png"].repeats, found["b.png"].is_regularization) == (2, True)


def test_captions_are_written_and_read_again(tmp_path: Path) -> None:
    image = draw(tmp_path / "a.png")
    write_captions(image, ["one, two", "drei"])
    assert read_captions(image) == ("one, two", "drei")


def dataset(tmp_path: Path, count: int = 10, batch: int = 2, **options: Any) -> Dataset:
    for index in range(count):
        size = (128, 64) if index % 3 == 0 else (64, 64)
        draw(tmp_path / f"{index}.png", size, seed=index, caption=f"zorp, tag {index}, b, c, d")
    data = DataConfig(folders=[FolderConfig(path=str(tmp_path))], **options)
    return make_dataset(read_folders(data, 128).samples, data, 128, 32, batch, seed=1)


def test_an_epoch_shows_every_image_as_often_as_it_says_in_batches_of_one_size(tmp_path: Path) -> None:
    found = dataset(tmp_path)
    assert len(found.held_out) == 1
    batches = found.epoch(3)
    shown = Counter(sample.path for batch in batches for sample in batch)
    assert set(shown.values()) == {1}
    assert not {sample.path for sample in found.held_out} & shown.keys()
    assert all(len({found.bucket_of(sample) for sample in batch}) == 1 for batch in batches)
    assert batches == found.epoch(3) != found.epoch(4)


def test_buckets_keep_the_aspect_and_no_more_pixels(tmp_path: Path) -> None:
    found = dataset(tmp_path)
    assert all(width * height <= 128 * 128 and width % 32 == height % 32 == 0 for width, height in found.buckets)
    wide = next(sample for sample in found.samples if sample.size_px == (128, 64))
    assert found.bucket_of(wide) == (160, 96) or found.bucket_of(wide)[0] > found.bucket_of(wide)[1]
    assert dataset(tmp_path, buckets=False).buckets == ((128, 128),)


def test_captions_vary_as_the_options_say(tmp_path: Path) -> None:
    found = dataset(tmp_path, shuffle_tags=True, keep_tokens=1, tag_dropout=0.2, prefix="hey, ", suffix=", end")
    texts = found.captions(found.samples[0])
    assert len(texts) > 2
    assert all(text.startswith("hey, zorp") and text.endswith(", end") for text in texts)
    dropped = dataset(tmp_path, caption_dropout=1.0)
    items = dropped.items(dropped.samples, "step 1")
    assert all(item.caption.is_dropped and item.caption.text == "" for item in items)
    assert {item.caption for item in items} <= set(dropped.all_captions())


def test_everything_a_step_shows_was_encoded_ahead(tmp_path: Path) -> None:
    found = dataset(tmp_path, shuffle_tags=True, flip=True, crop="random", caption_dropout=0.3)
    views, captions = set(found.all_views()), set(found.all_captions())
    for step in range(20):
        for item in found.items(found.samples, f"step {step}"):
            assert item.view in views
            assert item.caption in captions


def test_a_position_in_the_data_is_gone_on_from(tmp_path: Path) -> None:
    found = dataset(tmp_path)
    stream = iter(found.batches_from((0, 0)))
    seen = [next(stream) for _ in range(15)]
    position, _ = seen[6]
    again = iter(found.batches_from(position))
    assert [next(again) for _ in range(8)] == seen[7:]


def test_a_view_is_cut_and_mirrored(tmp_path: Path) -> None:
    image = Image.new("RGB", (200, 100), "black")
    image.paste("white", (0, 0, 100, 100))
    sample = read(FolderConfig(path=str(draw(tmp_path / "a.png").parent))).samples[0]
    left = cut(image, View(sample, (64, 64), crop=0.0))
    mirrored = cut(image, View(sample, (64, 64), crop=0.0, is_flipped=True))
    assert left.size == (64, 64)
    assert left.getpixel((2, 2)) == (255, 255, 255)
    assert list(left.transpose(Image.Transpose.FLIP_LEFT_RIGHT).getdata()) == list(mirrored.getdata())


def test_masks_say_where_the_loss_counts(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", caption="x")
    mask = Image.new("L", (64, 64), 0)
    mask.paste(255, (0, 0, 32, 64))
    mask.save(tmp_path / "a.mask.png")
    (sample,) = read(FolderConfig(path=str(tmp_path)), masks=True).samples
    cache, view = LatentCache("x", 8), View(sample, (64, 64))
    cache._known[view] = torch.zeros(4, 8, 8)
    cache.fill(None, [view])  # type: ignore[arg-type] # nothing is left to encode
    masks = cache.masks([view], 0.1)
    assert masks is not None
    assert masks[0, 0, 0].tolist() == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1])
