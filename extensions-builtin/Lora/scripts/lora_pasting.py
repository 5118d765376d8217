"""Adapters in a pasted infotext: a file that was renamed since is found by the hash that the infotext has of it."""

import re
from collections.abc import Mapping
from typing import Any

from modules.adapters.catalogue import AdapterCatalogue, AdapterInfo
from modules.adapters.tags import LORA_ALGORITHMS, name_in, plain_name
from modules.scripts import program_now, script_callbacks
from modules.scripts.extra_networks import PromptTag

PROGRAM = program_now()
PROMPTS = ("Prompt", "Negative prompt", "Hires prompt", "Hires negative prompt")
FIELD = "Lora hashes"
_TAG = re.compile(rf"<({'|'.join(LORA_ALGORITHMS)}):([^>]+)>")
_HASH = re.compile(r"[0-9a-f]{8,64}")


def recorded_hashes(field: str) -> dict[str, str]:
    """ "a: 0123456789ab, b: ..." as a table; what is no hash is left out."""
    pairs = [item.strip().rpartition(":") for item in field.split(",")]
    table = {plain_name(name).strip(): digest.strip().lower() for name, _, digest in pairs}
    return {name: digest for name, digest in table.items() if name and _HASH.fullmatch(digest)}


def with_names_of_now(parsed: Mapping[str, Any], catalogue: AdapterCatalogue) -> dict[str, Any]:
    """An infotext's fields, with the adapters in its prompts called as the files with their hashes are called now.

    An adapter stays as it is if its file has the recorded hash, and if no file has it.
    """
    hashes = recorded_hashes(str(parsed.get(FIELD, "")))
    fields = dict(parsed)
    if not hashes or not any(f"<{kind}:" in str(fields.get(name)) for name in PROMPTS for kind in LORA_ALGORITHMS):
        return fields
    catalogue.refresh()

    def renamed(match: re.Match[str]) -> str:
        tag = PromptTag(tuple(match[2].split(":")))
        name, _ = name_in(tag, lambda text: catalogue.find(text) is not None or plain_name(text) in hashes)
        digest = hashes.get(plain_name(name))
        info = _file(name, digest, catalogue) if digest else None
        return match[0] if info is None else f"<{match[1]}:{info.name}{match[2].removeprefix(name)}>"

    for key in PROMPTS:
        if isinstance(fields.get(key), str):
            fields[key] = _TAG.sub(renamed, fields[key])
    return fields


def _file(name: str, digest: str, catalogue: AdapterCatalogue) -> AdapterInfo | None:
    """The file that is to be named instead; None: leave the name."""
    named = catalogue.find(name)
    if named is not None and catalogue.has_hash(named, digest):
        return None
    return catalogue.find_hash(digest, read_files=named is None)


def rename(infotext: str, fields: dict[str, Any]) -> None:
    """Parameters were pasted, or sent to the API."""
    fields.update(with_names_of_now(fields, PROGRAM.adapters().catalogue))


script_callbacks.on_infotext_pasted(rename)
