"""Parts of the program that are extensions: each is there by itself, and gone by itself when it is switched off."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.jobs.lanes import Lane
from modules.jobs.workers.added import AddedWorkers, WorkerPlace, added_workers
from modules.scripts.callbacks import Callbacks, Moment, Registered
from modules.scripts.library import BUILT_IN, ScriptLibrary
from modules.services import Services
from tests.fakes import FakeExecutor, fake_services, page_config, whole_api

GUESTS = {
    "agent-scheduler": {Moment.API},
    "detailer": {Moment.DETECTORS, Moment.UI_SETTINGS},
    "farm": {Moment.WORKERS},
    "foreign-infotexts": set[Moment](),
    "remote-workers": {Moment.WORKERS},
    "takeover": {Moment.API, Moment.SETTINGS_ACTIONS},
}
"""By extension, what it registers."""


def alone(*names: str) -> ScriptLibrary:
    library = ScriptLibrary.load([BUILT_IN], [path.name for path in BUILT_IN.iterdir() if path.name not in names])
    assert not library.faults
    return library


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_registers_what_it_adds(name: str) -> None:
    assert {entry.moment for entry in alone(name).callbacks.all} == GUESTS[name]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A program whose guests are switched off."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "config.json").write_text(json.dumps({"disabled_extensions": list(GUESTS)}), encoding="utf-8")
    services = fake_services(folder, start=False)
    yield services
    services.dispatcher.close()


def test_without_them_the_program_runs_and_has_nothing_of_theirs(without: Services) -> None:
    client = TestClient(whole_api(without))
    assert client.get("/sdapi/v1/options").status_code == 200
    for path in ("/featherweight/v1/import-folder", "/agent-scheduler/v1/queue/txt2img"):
        assert client.post(path, json={}).status_code == 404, path
    ids = {component["props"].get("elem_id") for component in page_config(without)["components"]}
    assert "settings_page_actions" in ids and "settings_import" not in ids
    assert without.scripts.program.detectors() == []


# -- workers ----------------------------------------------------------------------------------------------------------


def place(callbacks: Callbacks, **flags: Any) -> WorkerPlace:
    computing: Any = SimpleNamespace(flags=Flags(**flags), scripts=SimpleNamespace(callbacks=callbacks))
    unused: Any = None
    return WorkerPlace(computing, Path(), unused, unused, unused)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"farm": "auto", "workers": 2}, "--farm needs the built-in extension farm, which is switched off"),
        ({"remote_worker": ("http://10.0.0.2",)}, "--remote-worker needs the built-in extension remote-workers"),
        ({"remote_workers_file": "w.txt"}, "--remote-workers-file needs the built-in extension remote-workers"),
    ],
)
def test_a_flag_that_no_extension_serves_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        added_workers(place(Callbacks(), **flags))


def test_workers_of_several_extensions_are_put_together(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, lane, shown = Callbacks(), Lane(FakeExecutor()), SimpleNamespace()
    others: Any = ((shown, lane),)
    for given in (
        lambda place: AddedWorkers(serves=("remote_worker",), others=others),
        lambda place: 1 / 0,
        lambda place: AddedWorkers(others=others),
    ):
        callbacks.add(Registered(Moment.WORKERS, given, "toys"))
    found = added_workers(place(callbacks, remote_worker=("http://10.0.0.2",)))
    assert found.others == (*others, *others) and found.begins == () and "toys" in caplog.text


def test_what_an_extension_cannot_read_ends_the_start(tmp_path: Path) -> None:
    callbacks = alone("remote-workers", "farm").callbacks
    with pytest.raises(InvalidValueError, match="address of a remote worker is not understood"):
        added_workers(place(callbacks, remote_worker=("ftp://x",)))
    assert added_workers(place(callbacks)) == AddedWorkers()
