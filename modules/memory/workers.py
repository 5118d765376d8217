"""Threads that compute with one CPU core each.

PyTorch spreads every operation over all cores, and its threads meet at the end of each: many small operations run
faster as one stream a core, and where cores are busy the meetings cost up to fifty times the work.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_LOCK = threading.Lock()


def one_core_workers(count: int | None = None) -> ThreadPoolExecutor:
    """A pool of `count` such threads (None: as many as PyTorch computes with), to be closed by the caller.

    The number of cores that PyTorch uses is each thread's own once it has computed something, and what new threads
    begin with is one number for the process; so that is set to 1 while these threads begin, and then set back.
    """
    count = torch.get_num_threads() if count is None else count
    pool = ThreadPoolExecutor(count, thread_name_prefix="one-core")
    with _LOCK:
        cores = torch.get_num_threads()
        started = threading.Barrier(count + 1)

        def begin() -> None:
            torch.get_num_threads()  # a thread takes over the process's number at its first question
            torch.set_num_threads(1)
            started.wait()

        try:
            for _ in range(count):
                pool.submit(begin)
            started.wait()
        finally:
            torch.set_num_threads(cores)
    return pool
