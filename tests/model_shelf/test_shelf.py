"""The model files on disk: kinds, use, doubles, missing parts, 8 bits, moving and the trash."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.errors import InvalidValueError, UnknownNameError
from modules.flags.flags import Flags
from modules.model_shelf.shelf import Shelf, ShelfFile
from modules.models.files.catalogue import HashCache
from modules.system.paths import resolve_paths
from tests.downloads.file_server import safetensors

ROOT = Path(__file__).parents[2]
Z_IMAGE = safetensors(
    {
        "model.diffusion_model.cap_pad_token": ("BF16", [1, 8]),
        "model.diffusion_model.noise_refiner.0.attention.qkv.weight": ("BF16", [24, 8]),
    }
)
QWEN3 = safetensors(
    {
        "model.layers.0.self_attn.q_norm.weight": ("BF16", [128]),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", [4096, 2560]),
        "model.embed_tokens.weight": ("BF16", [8, 2560]),
    }
)
DECODER = {"decoder.mid.block_1.conv1.weight": ("BF16", [8, 8, 3, 3])}
FLUX_VAE = safetensors({**DECODER, "decoder.conv_in.weight": ("BF16", [512, 16, 3, 3])})
FLUX2_VAE = safetensors(
    {
        **DECODER,
        "decoder.conv_in.weight": ("BF16", [512, 32, 3, 3]),
        "bn.running_mean": ("BF16", [128]),
        "encoder.down.0.block.0.conv1.weight": ("BF16", [8, 8, 3, 3]),
    }
)
LORA = safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64])})


class House:
    """A data folder with models."""

    def __init__(self, folder: Path) -> None:
        self.paths = resolve_paths(Flags(data_dir=str(folder)), ROOT)
        self.uses: dict[str, dict[str, float]] = {"model": {}, "lora": {}}
        self.refreshed = 0
        self.shelf = Shelf(self.paths, HashCache(folder / "hashes.json"), self.uses.__getitem__, self._refresh)

    def _refresh(self) -> None:
        self.refreshed += 1

    def put(self, kind: str, name: str, data: bytes) -> Path:
        path = self.shelf.roots[kind][0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def file(self, name: str) -> ShelfFile:
        return next(one for one in self.shelf.files() if one.name == name)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_files_are_listed_by_kind_with_the_largest_first(house: House) -> None:
    house.put("Lora", "styles/a.safetensors", LORA)
    house.put("Stable-diffusion", "big.safetensors", QWEN3)
    house.put("Stable-diffusion", ".big.safetensors.part", LORA)
    found = [one for one in house.shelf.files() if not one.is_part_of_program]
    assert [(one.kind, one.folder, one.name) for one in found] == [
        ("Stable-diffusion", "", "big.safetensors"),
        ("Lora", "styles", "a.safetensors"),
    ]
    ours = house.file("featherweight-scenes.safetensors")
    assert ours.is_part_of_program and ours.saves_bytes == pytest.approx(9.0e6, rel=0.05), "as precision-report says"
    with pytest.raises(InvalidValueError, match="part of the program"):
        house.shelf.delete(ours.key)


def test_the_last_use_is_found_by_the_names_of_infotexts(house: House) -> None:
    house.put("Stable-diffusion", "sub/My Model.safetensors", LORA)
    house.put("Lora", "Style.safetensors", LORA + b"\0")
    house.uses["model"], house.uses["lora"] = {"sub_my model": 5.0}, {"style": 7.0}
    assert (house.file("My Model.safetensors").used_at, house.file("Style.safetensors").used_at) == (5.0, 7.0)


def test_doubles_are_told_by_their_bytes(house: House) -> None:
    for name, data in (("a", LORA), ("b", LORA), ("c", LORA[:-1] + b"\1"), ("d", LORA + b"\0")):
        house.put("Lora", f"{name}.safetensors", data)
    assert house.file("a.safetensors").may_be_double and not house.file("a.safetensors").doubles
    seen: list[tuple[int, int]] = []
    assert house.shelf.take_hashes(lambda done, total: seen.append((done, total))) == 3
    assert seen[-1] == (3 * len(LORA), 3 * len(LORA))
    assert house.file("a.safetensors").doubles == ("Lora/0/b.safetensors",)
    assert [house.file(f"{name}.safetensors").doubles for name in "cd"] == [(), ()]
    assert not house.file("c.safetensors").may_be_double


def missing(house: House) -> list[str]:
    return [part.name for part in house.file("z.safetensors").missing]


def test_missing_parts_are_named_until_they_are_there(house: House) -> None:
    house.put("Stable-diffusion", "z.safetensors", Z_IMAGE)
    assert missing(house) == ["qwen3-4b", "flux-vae"]
    house.put("VAE", "other.safetensors", FLUX2_VAE)
    assert missing(house) == ["qwen3-4b", "flux-vae"], "the VAE of another family"
    house.put("VAE", "ae.safetensors", FLUX_VAE)
    house.put("text_encoder", "q.safetensors", QWEN3)
    assert missing(house) == []
    assert house.file("q.safetensors").missing == ()


def test_a_file_that_cannot_be_read_needs_nothing(house: House) -> None:
    for data in (b"", b"\xff" * 64, (64).to_bytes(8, "little") + b"{" * 64):
        house.put("Stable-diffusion", "z.safetensors", data)
        assert missing(house) == [] and house.file("z.safetensors").saves_bytes == 0


def test_a_file_moves_with_what_lies_beside_it(house: House) -> None:
    path = house.put("Lora", "a.safetensors", LORA)
    for ending in (".json", ".preview.png", ".civitai.info"):
        path.with_name(f"a{ending}").write_bytes(b"{}")
    key = house.file("a.safetensors").key
    house.shelf.sha256(key)
    moved = house.shelf.move(key, "styles/wet")
    assert moved.folder == "styles/wet" and moved.sha256 and house.refreshed == 1
    names = sorted(file.name for file in moved.path.parent.iterdir())
    assert names == ["a.civitai.info", "a.json", "a.preview.png", "a.safetensors"]
    house.put("Lora", "a.safetensors", LORA)
    with pytest.raises(InvalidValueError, match="is in Lora already"):
        house.shelf.move(moved.key, "")
    for folder in ("..", "a/../../b", "/etc/x:y", "/etc", "/", "a\0b"):
        with pytest.raises(InvalidValueError, match=r"leads out|cannot be the name"):
            house.shelf.move(moved.key, folder)


def test_the_trash_gives_back_what_it_holds(house: House) -> None:
    path = house.put("Lora", "styles/a.safetensors", LORA)
    path.with_name("a.json").write_text("{}", encoding="utf-8")
    trashed = house.shelf.delete(house.file("a.safetensors").key)
    assert not path.exists() and not path.with_name("a.json").exists() and house.refreshed == 1
    (entry,) = house.shelf.trash.entries()
    assert entry == trashed and entry.size_bytes == len(LORA)
    assert house.shelf.restore(entry.id) == path and path.read_bytes() == LORA
    assert path.with_name("a.json").exists() and house.shelf.trash.entries() == ()
    again = house.shelf.delete(house.file("a.safetensors").key)
    house.put("Lora", "styles/a.safetensors", b"another")
    with pytest.raises(InvalidValueError, match="is there again"):
        house.shelf.restore(again.id)
    house.shelf.trash.forget(again.id)
    with pytest.raises(UnknownNameError, match="nothing"):
        house.shelf.restore(again.id)
    with pytest.raises(UnknownNameError, match="look again"):
        house.shelf.delete("Lora/0/../../x.safetensors")
