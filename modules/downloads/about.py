"""Facts of a model file from its source: trigger words, base model, description, a preview image. Asked for
only when the user does; Civitai knows files by their hash, the Hub by the repository that a file came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from modules.downloads.addresses import CIVITAI
from modules.downloads.remote_file import SHA256
from modules.downloads.transport import DownloadError, FileTransport, GoneAwayError
from modules.models.files.header import read_metadata
from modules.system.bounded import ContentError, read_json, read_yaml

MAX_REPLY_BYTES = 2 << 20
MAX_PREVIEW_BYTES = 24 << 20
MAX_TEXT_CHARS = 4000
LIMIT_S = 120.0
"""Until a page or an image is there."""
BASES = (
    ("xl", "SDXL"),
    *((name, "SDXL") for name in ("pony", "illustrious", "noobai", "ssd-1b")),
    ("sd 1", "SD1"),
    ("stable-diffusion-v1", "SD1"),
    ("stable diffusion v1", "SD1"),
    ("sd 2", "SD2"),
    ("stable-diffusion-2", "SD2"),
)
"""Parts of what sites call a base model, in small letters, and the word of our cards, looked for in this order."""
HUB_ADDRESS = re.compile(r"(?P<site>https?://[^/]+)/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/")
FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
TAGS = re.compile(r"<[^>]*>")


@dataclass(frozen=True)
class About:
    """Facts from a source. `base`: a word of our cards, or as the source has it; `preview_url` "": it has no image."""

    source: str
    name: str = ""
    triggers: tuple[str, ...] = ()
    base: str = ""
    description: str = ""
    preview_url: str = ""
    is_preview_typed: bool = False  # it lies on the very site that a person typed


def about_file(sha256: str, came_from: str, transport: FileTransport, civitai: str = CIVITAI) -> About:
    """Ask what is known of a file with this hash that came from this address, which a person typed ("": nobody knows).

    Raises `DownloadError` where no source knows it, and as `FileTransport.get`.
    """
    hub = HUB_ADDRESS.match(came_from)
    if hub is not None:
        return _of_hub(hub, transport)
    try:
        reply = _json(f"{civitai}/api/v1/model-versions/by-hash/{sha256}", transport, civitai != CIVITAI)
    except GoneAwayError:
        raise
    except DownloadError as error:
        raise DownloadError(
            f"Civitai does not know this file ({error}), and it did not come from the Hub by this program: write its "
            "trigger words into its card."
        ) from error
    return of_civitai(reply)


def source_sha256_of(path: Path) -> str:
    """Return the hash of the file that one of ours was converted from, which sites know it by; "" where its receipt
    does not say it."""
    try:
        receipt = read_json(read_metadata(path).get("featherweight", ""))
    except ContentError:
        return ""
    found = SHA256.fullmatch(str(receipt.get("source_sha256", ""))) if isinstance(receipt, dict) else None
    return found[1].lower() if found else ""


def of_civitai(found: Mapping[str, Any]) -> About:
    """From the reply of Civitai about a version, which `.civitai.info` files hold too. Values of a wrong type count as
    missing."""
    model = found.get("model") if isinstance(found.get("model"), dict) else {}
    assert isinstance(model, dict)
    words = found.get("trainedWords")
    triggers = tuple(word.strip() for word in words if isinstance(word, str)) if isinstance(words, list) else ()
    text = found.get("description") or model.get("description")
    return About(
        source="Civitai",
        name=_text(model.get("name")),
        triggers=tuple(word for word in triggers if word),
        base=base_word(_text(found.get("baseModel"))),
        description=TAGS.sub(" ", _text(text)).strip(),
        preview_url=_first_image(found.get("images")),
    )


def _first_image(images: object) -> str:
    """The image with the lowest level of what not all may see, the first of those; no videos."""
    rows = [row for row in images if isinstance(row, dict)] if isinstance(images, list) else []
    kept = [row for row in rows if row.get("type", "image") == "image" and isinstance(row.get("url"), str)]
    kept.sort(key=lambda row: level if isinstance(level := row.get("nsfwLevel"), int) else 0)
    return str(kept[0]["url"]) if kept else ""


def _of_hub(hub: re.Match[str], transport: FileTransport) -> About:
    page = f"{hub['site']}/{hub['repo']}/resolve/{hub['revision']}/"
    text = _read(f"{page}README.md", transport, MAX_REPLY_BYTES, True).decode("utf-8", "replace")
    front = FRONT_MATTER.match(text)
    try:
        facts: Any = read_yaml(front[1]) if front else {}
    except ContentError as error:
        raise DownloadError(f"The page of {hub['repo']} cannot be read: {error}.") from error
    facts = facts if isinstance(facts, dict) else {}
    bases = facts.get("base_model")
    base = bases[0] if isinstance(bases, list) and bases else bases
    prompt = _text(facts.get("instance_prompt"))
    return About(
        source="Hugging Face",
        name=hub["repo"].partition("/")[2],
        triggers=(prompt,) if prompt else (),
        base=base_word(_text(base)),
        description=_first_paragraph(text[front.end() :] if front else text),
        preview_url=(preview := _hub_image(facts, page)),
        is_preview_typed=preview.startswith(f"{hub['site']}/"),
    )


def _hub_image(facts: Mapping[str, Any], page: str) -> str:
    rows = facts.get("widget") if isinstance(facts.get("widget"), list) else []
    assert isinstance(rows, list)
    outputs = [row.get("output") for row in rows if isinstance(row, dict)]
    urls = [each.get("url") for each in outputs if isinstance(each, dict)]
    named = [url for url in (*urls, facts.get("thumbnail")) if isinstance(url, str) and url]
    return urljoin(page, quote(named[0], safe="/:?=&%")) if named else ""


def _first_paragraph(text: str) -> str:
    plain = (" ".join(TAGS.sub(" ", part).split()) for part in text.split("\n\n"))
    kept = (part for part in plain if part and not part.startswith(("#", "!", "[", "|", "```", "-")))
    return next(kept, "")[:MAX_TEXT_CHARS]


def base_word(said: str) -> str:
    """Return the base model in the words of our cards; unchanged where they have no word for it."""
    plain = said.lower()
    return next((word for part, word in BASES if part in plain), said[:80])


def read_preview_of(about: About, transport: FileTransport) -> bytes:
    """The bytes of its image, of whatever format."""
    return _read(about.preview_url, transport, MAX_PREVIEW_BYTES, about.is_preview_typed)


def _json(url: str, transport: FileTransport, is_typed: bool) -> Mapping[str, Any]:
    try:
        found = read_json(_read(url, transport, MAX_REPLY_BYTES, is_typed))
    except ValueError as error:
        raise DownloadError(f"{url[:80]} answers with something else than JSON; try again later.") from error
    if not isinstance(found, dict):
        raise DownloadError(f"{url[:80]} answers with something else than facts about a model.")
    return found


def _read(url: str, transport: FileTransport, limit: int, is_typed: bool) -> bytes:
    with transport.get(url, may_be_local=is_typed, within_s=LIMIT_S) as reply:
        return reply.read(limit)


def _text(value: object) -> str:
    return value.strip()[:MAX_TEXT_CHARS] if isinstance(value, str) else ""
