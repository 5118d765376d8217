"""Facts about the training of a file, from its metadata: for which models, with which words, on how many images.

Keys are those that kohya's trainer (`ss_...`) and the modelspec standard write.
"""

from collections.abc import Mapping
from typing import Any

from modules.models.detection.families import adapter_versions, version_of_metadata
from modules.system.bounded import read_json

MAX_TAGS = 2000

_FACTS = {
    "modelspec.title": "Title",
    "ss_output_name": "Output name",
    "modelspec.author": "Author",
    "modelspec.architecture": "Architecture",
    "ss_sd_model_name": "Trained on",
    "ss_network_module": "Network",
    "ss_network_dim": "Rank",
    "ss_network_alpha": "Alpha",
    "ss_clip_skip": "Clip skip",
    "ss_num_train_images": "Images per epoch",
    "ss_steps": "Steps",
}


def version_of(metadata: Mapping[str, str], noted: str = "") -> str:
    """One of `adapter_versions`, or "" where nothing is known. What the user noted goes before what the file says."""
    return noted if noted in adapter_versions() else version_of_metadata(metadata)


def training_tags(metadata: Mapping[str, str]) -> list[tuple[str, int]]:
    """The words of the training captions with their counts, most frequent first."""
    counts: dict[str, int] = {}
    for dataset in _table(metadata.get("ss_tag_frequency")).values():
        for tag, count in dataset.items() if isinstance(dataset, dict) else ():
            if isinstance(count, int) and tag.strip():
                counts[tag.strip()] = counts.get(tag.strip(), 0) + count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_TAGS]


def training_facts(metadata: Mapping[str, str]) -> dict[str, str]:
    """The few lines that most users look for, by a plain name."""
    facts = {label: metadata[key] for key, label in _FACTS.items() if metadata.get(key) not in (None, "", "None")}
    resolutions = _resolutions(metadata)
    if resolutions:
        facts["Resolutions"] = resolutions
    return facts


def readable_metadata(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The whole table, with values that are JSON themselves as what they stand for."""
    return {key: _parsed(value) for key, value in sorted(metadata.items())}


def _resolutions(metadata: Mapping[str, str]) -> str:
    buckets = _table(metadata.get("ss_bucket_info")).get("buckets")
    found = []
    for bucket in buckets.values() if isinstance(buckets, dict) else ():
        size = bucket.get("resolution") if isinstance(bucket, dict) else None
        if isinstance(size, list) and len(size) == 2:
            found.append((bucket.get("count") or 0, f"{size[0]}x{size[1]}"))
    return ", ".join(f"{size} ({count})" for count, size in sorted(found, key=lambda item: str(item[1])))


def _table(text: str | None) -> dict[str, Any]:
    found = _parsed(text or "")
    return found if isinstance(found, dict) else {}


def _parsed(text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return read_json(text)
    except ValueError:
        return text
