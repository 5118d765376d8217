"""Work of extensions as tasks: functions that extensions register by name, called where images are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from modules.errors import InvalidValueError
from modules.jobs.line import Line
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec

CALL_TYPE = "extension"
Compute = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(name of the work, what it is given) -> what it gives back, ready for JSON. Raises what the work raises."""


class Answer:
    """Answer of a call: no part of the record, which would keep its images."""

    def __init__(self) -> None:
        self._values: Mapping[str, Any] = {}

    def begin(self, task: Task) -> None:
        self._values = {}

    def add(self, item: Any) -> None:
        self._values = item

    def take(self) -> Mapping[str, Any]:
        """The values, once: nothing is kept of them."""
        found, self._values = self._values, {}
        return found


def call(queue: Line, compute: Compute, name: str, values: Mapping[str, Any], user: str = "") -> Mapping[str, Any]:
    """Have work done in its turn, and wait for what it gives back. Raises what the work raises."""
    task = start_call(queue, compute, name, values, user)
    task.wait()
    task.result()
    assert isinstance(task.product, Answer)
    return task.product.take()


def start_call(queue: Line, compute: Compute, name: str, values: Mapping[str, Any], user: str = "") -> Task:
    """Put a call in line; its product is what the work gives back. `values` can be pickled. Raises as
    `Line.submit_spec`."""
    return queue.submit_spec(_spec(compute, name, values, user))


def call_starters(compute: Compute) -> Mapping[str, Starter]:
    """How calls are begun from their request; what the work is given is not on record."""

    def start(asked: dict[str, Any]) -> TaskSpec:
        if "values" not in asked:
            raise InvalidValueError(f"What {asked.get('name')!r} was to work on is not kept; ask for it again.")
        return _spec(compute, asked["name"], asked["values"], "")

    return {CALL_TYPE: start}


def _spec(compute: Compute, name: str, values: Mapping[str, Any], user: str) -> TaskSpec:
    def work(task: Task) -> Outcome:
        task.progress(0, 1, name)
        task.produce(compute(name, values))
        return {}

    given = {"values": dict(values)}
    return TaskSpec(CALL_TYPE, name, work, {"name": name}, product=Answer(), user=user, attached=given)
