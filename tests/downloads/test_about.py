"""What sources say of a file: Civitai by its hash, the Hub by the address that it came from; what fits a
machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.downloads.about import about_file, base_word, of_civitai, read_preview_of, source_sha256_of
from modules.downloads.fitting import Machine, fitting_models
from modules.downloads.known import known_models
from modules.downloads.transport import DownloadError, FileTransport, GoneAwayError, Timeouts
from modules.errors import InvalidValueError
from tests.downloads.file_server import Behavior, Handler, safetensors, serving

CONFIGS = Path(__file__).parents[2] / "configs"
SHA256 = "ab" * 32
BY_HASH = f"/api/v1/model-versions/by-hash/{SHA256}"
CIVITAI = {
    "baseModel": "Illustrious",
    "trainedWords": ["somestyle", " wet paint ", 3],
    "description": "<p>Watercolors, <b>soft</b>.</p>",
    "model": {"name": "Some style"},
    "images": [
        {"url": "https://x/video.mp4", "type": "video"},
        {"url": "https://x/late.png", "nsfwLevel": 4},
        {"url": "https://x/first.png", "nsfwLevel": 1, "type": "image"},
    ],
}
README = """---
license: mit
base_model: [stabilityai/stable-diffusion-xl-base-1.0]
instance_prompt: photo of sks dog
widget:
- text: a dog
  output:
    url: images/dog one.png
---

# A dog

![image](x.png)

A LoRA of a dog, made from five photographs.
"""


@pytest.fixture
def transport() -> Iterator[FileTransport]:
    transport = FileTransport(timeouts=Timeouts(2.0, 0.6))
    yield transport
    transport.close()


def test_civitai_knows_a_file_by_its_hash(transport: FileTransport) -> None:
    with serving({BY_HASH: Behavior(json.dumps(CIVITAI).encode())}) as address:
        found = about_file(SHA256, "", transport, civitai=address)
    assert (found.source, found.name, found.base) == ("Civitai", "Some style", "SDXL")
    assert found.triggers == ("somestyle", "wet paint") and found.preview_url == "https://x/first.png"
    assert found.description.split() == ["Watercolors,", "soft", "."]


def test_the_hub_is_asked_where_a_file_came_from_it(transport: FileTransport) -> None:
    behaviors = {
        "/o/dog/resolve/main/README.md": Behavior(README.encode()),
        "/o/dog/resolve/main/images/dog%20one.png": Behavior(b"an image"),
    }
    with serving(behaviors) as address:
        found = about_file(SHA256, f"{address}/o/dog/resolve/main/dir/dog.safetensors", transport)
        assert read_preview_of(found, transport) == b"an image"
    assert (found.triggers, found.base) == (("photo of sks dog",), "SDXL")
    assert found.description == "A LoRA of a dog, made from five photographs."


def test_a_file_that_nobody_knows(transport: FileTransport) -> None:
    with serving({}) as address, pytest.raises(DownloadError, match=r"Civitai does not know this file.*into its card"):
        about_file(SHA256, "", transport, civitai=address)


@pytest.mark.parametrize("body", [b"[1]", b"<html>", b"[" * 100_000])
def test_a_reply_that_is_none(transport: FileTransport, body: bytes) -> None:
    with serving({BY_HASH: Behavior(body)}) as address, pytest.raises(DownloadError):
        about_file(SHA256, "", transport, civitai=address)


def test_a_page_that_never_ends_is_left(transport: FileTransport) -> None:
    def never_ends(handler: Handler, number: int) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            return True

    with (
        serving({BY_HASH: Behavior(b"", fault=never_ends)}) as address,
        pytest.raises(InvalidValueError, match="sends more than 2 MB"),
    ):
        about_file(SHA256, "", transport, civitai=address)


def test_facts_of_wrong_types_are_missing() -> None:
    found = of_civitai({"trainedWords": "no list", "images": [1, {"url": 3}], "model": [], "baseModel": None})
    assert (found.triggers, found.base, found.preview_url, found.name) == ((), "", "", "")


@pytest.mark.parametrize(
    ("said", "word"),
    [("SD 1.5", "SD1"), ("SDXL 1.0", "SDXL"), ("Pony", "SDXL"), ("SD 2.1 768", "SD2"), ("Flux.1 D", "Flux.1 D")],
)
def test_base_models_have_the_words_of_the_cards(said: str, word: str) -> None:
    assert base_word(said) == word


def test_without_a_network_it_is_said_where_files_belong() -> None:
    def find(host: str, port: int) -> list[str]:
        raise OSError("Temporary failure in name resolution")

    transport = FileTransport(find_addresses=find)
    with pytest.raises(GoneAwayError, match="put it into models/Stable-diffusion"):
        about_file(SHA256, "", transport)
    transport.close()


def names(machine: Machine) -> list[str]:
    return [one.model.name for one in fitting_models(known_models(CONFIGS), machine)]


def test_models_for_a_machine() -> None:
    small = Machine(25.0, has_gpu=False, cores=2)
    assert names(small) == ["sd15-hyper", "sd15-lcm", "sd-turbo"], "what a CPU makes soonest"
    first, *rest = fitting_models(known_models(CONFIGS), small)
    assert 5 <= first.seconds <= 10 and all(one.seconds >= first.seconds for one in rest)
    card = fitting_models(known_models(CONFIGS), Machine(8.0, has_gpu=True, cores=8))
    assert all(one.seconds == 0 for one in card), "not known for GPUs"
    assert [one.is_streamed for one in card] == [False] * 3 and card[0].model.name == "z-image-turbo"
    assert all(one.needs_gb <= 8.0 for one in card)
    assert names(Machine(16.0, has_gpu=True, cores=8))[0] == "flux1-schnell"
    assert names(Machine(24.0, has_gpu=True, cores=8))[0] == "qwen-image"
    tiny = fitting_models(known_models(CONFIGS), Machine(2.0, has_gpu=True, cores=2))
    assert tiny[0].model.name == "sd15" and tiny[0].is_streamed


def test_each_entry_of_the_list_says_how_it_was_checked() -> None:
    for model in known_models(CONFIGS).values():
        assert model.checked in ("page", "lists") and (not model.good_for or model.image_cost > 0), model.name


@pytest.mark.parametrize(
    ("receipt", "known"),
    [(json.dumps({"source_sha256": SHA256.upper()}), SHA256), ('{"source_sha256": 3}', ""), ("[]", ""), ("{", "")],
)
def test_a_converted_file_is_known_by_the_hash_of_its_source(tmp_path: Path, receipt: str, known: str) -> None:
    path = tmp_path / "small.safetensors"
    path.write_bytes(safetensors({"x": ("F16", [2])}, {"featherweight": receipt}))
    assert source_sha256_of(path) == known
