"""Writing as a task: it waits its turn behind images, since it needs the same device and model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from modules.jobs.computing import Computing
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.processing.engine.writing import check_words, write_prompt
from modules.prompting.writing import WriteOptions
from modules.settings.values import Settings
from modules.system.texts import page_text

TYPE = "write"


def write_starters(computing: Computing) -> Mapping[str, Starter]:
    """Return how writing begins from its request."""

    def start(asked: dict[str, Any]) -> TaskSpec:
        return spec(computing, asked["prompt"], WriteOptions(**asked["options"]), asked.get("settings"), "")

    return {TYPE: start}


def spec(
    computing: Computing, prompt: str, options: WriteOptions, settings: Settings | None = None, user: str = ""
) -> TaskSpec:
    """The work; its outcome is `{"text", "from", "by", "is_whole", "record"}`. Raises what `check_words`
    raises."""
    check_words(prompt)
    chosen = settings or computing.settings.current

    def work(task: Task) -> Outcome:
        def on_token(done: int, most: int) -> None:
            task.progress(done, most, page_text("writing"))

        on_token(0, options.max_tokens)
        written = write_prompt(computing.engine, prompt, chosen, options, on_token)
        by = f"{written.model}, seed {options.seed}, temperature {options.temperature:g}, {options.max_tokens} tokens"
        record = {"text": written.text, "from": prompt, "by": by}
        return {**record, "seed": options.seed, "is_whole": written.is_whole, "record": json.dumps(record)}

    return TaskSpec(
        TYPE,
        page_text("Write a prompt"),
        work,
        {"prompt": prompt, "options": asdict(options)},
        makes_images=True,  # Interrupt stops it
        user=user,
        attached={"settings": chosen},
    )
