"""Other servers as workers, by their API (`--remote-worker`, `--remote-workers-file`)."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.jobs.workers.added import AddedWorkers, WorkerPlace  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402


def workers(place: WorkerPlace) -> AddedWorkers:
    """Return a worker with its lane for each address that the command line or the file names."""
    flags = place.computing.flags
    if not flags.remote_worker and not flags.remote_workers_file:
        return AddedWorkers()
    from lib_remote_workers.sdapi import remote_workers

    file = Path(flags.remote_workers_file).expanduser() if flags.remote_workers_file else None
    return AddedWorkers(
        serves=("remote_worker", "remote_workers_file"), others=remote_workers(place, flags.remote_worker, file)
    )


script_callbacks.on_workers(workers)
