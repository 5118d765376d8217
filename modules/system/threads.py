"""Long-lived threads, which no exception ends: what goes wrong in one turn is logged, and the next turn comes."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 2.0


def start_loop(name: str, turn: Callable[[], bool]) -> threading.Thread:
    """Start a daemon thread that calls `turn` until it returns False, and return it.

    An exception of any type, `SystemExit` of an extension included, costs one turn: it is logged, with its traceback
    where it differs from that of the turn before, and the next turn follows after a pause, which grows up to
    `MAX_PAUSE_S` while turns fail. What a turn had in hand is its own to bring to an end.
    """

    def loop() -> None:
        pause_s, said = FIRST_PAUSE_S, ""
        while True:
            try:
                if not turn():
                    return
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
                log.error("The thread %s goes on after %s", name, text, exc_info=error if text != said else None)
                said = text
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            else:
                pause_s, said = FIRST_PAUSE_S, ""

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    return thread
