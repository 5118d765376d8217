"""The history: what a search finds, what becomes of files, and how folders are taken in."""

import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.errors import BusyError, InvalidValueError, OutputError, UnknownNameError
from modules.history.difference import differing_values
from modules.history.importing import Importer
from modules.history.query import parse_query
from modules.history.service import HistoryService
from modules.history.store import History, ImageFile
from modules.history.thumbnails import Thumbnails, media_type_of, small_copy
from modules.images.reading import read_image
from modules.processing.request.result import GeneratedImage

PNG_START = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


def at(text: str) -> float:
    return datetime.fromisoformat(text).astimezone().timestamp()


def file(number: int, prompt: str, day: str = "2026-11-01", **fields: object) -> ImageFile:
    given = {"Steps": 20, "Sampler": "Euler a", "CFG scale": 7.0, "Seed": number, "Size": "64x64", **fields}
    texts = ", ".join(f"{key}: {value}" for key, value in given.items())
    infotext = f"{prompt}\nNegative prompt: blurry\n{texts}"
    return ImageFile(Path(f"/images/{number}.png"), f"{number}", 64, 64, 1, 1.0, infotext, at(day), user="ann")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "history.sqlite", tmp_path / "trash")
    history.add(
        [
            file(1, "a red circle", "2026-10-31", Model="foo-v2"),
            file(2, "a circle on a red ground <lora:bar:0.5>", "2026-11-01", Model="other", Steps=30),
            file(3, "a Café at night", "2026-11-02", Model="foo", **{"FP8 weight": "Enable", "FP8 format": "int8_row"}),
        ]
    )
    yield history
    history.close()


def test_a_large_seed_is_found_exactly(history: History) -> None:
    largest = 2**64 - 1
    history.add([file(4, "a"), file(5, "b", Seed=largest), file(6, "c", Seed=largest - 1), file(7, "d", Seed=2**63)])
    assert found(history, f"seed:{largest}") == [5] and found(history, f"seed:={largest - 1}") == [6]
    assert sorted(found(history, f"seed:>{2**60}")) == [5, 6, 7] and found(history, "seed:4") == [4]


def found(history: History, text: str) -> list[int]:
    return [int(entry.path.stem) for entry in history.search(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [3, 2, 1]),
        ("circle", [2, 1]),
        ('"red circle"', [1]),
        ("red circle", [2, 1]),
        ("circ*", [2, 1]),
        ("cafe", [3]),
        ("circle -ground", [1]),
        ("-circle", [3]),
        ("steps:20", [3, 1]),
        ("steps:>20", [2]),
        ("steps:>=20 steps:<30", [3, 1]),
        ("steps:25..", [2]),
        ("steps:..20", [3, 1]),
        ("cfg:7", [3, 2, 1]),
        ('"cfg scale:7"', []),
        ("model:foo", [3, 1]),
        ("model:=foo", [3]),
        ("-model:foo", [2]),
        ("model:f*v2", [1]),
        ("lora:bar", [2]),
        ("fp8:on", [3]),
        ("fp8:off", [2, 1]),
        ("fp8:int8", [3]),
        ("seed:2", [2]),
        ('sampler:"euler a"', [3, 2, 1]),
        ("size:64x64 width:>=64", [3, 2, 1]),
        ("date:2026-11", [3, 2]),
        ("date:2026-10-31", [1]),
        ("date:>2026-11-01", [3]),
        ("date:2026-10..2026-11-01", [2, 1]),
        ("date:2025", []),
        ("negative:blurry", [3, 2, 1]),
        ("file:2", [2]),
        ('steps:>20 model:other lora:bar date:2026-11 "red ground"', [2]),
        ("nothing:x", []),
        ("user:ann is:starred", []),
        ("-is:missing circle", [2, 1]),
        ("'; DROP TABLE entries; --", []),
        ("(((", [3, 2, 1]),
        ("circle\0-ground", [1]),
    ],
)
def test_a_search_finds(history: History, text: str, expected: list[int]) -> None:
    assert found(history, text) == expected
    assert history.count(text) == len(expected)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("steps:>many", "compares with no number"),
        ("steps:x..y", "no range of numbers"),
        ("date:yesterday", "is no date"),
        ("date:2026-13", "is no date"),
        ("is:lost", "is:starred"),
        ("x " * 100, "more than 64 terms"),
        ("x" * 3000, "allowed are 2000"),
    ],
)
def test_what_is_no_search_is_said(text: str, error: str) -> None:
    with pytest.raises(InvalidValueError, match=error):
        parse_query(text)


def test_pages_follow_each_other_and_equal_times_do_not_collide(history: History) -> None:
    history.add([file(number, "many", "2026-12-01") for number in range(10, 20)])
    first = history.search("many", limit=6)
    second = history.search("many", before=first[-1].id, limit=6)
    assert [len(first), len(second)] == [6, 4]
    assert len({entry.id for entry in first + second}) == 10


def test_stars_and_tags_are_found_and_taken_away_again(history: History) -> None:
    (entry,) = history.search("cafe")
    history.star(entry.id, True)
    history.tag(entry.id, ["best of", " best  of ", "night"])
    assert found(history, "is:starred") == found(history, 'tag:"best of"') == [3]
    assert history.entry(entry.id).tags == ("best of", "night")
    history.tag(entry.id, [])
    history.star(entry.id, False)
    assert found(history, "tag:night") == found(history, "is:starred") == []
    with pytest.raises(InvalidValueError, match="32 tags"):
        history.tag(entry.id, [str(number) for number in range(40)])
    with pytest.raises(UnknownNameError, match="no image 5"):
        history.star(5, True)


def png(
    path: Path, color: tuple[int, int, int], infotext: str = "a dot\nSteps: 5, Sampler: Euler, Seed: 1, Size: 8x8"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = PngInfo()
    texts.add_text("parameters", infotext)
    Image.new("RGB", (8, 8), color).save(path, pnginfo=texts)
    return path


def generated(path: Path) -> GeneratedImage:
    with Image.open(path) as image:
        return GeneratedImage(image.copy(), image.info["parameters"], 1, 1, path)


def test_a_finished_image_is_there_at_once_and_once(tmp_path: Path, history: History) -> None:
    image = generated(png(tmp_path / "a.png", (1, 2, 3)))
    history.finished("task", "ann", image)
    history.finished("task", "ann", image)
    (entry,) = history.of_task("task")
    assert entry.path == image.path and entry.user == "ann" and abs(entry.created_at - time.time()) < 60
    assert history.search("dot user:ann") == [entry]
    assert history.search("dot", user="bob") == []


def test_a_deleted_image_lies_in_the_trash_and_comes_back(tmp_path: Path, history: History) -> None:
    history.finished("task", "", generated(png(tmp_path / "out" / "a.png", (1, 2, 3))))
    (entry,) = history.of_task("task")
    trashed = history.delete(entry.id)
    assert not entry.path.exists() and trashed.path.is_relative_to(tmp_path / "trash") and trashed.path.exists()
    assert history.search("dot") == []
    assert [item.id for item in history.search("is:trashed")] == [entry.id]
    png(entry.path, (9, 9, 9))  # meanwhile another file has the name
    restored = history.restore(entry.id)
    assert restored.path == entry.path.with_name("a-1.png") and restored.path.exists()
    assert [item.path for item in history.search("dot")] == [restored.path]


def test_a_folder_is_imported_once_and_non_images_are_passed_over(tmp_path: Path, history: History) -> None:
    folder = tmp_path / "old"
    for number in range(3):
        png(folder / "sub" / f"{number}.png", (number, 0, 0))
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    (folder / "empty.jpg").touch()
    (folder / "notes.txt").write_text("no image")
    (folder / "trash").mkdir()
    importer = Importer(history, Thumbnails(None))
    importer.add(folder)
    assert importer.wait(120)
    (state,) = history.imports.all()
    assert state["state"] == "done"
    assert state["counts"] == {"files": 5, "added": 3, "known": 0, "moved": 0, "copies": 0, "skipped": 2}
    (folder / "sub" / "1.png").rename(folder / "moved.png")
    png(folder / "copy.png", (0, 0, 0)).write_bytes((folder / "sub" / "0.png").read_bytes())
    importer.add(folder)
    assert importer.wait(120)
    counts = history.imports.all()[0]["counts"]
    assert (counts["added"], counts["known"], counts["moved"], counts["copies"]) == (0, 2, 1, 1)
    assert sorted(entry.path.name for entry in history.search("dot")) == ["0.png", "2.png", "moved.png"]
    importer.close()
    with pytest.raises(InvalidValueError, match="is not a folder on this machine"):
        importer.add(tmp_path / "nothing")


def test_an_import_that_was_cut_off_goes_on(tmp_path: Path, history: History) -> None:
    png(tmp_path / "old" / "a.png", (1, 1, 1))
    history.imports.note(tmp_path / "old", "running", {})
    importer = Importer(history, Thumbnails(None))
    importer.start()
    assert importer.wait(120)
    assert history.count("dot") == 1
    importer.close()


def test_times_from_before_the_clock_was_set_are_no_error(tmp_path: Path, history: History) -> None:
    for number, seconds in enumerate((0, 1, 2**33)):
        os.utime(png(tmp_path / "old" / f"{number}.png", (number, 1, 1)), (seconds, seconds))
    importer = Importer(history, Thumbnails(None))
    importer.add(tmp_path / "old")
    assert importer.wait(120)
    importer.close()
    assert [entry.path.name for entry in history.search("dot")] == ["2.png", "1.png", "0.png"]


def test_a_damaged_history_is_kept_aside_and_one_of_a_newer_version_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"garbage" * 1000)
    history = History(path, tmp_path)
    assert "It was kept as history.sqlite.corrupt-1" in history.notices[0] and history.search() == []
    history.close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(OutputError, match="newer version"):
        History(path, tmp_path)


def test_thumbnails_are_kept_by_contents(tmp_path: Path) -> None:
    thumbnails = Thumbnails(tmp_path / "thumbnails.sqlite")
    path = png(tmp_path / "a.png", (1, 2, 3))
    made = thumbnails.of("x", path)
    assert media_type_of(made) == "image/jpeg"
    path.unlink()
    assert thumbnails.of("x", path) == made
    with pytest.raises(InvalidValueError, match=r"a\.png"):
        thumbnails.of("y", path)
    thumbnails.close()


@pytest.mark.parametrize(("mode", "kind"), [("RGBA", "image/webp"), ("L", "image/jpeg"), ("P", "image/jpeg")])
def test_a_thumbnail_keeps_what_is_transparent(mode: str, kind: str) -> None:
    data = small_copy(Image.new(mode, (700, 300)))
    assert media_type_of(data) == kind
    with Image.open(BytesIO(data)) as small:
        assert small.size == (256, 110) and (small.mode == "RGBA") == (mode == "RGBA")


def test_a_thumbnail_is_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (400, 200), "red")
    image.paste("blue", (0, 0, 200, 200))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying; to be turned right
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    image.save(tmp_path / "a.png", exif=exif)
    for name in ("a.jpg", "a.png"):
        with Image.open(BytesIO(Thumbnails(None).of(name, tmp_path / name))) as small:
            assert small.size == (128, 256)
            top = small.convert("RGB").getpixel((64, 20))
            assert isinstance(top, tuple) and top[2] > 200 > top[0]


def test_a_large_jpeg_is_decoded_only_as_far_as_a_thumbnail_needs(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    Image.new("RGB", (4096, 2048), (200, 30, 40)).save(path)
    assert read_image(path, enough_px=512).size == (1024, 512)
    thumbnails = Thumbnails(None)
    with Image.open(BytesIO(thumbnails.of("x", path))) as small:
        assert small.size == (256, 128)
    thumbnails.close()


def test_a_page_of_fresh_thumbnails_costs_little_more_than_decoding(tmp_path: Path) -> None:
    image = Image.effect_noise((256, 256), 60).convert("RGB")
    began = time.process_time()
    for _ in range(60):
        small_copy(image)
    assert time.process_time() - began < 0.2


def test_images_wait_while_another_program_holds_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(tmp_path / "history.sqlite", tmp_path / "trash")
    history.file.db.execute("PRAGMA busy_timeout = 10")
    images = [
        GeneratedImage(Image.new("RGB", (8, 8)), "a cat", n, 1, png(tmp_path / f"{n}.png", (n, 2, 3))) for n in range(3)
    ]
    other = sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    history.finished("task", "", images[0])
    history.finished("task", "", images[1])
    with pytest.raises(BusyError, match="locked by another program"):
        history.imports.note(tmp_path, "done", {})
    other.execute("ROLLBACK")
    assert history.search() == []
    history.finished("task", "", images[2])
    assert sorted(entry.path.name for entry in history.search()) == ["0.png", "1.png", "2.png"]
    history.close()
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("modules.history.store.LOCK_WAIT_S", 0.01)
    with pytest.raises(BusyError, match="locked by another program"):
        History(tmp_path / "history.sqlite", tmp_path / "trash")
    other.close()
    assert not list(tmp_path.glob("*.corrupt-*"))


def test_a_history_that_is_spoilt_while_it_is_used_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path, tmp_path / "trash")
    image = GeneratedImage(Image.new("RGB", (8, 8)), "x", 1, 1, png(tmp_path / "a.png", (1, 2, 3)))
    history.finished("task", "", image)
    history.file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(OutputError, match=r"It was kept as history\.sqlite\.corrupt-1"):
        for _ in range(3):
            history.file.db.execute("PRAGMA cache_size = 0")
            history.count("cat")
            history.search()
    assert history.search() == []
    history.finished("task", "", image)
    assert len(history.search()) == 1
    history.close()


def test_a_search_that_the_index_refuses_costs_no_history(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite", tmp_path / "trash")
    history.file.db.execute("DROP TABLE words")  # as somebody may who edits the file while it is used
    with pytest.raises(OutputError, match="cannot be used: no such table"):
        history.search("cat")
    history.close()
    history = History(tmp_path / "history.sqlite", tmp_path / "trash")
    assert history.search("cat") == [] and history.notices == ()
    history.close()


def test_a_folder_of_what_is_no_image_is_looked_through(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    whole = png(tmp_path / "whole.png", (1, 2, 3)).read_bytes()
    bad = {
        "empty.png": b"",
        "text.jpg": b"no image at all",
        "cut.png": whole[:40],
        "huge.png": PNG_START + struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0),
        "zip.webp": b"PK\x03\x04" * 100,
        "notes.txt": b"left alone",
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    (folder / "folder.png").mkdir()
    (folder / "nowhere.png").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe.png")
    (folder / "good.png").write_bytes(whole)
    service = HistoryService.open(None, None, tmp_path / "trash")
    service.importer.add(folder)
    assert service.importer.wait(120)
    counts = service.history.imports.all()[0]["counts"]
    assert counts["added"] == 1 and counts["skipped"] == 7
    assert [entry.path.name for entry in service.history.search()] == ["good.png"]
    service.close()


def test_tags_hold_no_characters_that_nobody_sees(history: History) -> None:
    entry = history.search("")[0]
    assert history.tag(entry.id, ["a\0b", "\u202eright to left", "\x07", " two  words "]).tags == (
        *("ab", "right to left", "two words"),
    )


def test_boards_hold_images_and_are_searched(history: History) -> None:
    circle, ground, night = (entry.id for entry in reversed(history.search()))
    trip, other = history.boards.create("Trip to_Rome"), history.boards.create("other", "ann")
    history.put([circle, ground], trip.id)
    history.put([night], other.id)
    assert [(board.name, board.images, board.newest) for board in history.boards.all()] == [
        ("other", 1, night),
        ("Trip to_Rome", 2, ground),
    ]
    assert [board.id for board in history.boards.all("ann")] == [other.id]
    assert [entry.id for entry in history.search(board=trip.id)] == [ground, circle]
    assert history.count("ground", board=trip.id) == 1 and history.count(board=0) == 0
    assert found(history, "board:rome") == [2, 1] == found(history, 'board:"=trip to_rome"')
    assert found(history, "-board:t_ip") == [3, 2, 1] and found(history, "-board:trip circle") == []
    history.put([ground], None)
    assert [entry.id for entry in history.search(board=0)] == [ground]
    history.boards.remove(trip.id)
    assert history.search(board=trip.id) == [] and history.count() == 3
    assert history.boards.rename(other.id, "OTHER").name == "OTHER"


def test_names_of_boards_that_are_refused(history: History) -> None:
    history.boards.create("Trip")
    for name, error in (("", "has 0"), ("x" * 61, "has 61"), (" TRIP ", "already")):
        with pytest.raises(InvalidValueError, match=error):
            history.boards.create(name)
    assert history.boards.create("trip", "ann").user == "ann"
    with pytest.raises(UnknownNameError, match="no board 99"):
        history.put([], 99)
    with pytest.raises(UnknownNameError, match="no board"):
        history.boards.rename(2**70, "x")


def test_a_history_from_before_boards_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    before = History(path, tmp_path)
    before.add([file(1, "a red circle")])
    before.close()
    with sqlite3.connect(path) as old:
        old.executescript(
            "DROP INDEX entries_by_board; DROP TABLE boards; ALTER TABLE entries DROP COLUMN board; "
            "PRAGMA user_version = 1"
        )
    old.close()
    history = History(path, tmp_path)
    (entry,) = history.search("circle")
    board = history.boards.create("Circles")
    assert history.put([entry.id], board.id)[0].board == board.id
    history.close()
    again = History(path, tmp_path)
    assert found(again, "board:circles") == [1]
    again.close()


def test_values_that_differ() -> None:
    one = "a cat\nNegative prompt: x\nSteps: 20, Sampler: Euler a, Seed: 1, Size: 8x8, Clip skip: 2"
    other = 'a dog\nNegative prompt: x\nSteps: 20, Sampler: DPM++ 2M, Seed: 1, Size: 8x8, Lora hashes: "a: 1, b: 2"'
    assert differing_values(one, one) == []
    assert differing_values(one, other) == [
        ("Prompt", "a cat", "a dog"),
        ("Sampler", "Euler a", "DPM++ 2M"),
        ("Clip skip", "2", None),
        ("Lora hashes", None, "a: 1, b: 2"),
    ]
    assert differing_values("", "a cat")[0] == ("Prompt", None, "a cat")
