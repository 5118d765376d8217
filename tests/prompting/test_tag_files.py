"""Tag files and the search through them."""

import time
from pathlib import Path

import pytest

from modules.prompting.tag_files import Tag, TagIndex, read_tags

FILE = (
    '1girl,0,5000000,"girl,sole_female"\nlong_hair,0,3900000,/lh\nlong_sleeves,0,1500000,\nlonghorn,0,10,\n'
    'Long Coat,0,x,\nsmile_(happy),5,20,"grin, happy long face"\n\n,0,1,\nhorse,,,\n'
)


@pytest.fixture
def index(tmp_path: Path) -> TagIndex:
    path = tmp_path / "tags.csv"
    path.write_text("﻿name,category,count,aliases\n" + FILE, encoding="utf-8")
    return TagIndex(read_tags(path))


def names(index: TagIndex, text: str, limit: int = 10) -> list[str]:
    return [match.tag.name for match in index.find(text, limit)]


def test_a_file_is_read_with_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "tags.csv"
    path.write_text(FILE, encoding="utf-8")
    tags = read_tags(path)
    assert tags[0] == Tag("1girl", 0, 5_000_000, ("girl", "sole_female"))
    assert tags[4] == Tag("Long Coat") and tags[-1] == Tag("horse")
    assert len(tags) == 7


def test_a_damaged_file_gives_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tags.csv"
    path.write_bytes(b'caf\xe9,0,1,\n\0nul,0,2,\n"never closed,0,3\n')
    assert [tag.name for tag in read_tags(path)][:2] == ["caf�", "nul"]


def test_the_most_frequent_comes_first_and_beginnings_before_the_rest(index: TagIndex) -> None:
    assert names(index, "long") == ["long_hair", "long_sleeves", "longhorn", "Long Coat", "smile_(happy)"]
    assert names(index, "LONG C") == ["Long Coat"]
    assert names(index, "hair") == ["long_hair"]
    assert names(index, "horn") == ["longhorn"]
    assert names(index, "long", 2) == ["long_hair", "long_sleeves"]
    assert names(index, "") == names(index, "\n") == names(index, "nothing") == []


def test_an_alias_finds_its_tag_and_is_named(index: TagIndex) -> None:
    (match,) = index.find("sole", 5)
    assert (match.tag.name, match.alias) == ("1girl", "sole_female")
    assert index.find("girl", 5)[0].alias == "girl"
    assert index.find("1g", 5)[0].alias is None
    assert index.find("happy lo", 5)[0].alias == "happy long face"


def test_a_search_through_300000_tags_takes_less_than_50_ms() -> None:
    words = ("karino", "vemilo", "long_hair", "red_cat", "_ta", "mi")
    tags = [Tag(f"{words[number % 6]}{number}", 0, number, (f"{words[number % 5]}x",)) for number in range(300_000)]
    index = TagIndex(tags)
    for text in ("l", "long", "red c", "zzz", "karino2", "_", "i9999", "299999"):
        began = time.thread_time()  # of this thread alone: other tests run beside this one
        index.find(text, 10)
        assert time.thread_time() - began < 0.05, text
