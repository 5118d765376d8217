"""Recorded work as what it was: the request of an image job, the work of a task."""

import binascii
from collections.abc import Callable, Mapping

from modules.errors import FeatherweightError, InvalidValueError
from modules.jobs.store import JobRecord, JobStore
from modules.jobs.tasks import Starter, TaskSpec
from modules.processing.request.request import GenerationRequest, request_from_json

UNREADABLE = (FeatherweightError, ValueError, TypeError, KeyError, AttributeError, IndexError, binascii.Error)
"""What reading a request raises that somebody has edited."""


class Repeats:
    """Begins recorded work again, in this server or in one that comes later."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._starters: dict[str, Starter] = {}

    def add(self, starters: Mapping[str, Starter]) -> None:
        """Say by type how work is begun again from its record."""
        self._starters.update(starters)

    def request_of(self, record: JobRecord) -> GenerationRequest:
        """Read what an image job asked for. Raises a `FeatherweightError` for a record that cannot be read."""
        try:
            return request_from_json(record.request, self._store.inputs.image_of)
        except FeatherweightError:
            raise
        except UNREADABLE as error:
            raise InvalidValueError(f"The record of the job cannot be read: {error}. Submit it again.") from error

    def spec_of(self, record: JobRecord) -> Callable[[], TaskSpec]:
        """Return what gives the work of a task, and raises what is wrong with its record. Raises `InvalidValueError`
        for work of a type that nothing begins."""
        starter = self._starters.get(record.type)
        if starter is None:
            raise InvalidValueError(f"Work of the type {record.type!r} cannot be repeated; begin it from its tab.")
        return lambda: starter(record.request)
