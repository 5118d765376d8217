"""The built-in extension that completes prompts: what its route finds, and how it is written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.assembly import ROOT
from modules.prompting.styles import Style, StyleBook
from modules.scripts.callbacks import Moment
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.extensions import built_in

OTHERS = [folder.name for folder in (ROOT / "extensions-builtin").iterdir() if folder.name != "tag-completion"]


class Shown:
    """A program with tags, a LoRA, an embedding, a style and a wildcard, behind the route."""

    def __init__(self, folder: Path) -> None:
        for kind, name, text in (
            ("tags", "other.csv", "zebra,0,5,\n"),
            ("tags", "danbooru.csv", "long_hair,0,9,lh\nlong_ink_(brush),0,7,\n^_^,0,3,\nlongcat,0,1,\n"),
            ("embeddings", "Long-Neck.safetensors", ""),
            ("wildcards", "colors/warm.txt", "red"),
        ):
            path = folder / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.folder = folder
        self.settings = Settings()
        networks: Any = SimpleNamespace(
            catalogue=SimpleNamespace(entries=[SimpleNamespace(name=name) for name in ("ink", "long-lora")]),
            hypernetworks=SimpleNamespace(entries=[SimpleNamespace(name="ink-hyper")]),
        )
        program = Program(
            folders=lambda kind: (folder / kind,),
            settings=lambda: self.settings,
            adapters=lambda: networks,
            styles=lambda: StyleBook([(folder, [Style("Longish", "very long {prompt} image", "")])]),
        )
        library = ScriptLibrary.load([ROOT / "extensions-builtin"], OTHERS, program)
        assert library.faults == []
        assert [path.name for path in (*library.page_scripts, *library.page_styles)] == [
            "tag_completion.js",
            "style.css",
        ]
        app = FastAPI()
        library.callbacks.call(Moment.APP_STARTED, None, app)
        self.client = TestClient(app)

    def search(self, text: str) -> list[tuple[str, str]]:
        reply = self.client.get("/tag-completion/search", params={"q": text}).json()
        return [(result["kind"], result["insert"]) for result in reply["results"]]


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    built_in()
    return Shown(tmp_path)


def test_words_find_tags_embeddings_and_styles(shown: Shown) -> None:
    assert shown.search("long") == [
        *(("embedding", "Long-Neck"), ("style", "very long image")),
        *(("tag", "long hair"), ("tag", r"long ink \(brush\)"), ("tag", "longcat")),
    ]
    assert shown.search("LH") == [("tag", "long hair")]
    assert shown.search("^_") == [("tag", "^_^")]


def test_adapters_are_found_by_name_and_by_kind(shown: Shown) -> None:
    assert shown.search("<in") == [("lora", "<lora:ink:1>"), ("hypernet", "<hypernet:ink-hyper:1>")]
    assert shown.search("<lo") == [("lora", "<lora:ink:1>"), ("lora", "<lora:long-lora:1>")]
    assert shown.search("<lora:l") == [("lora", "<lora:long-lora:1>")]
    assert shown.search("<hypernet:") == [("hypernet", "<hypernet:ink-hyper:1>")]
    assert shown.search("<nothing:") == []


def test_wildcards_are_found_by_any_part(shown: Shown) -> None:
    assert shown.search("__warm") == shown.search("__") == [("wildcard", "__colors/warm__")]


def test_settings_say_what_is_found_and_how_it_is_written(shown: Shown) -> None:
    off = {"tac_replaceUnderscores": False, "tac_escapeParentheses": False, "tac_maxResults": 3}
    shown.settings = Settings().with_changes(off)
    assert shown.search("long_") == [("tag", "long_hair"), ("tag", "long_ink_(brush)")]
    assert len(shown.search("long")) == 3
    shown.settings = Settings().with_changes({"tac_tagFile": "other.csv"})
    assert shown.search("zeb") == [("tag", "zebra")]
    shown.settings = Settings().with_changes({"tac_tagFile": "None"})
    assert shown.search("long") == [("embedding", "Long-Neck"), ("style", "very long image")]
    shown.settings = Settings().with_changes({"tac_active": False})
    assert shown.search("long") == []


def test_a_file_that_changes_is_read_again_and_without_the_chosen_one_the_first_is(shown: Shown) -> None:
    assert shown.search("longc") == [("tag", "longcat")]
    (shown.folder / "tags" / "danbooru.csv").write_text("longcow,0,1,\n")
    assert shown.search("longc") == [("tag", "longcow")]
    (shown.folder / "tags" / "danbooru.csv").unlink()
    assert shown.search("longc") == [] and shown.search("zeb") == [("tag", "zebra")]


def test_a_question_that_is_too_long_is_refused(shown: Shown) -> None:
    assert shown.client.get("/tag-completion/search", params={"q": "x" * 300}).status_code == 422
