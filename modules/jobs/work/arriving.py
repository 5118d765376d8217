"""The process that stores a checkpoint in 8 bits while it comes, see `models.merging.arriving`: the server imports no
torch.

What is asked comes as JSON in its argument. Through its standard input come the source's header, behind its length in 8
bytes, and then the source from the byte on that it answers. Its answers are lines of JSON: `done`, with `left_bytes`
and `size_bytes` of the result; `kept`, up to which byte nothing is lost any more; at the end `sha256` of the source, or
an `error`, with `is_output` where the disk is to blame.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from modules.errors import FeatherweightError, OutputError
from modules.folder_lock import only_writer
from modules.models.files.header import LENGTH_BYTES, header_length
from modules.models.merging.arriving import Arriving, Asked
from modules.processing.engine.precision import storage_rules


def main(argv: Sequence[str]) -> int:
    """Exit code 0, whatever was answered. It ends with its input."""
    if os.name == "posix":
        os.nice(5)  # images are made meanwhile
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed is no answer
        store(argv[0], sys.stdin.buffer, answers)
    return 0


def store(asked_text: str, stream: BinaryIO, answers: TextIO) -> None:
    """The work of the process, between its streams."""

    def say(answer: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # who asked is gone
            print(json.dumps(answer), file=answers, flush=True)

    asked = Asked(**json.loads(asked_text))
    with only_writer(Path(asked.part)):  # a process whose asker was killed may still be at its end
        header = stream.read(header_length(stream.read(LENGTH_BYTES)))
        try:
            Arriving(asked, header, storage_rules(asked.storage), say).run(stream)
        except FeatherweightError as error:
            say({"error": str(error), "is_output": isinstance(error, OutputError)})
