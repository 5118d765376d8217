"""Cards of model files: what is found, how it is called, what is noted, and what is never read."""

import base64
import errno
import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.adapters.catalogue import AdapterCatalogue
from modules.adapters.tags import lora_tags
from modules.errors import InvalidValueError, OutputError, UnknownNameError
from modules.model_cards.card_pages import checkpoint_page, embedding_page, fits_tag, hypernetwork_page
from modules.model_cards.cards import Card, CardLibrary, card_json
from modules.model_cards.notes import write_notes
from modules.model_cards.previews import embedded_preview, read_preview, write_preview
from modules.model_cards.training_facts import training_facts, training_tags, version_of
from modules.models.detection.families import version_of_family
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.header import FRONT_BYTES, read_metadata
from modules.processing.engine.adapter_files import AdapterFiles
from modules.prompting.extra_networks import extract_tags
from modules.settings.values import Settings
from tests.extensions import lora_page

SETTINGS = Settings()


def adapter(path: Path, metadata: dict[str, str] | None = None, last: bool = False) -> Path:
    """A safetensors file with one tensor; `last` puts the metadata behind the tensors."""
    tensors: dict[str, Any] = {"a.lora_up.weight": {"dtype": "F16", "shape": [1, 1], "data_offsets": [0, 2]}}
    table = {"__metadata__": metadata or {}}
    header = json.dumps({**tensors, **table} if last else {**table, **tensors}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    return path


def image(path: Path, color: str = "red", info: PngInfo | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), color).save(path, pnginfo=info)
    return path


def library(folder: Path) -> CardLibrary:
    (folder / "emb").mkdir(exist_ok=True)
    (folder / "hyper").mkdir(exist_ok=True)
    loras = folder / "lora"
    checkpoints = CheckpointCatalogue((folder / "ckpt",), HashCache(folder / "hashes.json"))
    return CardLibrary(
        (
            embedding_page(folder / "emb"),
            hypernetwork_page(folder / "hyper", AdapterCatalogue((folder / "hyper",), (".pt",))),
            checkpoint_page((folder / "ckpt",), checkpoints),
            lora_page(AdapterFiles((loras,)), loras),
        )
    )


def shown(cards: CardLibrary, page: str, settings: Settings = SETTINGS) -> dict[str, dict[str, Any]]:
    found = cards.cards(page, settings)
    return {card.key: card_json(cards.page(page), card, settings) for card in found}


def lora_cards(folder: Path, settings: Settings = SETTINGS) -> dict[str, dict[str, Any]]:
    return shown(library(folder), "lora", settings)


def test_files_in_folders_become_cards_with_what_lies_beside_them(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "styles" / "ink.v2.safetensors", {"ss_output_name": "Ink"})
    image(path.with_name("ink.v2.png"))
    write_notes(path, {"description": "ink drawings", "activation text": "inked", "preferred weight": 0.75})
    (card,) = lora_cards(tmp_path).values()
    assert card["key"] == "0/styles/ink.v2.safetensors" and card["folder"] == "styles"
    assert card["prompt"] == "<lora:Ink:0.75>" and card["tag"] == "<lora:Ink:" and card["activation"] == "inked"
    assert card["description"] == "ink drawings" and card["stamp"] != "0"
    assert {"ink.v2", "ink", "ink drawings"} <= set(card["search"].split("\n"))


def test_a_card_says_what_a_file_for_few_steps_asks_for(tmp_path: Path) -> None:
    adapter(tmp_path / "lora" / "lcm-lora.safetensors")
    adapter(tmp_path / "lora" / "plain.safetensors")
    found = lora_cards(tmp_path)
    assert found["0/plain.safetensors"]["few_steps"] is None
    assert found["0/lcm-lora.safetensors"]["few_steps"]["sampler"] == "LCM"
    hidden = lora_cards(tmp_path, SETTINGS.changed(hide_samplers=("LCM",)))
    assert hidden["0/lcm-lora.safetensors"]["few_steps"]["sampler"] == ""


def test_a_description_may_lie_in_a_text_file(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    path.with_name("a.description.txt").write_text("from a text", encoding="utf-8")
    assert lora_cards(tmp_path)["0/a.safetensors"]["description"] == "from a text"
    write_notes(path, {"description": "from the notes"})
    assert lora_cards(tmp_path)["0/a.safetensors"]["description"] == "from the notes"


@pytest.mark.parametrize("ending", [".civitai.info", ".json"])
def test_facts_that_other_programs_left_beside_a_file_stand_where_nothing_is_noted(tmp_path: Path, ending: str) -> None:
    path = adapter(tmp_path / "lora" / "dog.safetensors")
    key = "0/dog.safetensors"
    facts = {"trainedWords": ["sks", "wet paint"], "baseModel": "Pony", "description": "Of a dog"}
    path.with_name(f"dog{ending}").write_text(json.dumps(facts), encoding="utf-8")
    card = lora_cards(tmp_path)[key]
    assert (card["activation"], card["version"], card["description"]) == ("sks, wet paint", "SDXL", "Of a dog")
    if ending == ".json":
        facts["description"] = "mine"
        path.with_name("dog.json").write_text(json.dumps(facts), encoding="utf-8")
        assert lora_cards(tmp_path)[key]["description"] == "mine"
    else:
        write_notes(path, {"activation text": "mine"})
        card = lora_cards(tmp_path)[key]
        assert (card["activation"], card["version"]) == ("mine", "SDXL")


def test_names_are_by_alias_or_by_file(tmp_path: Path) -> None:
    adapter(tmp_path / "lora" / "a.safetensors", {"ss_output_name": "alias"})
    (card,) = lora_cards(tmp_path).values()
    assert card["prompt"] == "<lora:alias:1>"
    settings = SETTINGS.changed(lora_preferred_name="Filename", extra_networks_default_multiplier=0.5)
    (card,) = lora_cards(tmp_path, settings).values()
    assert card["prompt"] == "<lora:a:0.5>"


def test_every_card_names_exactly_its_file(tmp_path: Path) -> None:
    """Twins, aliases that are another's name, and names that would end a tag: the prompt finds that very file."""
    folder = tmp_path / "lora"
    paths = [
        adapter(folder / "one" / "twin.safetensors", {"number": "1"}),
        adapter(folder / "two" / "twin.safetensors", {"number": "2", "sshs_model_hash": "ab" * 32}),
        adapter(folder / "other.safetensors", {"ss_output_name": "twin", "number": "3"}),
        adapter(folder / "a:b.safetensors", {"number": "4", "sshs_model_hash": "cd" * 32}),
        adapter(folder / "x=y.safetensors", {"number": "5", "sshs_model_hash": "ef" * 32}),
        adapter(folder / "a (b) [c], ü.safetensors", {"number": "6"}),
        adapter(folder / "plain.safetensors", {"ss_output_name": "one > two", "number": "7"}),
    ]
    adapters = AdapterFiles((folder,))
    catalogue = adapters.catalogue
    cards = CardLibrary((lora_page(adapters, folder),))
    by_path = {card.file.path: card_json(cards.page("lora"), card, SETTINGS) for card in cards.cards("lora", SETTINGS)}
    for path in paths:
        _, tags = extract_tags(f"a cat {by_path[path]['prompt']}")
        (tag,), problems = lora_tags(tags)
        info = catalogue.find(tag.name)
        assert info is not None and info.path == path and not problems
    assert by_path[paths[3]]["prompt"] == "<lora:cdcdcdcdcdcd:1>"


@pytest.mark.parametrize("name", ["a:b", "<a", "a>", "a=b", "a#b", "", " a"])
def test_names_that_a_tag_cannot_hold(name: str) -> None:
    assert not fits_tag(name) and fits_tag("a (b) [c] | ü, 1.5")


def test_embeddings_are_words_also_those_in_images(tmp_path: Path) -> None:
    cards = library(tmp_path)
    (tmp_path / "emb" / "bad-hands.pt").write_bytes(b"not looked at")
    image(tmp_path / "emb" / "bad-hands.preview.png")
    image(tmp_path / "emb" / "holiday.png")
    table = {"name": "inside", "string_to_param": {"*": {"TORCHTENSOR": [[0.5, 1.0]]}}}
    info = PngInfo()
    info.add_text("sd-ti-embedding", base64.b64encode(json.dumps(table).encode()).decode())
    image(tmp_path / "emb" / "file.png", info=info)
    found = shown(cards, "textual_inversion")
    assert {key: card["prompt"] for key, card in found.items()} == {
        "0/bad-hands.pt": "bad-hands",
        "0/file.png": "inside",
    }
    assert all(card["stamp"] != "0" and card["tag"] == "" for card in found.values())
    assert shown(cards, "textual_inversion") == found


def test_hyperadapters_and_checkpoints(tmp_path: Path) -> None:
    library(tmp_path)
    (tmp_path / "hyper" / "portrait.pt").write_bytes(b"not looked at")
    adapter(tmp_path / "ckpt" / "sub" / "model.safetensors")
    (card,) = shown(library(tmp_path), "hypernetworks").values()
    assert card["prompt"] == "<hypernet:portrait:1>"
    (card,) = shown(library(tmp_path), "checkpoints").values()
    assert card["prompt"] == "sub/model.safetensors" and card["name"] == "model" and card["negative"] == ""


def test_a_folder_in_the_diffusers_layout_has_a_card_with_notes_and_preview_beside_it(tmp_path: Path) -> None:
    model = tmp_path / "ckpt" / "my model.v2"
    adapter(model / "unet" / "diffusion_pytorch_model.safetensors")
    (model / "model_index.json").write_text("{}")
    write_notes(model, {"description": "a folder", "vae": "None"})
    write_preview(model, b"png")
    names = {path.name for path in model.parent.iterdir()}
    assert names == {"my model.v2", "my model.v2.json", "my model.v2.preview.png"}
    cards = library(tmp_path)
    (card,) = cards.cards("checkpoints", SETTINGS)
    assert (card.file.name, card.file.reference) == ("my model.v2", "my model.v2")
    assert card.notes["description"] == "a folder" and card.notes["vae"] == "None"
    assert card.preview is not None and card.preview.name == "my model.v2.preview.png"
    assert card.size_bytes == (model / "unet" / "diffusion_pytorch_model.safetensors").stat().st_size


def test_unknown_pages_and_cards(tmp_path: Path) -> None:
    cards = library(tmp_path)
    with pytest.raises(UnknownNameError, match="Known: textual_inversion"):
        cards.cards("styles", SETTINGS)
    for key in ("0/none.safetensors", "../../etc/passwd", "0/../../etc/passwd", "7/a", ""):
        with pytest.raises(UnknownNameError, match="Refresh the cards"):
            cards.card("lora", key, SETTINGS)


def test_a_new_file_is_found_by_its_key_without_a_refresh(tmp_path: Path) -> None:
    cards = library(tmp_path)
    cards.cards("lora", SETTINGS)
    adapter(tmp_path / "lora" / "new.safetensors")
    assert cards.card("lora", "0/new.safetensors", SETTINGS).file.name == "new"


# -- previews --------------------------------------------------------------------------------------------------------


def gpu_only(folder: Path) -> Card:
    (card,) = library(folder).cards("lora", SETTINGS)
    return card


@pytest.mark.parametrize("name", ["a.png", "a.preview.png", "a.jpg", "a.preview.jpeg", "a.webp", "a.gif"])
def test_previews_beside_a_file(name: str, tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    image(path.with_name(name))
    card = gpu_only(tmp_path)
    assert card.preview == path.with_name(name)
    assert read_preview(path.with_name(name), (tmp_path / "lora",)).media_type.startswith("image/")


def test_a_chosen_preview_goes_first(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    image(path.with_name("a.png"))
    image(path.with_name("a.preview.png"))
    assert gpu_only(tmp_path).preview == path.with_name("a.preview.png")


def test_links_out_of_the_folders_are_not_followed(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    secret = image(tmp_path / "private" / "secret.png")
    words = tmp_path / "private" / "words.txt"
    words.write_text("secret words", encoding="utf-8")
    path.with_name("a.png").symlink_to(secret)
    path.with_name("a.txt").symlink_to(words)
    path.with_name("a.json").symlink_to(words)
    card = gpu_only(tmp_path)
    assert card.preview is None and not card.notes["description"]
    with pytest.raises(UnknownNameError, match="no preview"):
        read_preview(path.with_name("a.png"), (tmp_path / "lora",))
    with pytest.raises(UnknownNameError, match="no preview"):
        read_preview(tmp_path / "lora" / ".." / "private" / "secret.png", (tmp_path / "lora",))
    with pytest.raises(UnknownNameError, match="no preview"):
        read_preview(path, (tmp_path / "lora",))


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    path.with_name("a.png").symlink_to(image(tmp_path / "lora" / "images" / "b.png"))
    assert gpu_only(tmp_path).preview == path.with_name("a.png")


def test_a_ring_of_links_is_no_preview(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    path.with_name("a.png").symlink_to(path.with_name("a.png"))
    assert gpu_only(tmp_path).preview is None


def jpeg() -> str:
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "blue").save(data, "JPEG")
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize(
    "metadata",
    [{"ssmd_cover_images": json.dumps([jpeg()])}, {"modelspec.thumbnail": f"data:image/jpeg;base64,{jpeg()}"}],
)
def test_images_in_the_metadata_are_previews_and_stay_out_of_lists(metadata: dict[str, str], tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors", {**metadata, "ss_network_dim": "8"})
    card = gpu_only(tmp_path)
    assert card.preview is None and card.preview_stamp and card.file.metadata == {"ss_network_dim": "8"}
    found = embedded_preview(read_metadata(path))
    assert found is not None and found.media_type == "image/jpeg"
    assert Image.open(io.BytesIO(found.data)).size == (8, 8)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"ssmd_cover_images": "no list"},
        {"ssmd_cover_images": "{}"},
        {"ssmd_cover_images": '[5, "%%%", "AAAA"]'},
        {"modelspec.thumbnail": "data:image/svg+xml;base64,PHN2Zy8+"},
        {"modelspec.thumbnail": "https://example.org/image.png"},
    ],
)
def test_what_is_no_image_in_the_metadata(metadata: dict[str, str]) -> None:
    assert embedded_preview(metadata) is None


# -- notes -----------------------------------------------------------------------------------------------------------


def test_notes_keep_the_keys_of_others(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    file = path.with_suffix(".json")
    file.write_text('{"civitai": 5, "notes": "old", "description": "stays"}', encoding="utf-8")
    write_notes(path, {"notes": "", "activation text": "ünk", "preferred weight": 1.25})
    assert json.loads(file.read_text(encoding="utf-8")) == {
        "civitai": 5,
        "description": "stays",
        "activation text": "ünk",
        "preferred weight": 1.25,
    }
    assert gpu_only(tmp_path).notes["activation text"] == "ünk"
    assert not list(file.parent.glob("*.tmp"))


@pytest.mark.parametrize("value", [0, None, ""])
def test_weight_0_means_the_default(value: Any, tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    write_notes(path, {"preferred weight": 1.5})
    write_notes(path, {"preferred weight": value})
    assert json.loads(path.with_suffix(".json").read_text()) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "x"}, "There is no note 'sha256'; known are description"),
        ({"notes": 5}, "'notes' must be a text"),
        ({"notes": "x" * 20_001}, "at most 20000"),
        ({"preferred weight": 2.1}, "from 0"),
        ({"preferred weight": float("nan")}, "from 0"),
        ({"preferred weight": True}, "from 0"),
    ],
)
def test_notes_that_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    with pytest.raises(InvalidValueError, match=said):
        write_notes(path, changes)
    assert not path.with_suffix(".json").exists()


@pytest.mark.parametrize("content", ["[1, 2]", "no json {"])
def test_a_file_that_holds_no_notes_is_read_as_none_and_never_replaced(content: str, tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    path.with_suffix(".json").write_text(content, encoding="utf-8")
    assert not gpu_only(tmp_path).notes.get("notes")
    with pytest.raises(InvalidValueError, match="Nothing was changed"):
        write_notes(path, {"notes": "x"})
    assert path.with_suffix(".json").read_text(encoding="utf-8") == content


def test_odd_values_in_the_notes_of_others_do_no_harm(tmp_path: Path) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")
    path.with_suffix(".json").write_text(
        '{"description": 5, "activation text": null, "preferred weight": "1", "sd version": "SDXL"}', encoding="utf-8"
    )
    (card,) = lora_cards(tmp_path).values()
    assert card["prompt"] == "<lora:a:1>" and card["activation"] == "" and card["version"] == "SDXL"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adapter(tmp_path / "lora" / "a.safetensors")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modules.model_cards.notes.write_atomic", full)
    monkeypatch.setattr("modules.model_cards.previews.write_atomic", full)
    with pytest.raises(OutputError, match=r"The notes a\.json could not be saved .* the disk is full"):
        write_notes(path, {"notes": "x"})
    with pytest.raises(OutputError, match=r"The preview a\.preview\.png could not be saved .* the disk is full"):
        write_preview(path, b"png")


# -- what the metadata says ------------------------------------------------------------------------------------------


def test_metadata_is_read_wherever_it_stands(tmp_path: Path) -> None:
    table = {"ss_output_name": "x", "long": "y" * (2 * FRONT_BYTES)}
    for last in (False, True):
        assert read_metadata(adapter(tmp_path / "a.safetensors", table, last)) == table
        assert read_metadata(adapter(tmp_path / "a.safetensors", {"a": 'ü"}{'}, last)) == {"a": 'ü"}{'}


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        ({}, ""),
        ({"ss_v2": "False"}, "SD1"),
        ({"ss_v2": "True"}, "SD2"),
        ({"ss_base_model_version": "sdxl_base_v1-0", "ss_v2": "False"}, "SDXL"),
        ({"ss_base_model_version": "sd_v1"}, "SD1"),
        ({"ss_base_model_version": "flux1", "ss_v2": "False"}, ""),
        ({"modelspec.architecture": "stable-diffusion-xl-v1-base/lora"}, "SDXL"),
        ({"modelspec.architecture": "stable-diffusion-v1/lora"}, "SD1"),
    ],
)
def test_the_kind_of_model_that_an_adapter_is_for(metadata: dict[str, str], version: str) -> None:
    assert version_of(metadata) == version
    assert version_of(metadata, "SD2") == "SD2"
    assert version_of(metadata, "Unknown") == version


def test_without_metadata_the_tensors_say_which_models_an_adapter_is_for(tmp_path: Path) -> None:
    adapter(tmp_path / "none.safetensors")
    adapter(tmp_path / "said.safetensors", {"ss_base_model_version": "sdxl_base_v1-0"})
    wide = {"lora_unet_a_attn2_to_k.lora_down.weight": {"dtype": "F16", "shape": [1, 768], "data_offsets": [0, 1536]}}
    header = json.dumps(wide).encode()
    (tmp_path / "plain.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1536))
    found = AdapterCatalogue((tmp_path,))
    found.refresh()
    assert {info.name: info.version for info in found.entries} == {"none": "", "said": "SDXL", "plain": "SD1"}


@pytest.mark.parametrize(
    ("label", "version"),
    [("SD 1.x", "SD1"), ("SD 2.x", "SD2"), ("SDXL", "SDXL"), ("SDXL refiner", "SDXL"), ("Flux", "")],
)
def test_the_kind_of_the_loaded_model(label: str, version: str) -> None:
    assert version_of_family(label) == version


def test_words_of_the_training_by_frequency() -> None:
    frequency = {"10_a": {"ink": 3, " paper ": 1}, "5_b": {"ink": 2, "pen": 9, "odd": "x", "": 4}, "odd": 5}
    assert training_tags({"ss_tag_frequency": json.dumps(frequency)}) == [("pen", 9), ("ink", 5), ("paper", 1)]
    assert training_tags({"ss_tag_frequency": "[]"}) == training_tags({}) == []


def test_facts_of_the_training() -> None:
    buckets = {"buckets": {"0": {"resolution": [512, 768], "count": 7}, "1": {"resolution": 5}}}
    facts = training_facts({"ss_network_dim": "8", "ss_clip_skip": "None", "ss_bucket_info": json.dumps(buckets)})
    assert facts == {"Rank": "8", "Resolutions": "512x768 (7)"}
