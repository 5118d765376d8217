"""What other programs write into images is read by registered readers: those of the extension foreign-infotexts."""

import json
from collections.abc import Iterator
from io import BytesIO

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.images import other_programs
from modules.images.metadata import read_metadata
from modules.images.other_programs import InfotextReader, infotext_of_text, register_infotext_reader
from modules.system.registry import Registry
from tests.extensions import built_in


@pytest.fixture(autouse=True)
def readers() -> None:
    built_in()


@pytest.fixture
def no_readers(monkeypatch: pytest.MonkeyPatch, readers: None) -> Iterator[None]:
    """As where the extension is switched off."""
    monkeypatch.setattr(other_programs, "READERS", Registry[InfotextReader]("reader of infotexts"))
    yield


def novelai(**changes: str) -> bytes:
    comment = {"sampler": "k_dpmpp_2m", "steps": 28, "scale": 11.0, "seed": 5, "uc": "bad"}
    chunks = PngInfo()
    for key, value in (
        {"Software": "NovelAI", "Description": "a cat", "Comment": json.dumps(comment)} | changes
    ).items():
        chunks.add_text(key, value)
    stream = BytesIO()
    Image.new("RGB", (16, 8)).save(stream, "PNG", pnginfo=chunks)
    return stream.getvalue()


def test_novelai_chunks_become_infotext() -> None:
    infotext, items = read_metadata(novelai())
    assert infotext == (
        "a cat\nNegative prompt: bad\n"
        "Steps: 28, Sampler: DPM++ 2M, CFG scale: 11.0, Seed: 5, Size: 16x8, Clip skip: 2, ENSD: 31337"
    )
    assert items["Software"] == "NovelAI"


@pytest.mark.parametrize("changes", [{"Comment": "{"}, {"Comment": "{}"}, {"Software": "Paint"}, {"Comment": "[]"}])
def test_unknown_novelai_chunks_are_only_shown(changes: dict[str, str]) -> None:
    infotext, items = read_metadata(novelai(**changes))
    assert infotext is None
    assert items["Description"] == "a cat"


def test_without_readers_texts_of_other_programs_are_only_shown(no_readers: None) -> None:
    infotext, items = read_metadata(novelai())
    assert infotext is None and items["Software"] == "NovelAI"
    assert infotext_of_text('{"prompt": "a cat", "steps": 5}') is None


def test_the_first_reader_that_knows_a_text_counts(no_readers: None) -> None:
    def reader(word: str, infotext: str) -> InfotextReader:
        return InfotextReader(lambda items, width, height: (), lambda text: infotext if word in text else None)

    register_infotext_reader("cats", reader("cat", "one"))
    register_infotext_reader("animals", reader("", "any"))
    assert (infotext_of_text("a cat"), infotext_of_text("a dog")) == ("one", "any")
    register_infotext_reader("cats", reader("cat", "another"))
    assert infotext_of_text("a cat") == "another"
