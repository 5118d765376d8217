"""Addresses of files, from what a user types: a Hub repository and file, a page or an address of
Civitai's, or any https address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from modules.errors import InvalidValueError
from modules.system.file_names import check_name, sanitize_name, without_controls

HUB = "https://huggingface.co"
CIVITAI = "https://civitai.com"
HUB_FILE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?[:/](?P<file>[^:@]+\.\w+)")
HUB_PAGE = re.compile(r"/(?P<repo>[\w.-]+/[\w.-]+)/(?:blob|resolve)/(?P<revision>[^/]+)/(?P<file>.+)")
NAMELESS = ("pytorch_lora_weights", "diffusion_pytorch_model", "model")
"""Names that hundreds of repositories give their only file: it gets the name of its repository."""
SUFFIXES = (".safetensors", ".sft", ".gguf")
"""Of files that cannot run code."""
PICKLES = (".ckpt", ".pt", ".pth", ".bin")
MAX_STEM_BYTES = 150
"""Length of a name before its suffix: files kept next to a partial download have longer names."""


@dataclass(frozen=True)
class Source:
    """A file on a server: its address, the name that the user sees, and "" or the name of its file. `is_typed`: a
    person typed the address as it is, which may be this machine's."""

    url: str
    label: str
    file: str = ""
    is_typed: bool = False


def source_of(text: str) -> Source:
    """The file that `text` means. Raises `InvalidValueError` that lists the forms."""
    text = text.strip()
    if text.lower().startswith(("https://", "http://")):
        return _of_address(text)
    found = HUB_FILE.fullmatch(text)
    if found is None:
        raise InvalidValueError(
            f"{text[:80]!r} is none of: a name of the list, a repository of the Hub and a file in it "
            "(owner/repository/file.safetensors), an address that begins with https://."
        )
    return _hub(found["repo"], found["revision"] or "main", found["file"])


def _of_address(text: str) -> Source:
    place = urlsplit(text)
    host = (place.hostname or "").lower()
    if host in ("huggingface.co", "www.huggingface.co", "hf.co"):
        page = HUB_PAGE.fullmatch(unquote(place.path))
        if page is None:
            raise InvalidValueError(f"{text[:80]} is no file of a repository: open it on the Hub and copy its address.")
        return _hub(page["repo"], page["revision"], page["file"])
    if host in ("civitai.com", "www.civitai.com"):
        query = parse_qs(place.query)
        version = query.get("modelVersionId", [""])[0] or place.path.rpartition("/api/download/models/")[2]
        if not version.isdigit():
            raise InvalidValueError(
                f"{text[:80]} names no version of a model: copy the address of its download button, or of its page "
                "with modelVersionId in it."
            )
        kept = "&".join(f"{key}={quote(query[key][0])}" for key in ("type", "format", "size", "fp") if key in query)
        return Source(f"{CIVITAI}/api/download/models/{version}{f'?{kept}' if kept else ''}", f"Civitai {version}")
    name = unquote(place.path.rpartition("/")[2])
    return Source(text, name or host, name if "." in name else "", is_typed=True)


def _hub(repo: str, revision: str, file: str) -> Source:
    if ".." in file.split("/"):
        raise InvalidValueError(f"{file!r} is no name of a file in a repository.")
    name = file.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    if stem in NAMELESS:
        name = f"{repo.rpartition('/')[2]}{dot}{suffix}"
    return Source(f"{HUB}/{repo}/resolve/{quote(revision, safe='')}/{quote(file)}", f"{repo}/{file}", name)


def clean_name(name: str, allows_pickles: bool = False) -> str:
    """Make of a name one that a file of ours may have: no folders, no control characters, no device of Windows, a
    suffix of a model file. Raises `InvalidValueError`."""
    plain = without_controls(name.replace("\\", "/").rpartition("/")[2]).strip(" .")
    stem, _, ending = plain.rpartition(".")
    suffix = f".{ending.lower()}"
    if not stem.strip(" ._"):
        raise InvalidValueError(f"{name[:80]!r} is no name for a file; give one with --name.")
    if suffix in PICKLES and not allows_pickles:
        raise InvalidValueError(
            f"{plain[:80]} is a pickle, which can hold code. Get the .safetensors file of the model; or allow pickles "
            "for this file: it is read without running anything in it."
        )
    if suffix not in (*SUFFIXES, *PICKLES):
        raise InvalidValueError(
            f"{plain[:80]} is no model file; those end in {', '.join(SUFFIXES)} (and, allowed each time, "
            f"{', '.join(PICKLES)})."
        )
    return check_name(f"{sanitize_name(stem, MAX_STEM_BYTES)}.{ending}")
