"""The `--workers` of a server on a Ray cluster (`--farm`)."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules.jobs.workers.added import AddedWorkers, WorkerPlace  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402


def workers(place: WorkerPlace) -> AddedWorkers:
    """Return how each of the `--workers` is begun on the cluster; nothing without `--farm`."""
    flags = place.computing.flags
    if not flags.farm:
        return AddedWorkers()
    from lib_farm.farm import Farm, check_installed, farm_workers

    check_installed()
    farm = Farm(flags.farm, place.root)
    begins = farm_workers(farm, flags.workers or 0, place.build, place.computing.paths.data_dir)
    return AddedWorkers(serves=("farm",), begins=begins)


script_callbacks.on_workers(workers)
