"""What becomes of SD3's T5 where a checkpoint is converted or merged: it is the larger half of a file that holds it.

What is inside of a checkpoint stays in what is made of it; one that lies beside is left there, where it is found again.
Either way it is said.
"""

from collections.abc import Iterable, Mapping

from modules.models.layouts.keymaps.mmdit import T5_PREFIX
from modules.models.reading.tensor_file import TensorEntry
from modules.models.reading.tensor_source import TensorSource

LEAVE_OUT = r"^text_encoders\.t5xxl\."


def holds_t5(names: Iterable[str]) -> bool:
    """Whether these are names of a checkpoint with T5 inside."""
    return any(name.startswith(f"{T5_PREFIX}.") for name in names)


def note_on_converting(entries: Mapping[str, TensorEntry]) -> tuple[str, ...]:
    """A sentence for a checkpoint that holds T5."""
    if not holds_t5(entries):
        return ()
    size = sum(entry.size_bytes for name, entry in entries.items() if name.startswith(f"{T5_PREFIX}."))
    return (
        f"The checkpoint holds T5 ({size / 1e9:.1f} GB of it), which is kept. To save it without, merge it alone (No "
        f"interpolation) with {LEAVE_OUT} under Discard weights.",
    )


def notes_on_merging(files: Iterable[TensorSource], result: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each fate of T5: `files` are the models that are merged, the first one gives the names; `result`
    are those that are written."""
    first, *others = files
    if holds_t5(result):
        merged = [file.path.name for file in others if holds_t5(file.entries)]
        how = "merged" if len(merged) == len(others) > 0 else "kept as it is there"
        return (f"T5 of {first.path.name} is {how}. To leave it out, discard {LEAVE_OUT}",)
    if holds_t5(first.entries):
        return (f"T5 of {first.path.name} is left out, as Discard weights says.",)
    holders = [file.path.name for file in others if holds_t5(file.entries)]
    if not holders:
        return ()
    return (f"T5 of {', '.join(holders)} is left out, because {first.path.name} holds none.",)
