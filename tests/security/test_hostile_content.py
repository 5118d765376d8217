"""Files and texts from elsewhere, of the same hostile shapes for every reader: each is read, left out, or refused with
a sentence that names it, in little time; nothing else is raised, so that no catalogue, thread or start ends by it."""

import gzip
import io
import json
import struct
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from compat.store.origin import origin_of
from compat.store.store import read_index
from compat.store.store import unpack as unpack_extension
from lib_takeover.reference_folder import ReferenceFolder
from modules.access.auth_file import read_accounts
from modules.adapters import image_embedding
from modules.downloads.about import source_sha256_of
from modules.downloads.addresses import Source
from modules.downloads.download import unfinished_in
from modules.downloads.parts import noted
from modules.downloads.remote_file import RemoteFile, read_header
from modules.errors import FeatherweightError
from modules.images.infotext import parse_infotext
from modules.images.metadata import read_metadata
from modules.images.other_programs import READERS
from modules.memory.int8_support import read_answers
from modules.memory.planning import Corrections
from modules.model_cards.notes import write_notes
from modules.model_cards.previews import embedded_preview
from modules.model_cards.training_facts import readable_metadata, training_facts, training_tags
from modules.model_shelf.headers import Headers
from modules.model_shelf.trash import NOTE, Trash
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.diffusers_folder import files_read, part_folders, weight_files
from modules.models.files.gguf_file import GgufFile
from modules.models.files.header import read_metadata as adapter_metadata
from modules.models.files.other_files import is_adapter_or_embedding
from modules.models.files.tensor_file import TensorFile
from modules.models.names.diffusers_settings import settings_of
from modules.models.opening.diffusers import settings_say
from modules.processing.record.spool import Spool
from modules.processing.request.pasting import pasted_values
from modules.prompting.wildcards import WildcardBook
from modules.settings.store import SettingsStore
from modules.setup.archive import unpack as unpack_program
from modules.setup.stamp import STAMP_NAME, Stamp
from modules.system.bounded import ContentError, read_json, read_yaml
from modules.system.extra_folders import read_extra_folders
from modules.ui.common.localization import read_localization
from modules.ui.form.ui_config import read_ui_config
from tests.extensions import built_in

MAX_CPU_S = 4.0
REFUSALS = (FeatherweightError, ContentError, OSError)

DEEP = 100_000
NAMES = (
    *("version", "users", "name", "path", "weight_map", "__metadata__", "observations", "done"),
    *("request", "extensions", "folder", "settings", "context", "id", "a", "quantization_config"),
    *("activation text", "preferred weight", "vae", "unet", "text_encoder", "trainedWords", "tags", "baseModel"),
    *("modelVersions", "images", "ckpt_dir", "loras", "lora", "inputs", "links", "nodes"),
)
"""What readers look for."""
JSON_SHAPES: Mapping[str, bytes] = {
    "nothing": b"",
    "binary": bytes(range(256)) * 40,
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "cut": b'{"version": 1, "users": [{"name": "a", "sele',
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep lists, open": b"[" * DEEP,
    "deep tables": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "just too deep": b'{"a":' * 200 + b"1" + b"}" * 200,
    "wide": json.dumps([{"name": str(n)} for n in range(10_000)]).encode(),
    "wide table": json.dumps({f"key {n}": n for n in range(10_000)}).encode(),
    "NaN": b'{"a": NaN, "version": NaN, "steps": Infinity, "shape": [-Infinity]}',
    "1e400": b'{"version": 1e400, "steps": 1e400, "shape": [1e400], "done": 1e400, "size": 1e400}',
    "10^400": b'{"version": 1' + b"0" * 400 + b', "done": 1' + b"0" * 400 + b"}",
    "10^5000": b'{"version": 1' + b"0" * 5000 + b"}",
    "2^70": b'{"version": 1180591620717411303424, "done": 1180591620717411303424, "seed": 1180591620717411303424}',
    "null": b"null",
    "number": b"5",
    "text": b'"x"',
    "list": b'[1, "a", null, [], {}]',
    "long key": b'{"' + b"k" * 5000 + b'": 1}',
    "NUL": b'{"a\\u0000b": ["/a\\u0000b"], "name": "a\\u0000", "ckpt_dir": ["/x\\u0000"]}',
    "surrogate": b'{"\\ud800": "\\udfff"}',
    "wrong types": json.dumps(
        dict(zip(NAMES, [[], {}, 5, "x", None, [[]], {"a": []}, True] * 4, strict=True))
    ).encode(),
    "lists for all": json.dumps(
        {key: [1, [2]] for key in ("version", "users", "weight_map", "__metadata__", "observations", "done", "path")}
    ).encode(),
}


class Reading:
    """How a reader is called with content: as a file in a folder, or as text."""

    def __init__(self, read: Callable[[Path, bytes], object], names_file: bool = False, never_raises: bool = False):
        self.read, self.names_file, self.never_raises = read, names_file, never_raises


def file(name: str, read: Callable[[Path], object], **facts: bool) -> Reading:
    def call(folder: Path, content: bytes) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return Reading(call, **facts)


def spooled(path: Path) -> object:
    path.with_suffix(".png").write_bytes(b"x")
    path.parent.chmod(0o700)
    spool = Spool((path.parent,), retry_s=60)
    try:
        return spool.start()
    finally:
        spool.close()


def catalogue_of(folder: Path) -> object:
    found = CheckpointCatalogue((folder.parent.parent if folder.is_file() else folder,), HashCache(folder.parent / "h"))
    return found.refresh()


def shards(path: Path) -> object:
    assert files_read(path.parent.parent) is not None
    return weight_files(path.parent)


FILES: Mapping[str, Reading] = {
    "config.json": file("config.json", lambda path: SettingsStore(path).notices, never_raises=True),
    "ui-config.json": file("ui-config.json", read_ui_config, never_raises=True),
    "model-folders.json": file("model-folders.json", read_extra_folders, never_raises=True),
    "users.json": file("users.json", read_accounts, names_file=True),
    "hashes.json": file("hashes.json", lambda path: HashCache(path).known(path), never_raises=True),
    "model_index.json": file("any/model_index.json", lambda path: part_folders(path.parent), never_raises=True),
    "a catalogue": file("models/any/model_index.json", catalogue_of, never_raises=True),
    "an index of weights": file("m/unet/diffusion_pytorch_model.safetensors.index.json", shards, names_file=True),
    "a part's settings": file("m/unet/config.json", lambda path: settings_of(path.parent.parent, "unet/config.json")),
    "a quantization": file("q.json", lambda path: settings_say(path, "x"), never_raises=True),
    "a card's notes": file("card.json", lambda path: write_notes(path.with_suffix(".x"), {}), names_file=True),
    "an extension's origin": file(".featherweight-origin.json", lambda path: origin_of(path.parent), never_raises=True),
    "a git folder's HEAD": file(".git/HEAD", lambda path: origin_of(path.parent.parent), never_raises=True),
    "a git folder's config": file(".git/config", lambda path: origin_of(path.parent.parent), never_raises=True),
    "an index of extensions": file("index.json", lambda path: read_index(str(path)), names_file=True),
    "a trashed model": file(f"one/{NOTE}", lambda path: Trash(path.parent.parent).entries(), never_raises=True),
    "answers of trials": file("int8.json", read_answers, never_raises=True),
    "corrections": file("memory.json", lambda path: Corrections(path), never_raises=True),
    "a translation": file("de.json", lambda path: read_localization("de", [path]).texts, never_raises=True),
    "a stamp": file(STAMP_NAME, lambda path: Stamp.read(path.parent), never_raises=True),
    "the reference's settings": file("config.json", lambda path: ReferenceFolder.look(path.parent)),
    "a part's note": file("note.json", noted, never_raises=True),
    "a download's state": file(".x.safetensors.part.state", lambda path: unfinished_in(path.parent), never_raises=True),
    "a kept image's note": file("spool/x.json", spooled, never_raises=True),
}


def with_header(content: bytes, tail: bytes = b"\0" * 64) -> bytes:
    return struct.pack("<Q", len(content)) + content + tail


def header(read: Callable[[Path], object], **facts: bool) -> Reading:
    inner = file("x.safetensors", read, **facts)
    return Reading(lambda folder, content: inner.read(folder, with_header(content)), **facts)


def in_metadata(read: Callable[[dict[str, str]], object], *keys: str) -> Reading:
    return Reading(lambda folder, content: read(dict.fromkeys(keys, content.decode("utf-8", "replace"))), False, True)


def opened(path: Path) -> object:
    with TensorFile(path) as found:
        return found.entries


def remote(path: Path) -> object:
    data = path.read_bytes()
    source = Source("http://example.com/x.safetensors", "x.safetensors", "x.safetensors")
    transport: Any = SimpleNamespace(get=lambda *given: pytest.fail("all of it is there"))
    return read_header(RemoteFile(source, "x.safetensors", len(data), "", "", True, data), transport)


HEADERS: Mapping[str, Reading] = {
    "TensorFile": header(opened, names_file=True),
    "the kind of a file": header(is_adapter_or_embedding, never_raises=True),
    "an adapter's metadata": header(adapter_metadata, never_raises=True),
    "the shelf": header(lambda path: Headers().of(path), never_raises=True),
    "a file on a server": header(remote, names_file=True),
    "a receipt": header(source_sha256_of, never_raises=True),
    "a catalogue with its default": header(
        lambda path: CheckpointCatalogue((path.parent,), HashCache(path.parent / "h.json")).first, never_raises=True
    ),
    "training facts": in_metadata(
        training_facts, "ss_tag_frequency", "ss_bucket_info", "ss_datasets", "ss_dataset_dirs"
    ),
    "training tags": in_metadata(training_tags, "ss_tag_frequency"),
    "readable metadata": in_metadata(readable_metadata, "a", "modelspec.thumbnail"),
    "an embedded preview": in_metadata(embedded_preview, "ssmd_cover_images", "modelspec.thumbnail"),
    "an embedding in an image": Reading(
        lambda folder, content: image_embedding._table(folder / "x.png", content), True
    ),
}


@pytest.fixture(scope="module", autouse=True)
def readers_of_other_programs() -> None:
    built_in()
    assert len(READERS)


PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "ComfyUI": {"prompt": "{}"},
    "ComfyUI, drawn": {"workflow": "{}"},
    "an infotext": {"parameters": "{}"},
    "InvokeAI": {"invokeai_metadata": "{}"},
    "old InvokeAI": {"sd-metadata": "{}"},
    "NovelAI": {"Software": "NovelAI", "Description": "x", "Comment": "{}"},
    "Dream": {"Dream": "{}"},
    "Easy Diffusion": {"prompt": "{}", "num_inference_steps": "{}", "guidance_scale": "{}"},
    "Draw Things": {"XML:com.adobe.xmp": "<exif:UserComment>{}</exif:UserComment>"},
}


def program(texts: Mapping[str, str]) -> Reading:
    def read(folder: Path, content: bytes) -> object:
        said = content.decode("utf-8", "replace").replace("\0", "")
        image = Image.new("RGB", (8, 8))
        image.info.update({key: text.replace("{}", said) for key, text in texts.items()})
        infotext, _ = read_metadata(image)
        return None if infotext is None else pasted_values(parse_infotext(infotext))

    return Reading(read)


def wildcards(folder: Path, content: bytes) -> object:
    (folder / "x.yaml").write_bytes(content)
    (folder / "good.txt").write_text("red\nblue")
    book = WildcardBook((folder,))
    assert book.texts("good") == ("red", "blue")
    return book.names


YAML_SHAPES: Mapping[str, bytes] = {
    **JSON_SHAPES,
    "a ring": b"&a {b: *a, c: *a}",
    "a ring below": b"x:\n  &a\n  - *a\n  - *a",
    "a billion laughs": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n".encode() for n in range(9)),
    "merged keys": b"b0: &b0 {x: 1}\n"
    + b"".join(f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 20)}]}}\n".encode() for n in range(1, 9)),
    "deep blocks": b"".join(b" " * n + b"a:\n" for n in range(3000)),
    "deep dashes": b"- " * 50_000,
    "objects": b"!!python/object/apply:os.system ['true']",
    "sexagesimal": b"a: 1" + b":1" * 100_000,
    "long number": b"a: " + b"9" * 200_000,
    "explicit types": b"a: !!int '1:2'\nb: !!binary '///'\nc: !!timestamp x",
    "tabs": b"\t{a",
}

INFOTEXTS: Mapping[str, str] = {
    "deep JSON": 'x\nSteps: 1, A: {"a": ' + "[" * DEEP + ", Seed: 1, Size: 8x8",
    "many objects": "x\n" + ", ".join(f'K{n}: {{"a": 1' for n in range(20_000)),
    "many quotes": "x\nSteps: 1, Seed: 2, Size: 8x8, " + ", ".join(f'K{n}: "a' for n in range(20_000)),
    "large numbers": f"x\nSteps: {'9' * 5000}, Sampler: Euler, Seed: {'9' * 5000}, CFG scale: 1e400, Size: 1x{'9' * 9}",
    "colons": "x\n" + ":" * 200_000,
    "commas": "x\nSteps: 1" + "," * 200_000,
    "words": "x\n" + "word " * 100_000 + ": 1, Seed: 2, Size: 8x8",
    "lora tags": "<lora:" * 30_000 + "\nSteps: 1, Seed: 2, Size: 8x8",
    "NaN": "x\nSteps: NaN, Sampler: Euler, Seed: NaN, CFG scale: Infinity, Size: 8x8, Denoising strength: NaN",
}


def check(reading: Reading, folder: Path, content: bytes) -> None:
    before = time.process_time()
    try:
        reading.read(folder, content)
    except REFUSALS as error:
        assert not reading.never_raises, f"{type(error).__name__}: {error}"
        assert str(error).strip() and len(str(error)) < 3000, str(error)[:200]
        if reading.names_file:
            names = [path.name for path in folder.rglob("*")] or ["x.png"]
            assert any(name in str(error) for name in (*names, "x.png")), error
    assert time.process_time() - before < MAX_CPU_S


def check_all(reading: Reading, folder: Path) -> None:
    for number, (shape, content) in enumerate(JSON_SHAPES.items()):
        own = folder / str(number)
        own.mkdir()
        try:
            check(reading, own, content)
        except BaseException as error:
            error.add_note(f"the shape was {shape!r}")
            raise


@pytest.mark.parametrize("reader", FILES)
def test_files_of_json(reader: str, tmp_path: Path) -> None:
    check_all(FILES[reader], tmp_path)


@pytest.mark.parametrize("reader", HEADERS)
def test_headers_of_model_files(reader: str, tmp_path: Path) -> None:
    check_all(HEADERS[reader], tmp_path)


ENTRIES: Mapping[str, object] = {
    "a shape of many sides": {"dtype": "F32", "shape": [2] * 100_000, "data_offsets": [0, 4]},
    "a shape of large sides": {"dtype": "F32", "shape": [10**39] * 60, "data_offsets": [0, 4]},
    "a negative side": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
    "a shape of texts": {"dtype": "F32", "shape": ["a"], "data_offsets": ["b", "c"]},
    "a type that is a list": {"dtype": ["F32"] * 1000, "shape": [1], "data_offsets": [0, 4]},
    "a type of many letters": {"dtype": "F" * 1_000_000, "shape": [1], "data_offsets": [0, 4]},
    "an entry that is none": 5,
}


@pytest.mark.parametrize("shape", ENTRIES)
@pytest.mark.parametrize("reader", ["TensorFile", "the shelf", "a file on a server", "the kind of a file"])
def test_entries_of_headers(reader: str, shape: str, tmp_path: Path) -> None:
    check(HEADERS[reader], tmp_path, json.dumps({"x": ENTRIES[shape]}).encode())
    check(HEADERS[reader], tmp_path, json.dumps({"x": ENTRIES[shape], "__metadata__": "x"}).encode())


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_of_other_programs(name: str, tmp_path: Path) -> None:
    check_all(program(PROGRAMS[name]), tmp_path)


@pytest.mark.parametrize("shape", YAML_SHAPES)
def test_wildcards(shape: str, tmp_path: Path) -> None:
    check(Reading(wildcards, never_raises=True), tmp_path, YAML_SHAPES[shape])


@pytest.mark.parametrize("shape", YAML_SHAPES)
def test_pages_of_models(shape: str, tmp_path: Path) -> None:
    content = YAML_SHAPES[shape].decode("utf-8", "replace")
    check(Reading(lambda folder, _: read_yaml(content)), tmp_path, b"")


@pytest.mark.parametrize("shape", INFOTEXTS)
def test_infotexts(shape: str, tmp_path: Path) -> None:
    text = INFOTEXTS[shape]
    check(Reading(lambda folder, _: pasted_values(parse_infotext(text))), tmp_path, b"")


# -- graphs of ComfyUI -------------------------------------------------------------------------------------------------


def sampler(**nodes: object) -> dict[str, object]:
    inputs = {"positive": ["a", 0], "negative": ["a", 0], "latent_image": ["l", 0], "steps": 4, "seed": 1}
    return {"s": {"class_type": "KSampler", "inputs": inputs}, **nodes}


def node(kind: str, **inputs: object) -> dict[str, object]:
    return {"class_type": kind, "inputs": inputs}


def joins(levels: int, text: str) -> dict[str, object]:
    names = [chr(97 + level) for level in range(levels)]
    links = {name: [following, 0] for name, following in zip(names, [*names[1:], "text"], strict=True)}
    graph = {name: node("StringConcatenate", **{f"string_{x}": link for x in "abcd"}) for name, link in links.items()}
    return sampler(**graph, text=node("Text", text=text))


GRAPHS: Mapping[str, object] = {
    "texts that grow": joins(6, "word " * 4000),
    "texts that grow, deeper": joins(20, "word " * 4000),
    "a ring of joins": sampler(
        a=node("X", string_a=["b", 0], string_b=["b", 0]), b=node("X", string_a=["a", 0], string_b=["a", 0])
    ),
    "a ring of texts": sampler(a=node("X", text=["b", 0]), b=node("X", text=["a", 0])),
    "thousands of nodes": sampler(**{f"n{n}": node(f"ControlNet {n}", x=[f"n{n + 1}", 0]) for n in range(4900)}),
    "links that are lists": {
        "nodes": [{"id": 1, "type": "KSampler", "inputs": 5}],
        "links": [[[1], 2, 3, 4], [[[]]] * 5],
    },
    "inputs that are numbers": {"nodes": [{"id": [], "type": [], "inputs": 7, "widgets_values": 8}, 5], "links": []},
    "InvokeAI's loras": {"positive_prompt": "x", "app_version": [], "loras": 5, "generation_mode": {}, "steps": []},
    "Draw Things' lora": {"c": [], "uc": {}, "steps": [], "lora": 5, "model": [1]},
    "Fooocus' loras": {"software": "RuinedFooocus", "prompt": [], "loras": 5, "width": [], "steps": {}},
    "SwarmUI": {"sui_image_params": {"prompt": [], "loras": [[]], "loraweights": 5, "model": {}}},
    "old InvokeAI": {"image": {"prompt": [5, {"prompt": []}], "width": []}, "app_version": 1e5},
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("chunk", ["prompt", "workflow", "parameters"])
def test_graphs(name: str, chunk: str, tmp_path: Path) -> None:
    """Security finding 4: six joins of a text are four thousand of it."""

    def read(folder: Path, _: bytes) -> object:
        pixels, chunks = io.BytesIO(), PngInfo()
        chunks.add_text(chunk, json.dumps(GRAPHS[name]), zip=True)
        Image.new("RGB", (8, 8)).save(pixels, "PNG", pnginfo=chunks)
        infotext, _texts = read_metadata(pixels.getvalue())
        assert len(infotext or "") < 1_000_000
        return infotext

    check(Reading(read), tmp_path, b"")


# -- GGUF --------------------------------------------------------------------------------------------------------------


def gguf(tensors: int, pairs: int, body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + body


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


GGUFS: Mapping[str, bytes] = {
    "nothing": b"",
    "cut": gguf(1, 1, text(b"a"))[:30],
    "counts": gguf(2**63, 2**63, b"\0" * 500),
    "a long name": gguf(1, 0, struct.pack("<Q", 2**62)),
    "a long text": gguf(0, 1, text(b"k") + struct.pack("<IQ", 8, 2**63)),
    "lists in lists": gguf(0, 1, text(b"k") + (struct.pack("<IQ", 9, 1) + struct.pack("<I", 9)) * 2000),
    "a wide list": gguf(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, 2**40)),
    "many sides": gguf(1, 0, text(b"t") + struct.pack("<I", 2**31)),
    "large sides": gguf(1, 0, text(b"t") + struct.pack("<IQQQQIQ", 4, *([2**63] * 4), 0, 0)),
}


@pytest.mark.parametrize("shape", GGUFS)
def test_gguf(shape: str, tmp_path: Path) -> None:
    def read(path: Path) -> object:
        with GgufFile(path) as found:
            return found.entries

    check(file("x.gguf", read, names_file=True), tmp_path, GGUFS[shape])


# -- archives ----------------------------------------------------------------------------------------------------------


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header as `tarfile` writes it, with a size that it would not write."""
    info = tarfile.TarInfo(name)
    info.type = kind
    raw = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    raw[124:136] = size.to_bytes(12, "big", signed=True) if size < 0 else b"%011o\0" % size
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def pax(key: str, value: str) -> bytes:
    record = f" {key}={value}\n"
    length = len(record) + 2
    body = f"{length}{record}".encode()
    return tar_header("pax", len(body), tarfile.XHDTYPE) + body.ljust(512, b"\0")


END = b"\0" * 1024
TARS: Mapping[str, bytes] = {
    "negative sizes": tar_header("a", 0) + tar_header("b", -512) * 2 + END,
    "a negative size first": tar_header("a", -512) * 2 + END,
    "a negative long name": tar_header("././@LongLink", -512, tarfile.GNUTYPE_LONGNAME) + tar_header("a", 0) + END,
    "a negative size of pax": pax("size", "-512") + tar_header("a", 0) + END,
    "a chain of pax headers": pax("comment", "x") * 5000 + tar_header("a", 0) + END,
    "a long name of gigabytes": gzip.compress(
        tar_header("././@LongLink", 2**33, tarfile.GNUTYPE_LONGNAME) + b"\0" * 2**24
    ),
    "a large file": tar_header("a", 2**40) + END,
    "many files": gzip.compress(b"".join(tar_header(f"{n}", 0) for n in range(51_000)) + END),
    "cut": gzip.compress(tar_header("a", 5000) + b"x" * 5000)[:40],
    "text": b"hello",
    "nothing": b"",
    "a zip cut": b"PK\x03\x04" + b"\0" * 40,
}


@pytest.mark.parametrize("shape", TARS)
@pytest.mark.parametrize("unpack", [unpack_extension, unpack_program])
def test_archives(unpack: Callable[[Path, Path], object], shape: str, tmp_path: Path) -> None:
    """Security finding 11: two headers of the size -512 were read for ever."""
    before = time.process_time()
    archive = tmp_path / "x.tar"
    archive.write_bytes(TARS[shape])
    with pytest.raises(FeatherweightError, match=r"x\.tar"):
        unpack(archive, tmp_path / "out")
    assert time.process_time() - before < 2 * MAX_CPU_S


# -- the module itself -------------------------------------------------------------------------------------------------


def test_nothing_reads_json_or_yaml_without_bounds() -> None:
    """A line of an allowed file says why it needs none."""
    own = {
        "modules/system/bounded.py",
        "modules/downloads/verdict.py",  # what a process of ours printed
        "modules/setup/prepare.py",  # the same
        "modules/ui/page/first_files.py",  # Gradio's own page
        "modules/models/text_encoders/tokenizers.py",  # files of this program
    }
    root = Path(__file__).parents[2]
    found = {
        path.relative_to(root).as_posix()
        for folder in ("modules", "compat", "extensions-builtin")
        for path in (root / folder).rglob("*.py")
        if any(
            word in path.read_text(encoding="utf-8")
            for word in ("json.loads(", "json.load(", "yaml.load", "yaml.safe_load", "JSONDecoder(", "tarfile.open(")
        )
    }
    assert found <= own


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_json_is_a_value_or_one_error(shape: str) -> None:
    for content in (JSON_SHAPES[shape], JSON_SHAPES[shape].decode("utf-8", "replace")):
        try:
            read_json(content)
        except ContentError as error:
            assert str(error) and len(str(error)) < 400


def test_numbers_of_usual_size_come_back_exactly() -> None:
    value = {"seed": 2**64 - 1, "weight": 0.1, "large": 10**39, "small": -1.5e-300, "list": [[[1]]], "text": "1e400"}
    assert read_json(json.dumps(value)) == value
    assert read_json("[NaN, 1e999]", constant=lambda name: None) == [None, None]
    assert read_yaml("a: [1, 1.50, yes, 2020-01-01]") == {"a": ["1", "1.50", "yes", "2020-01-01"]}
    assert read_yaml("a: &x {k: v}\nb: *x\nc: {<<: *x, d: e}") == {
        "a": {"k": "v"},
        "b": {"k": "v"},
        "c": {"k": "v", "d": "e"},
    }
