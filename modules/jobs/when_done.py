"""Actions when the line has been worked off: the model leaves memory, the server ends, the machine sleeps, or a
user's command runs."""

import logging
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger(__name__)

SLEEP_COMMANDS = {
    "linux": ("systemctl", "suspend"),
    "darwin": ("pmset", "sleepnow"),
    "win32": ("rundll32.exe", "powrprof.dll,SetSuspendState", "0,1,0"),
}


class WhenDone(StrEnum):
    """Action, once when the line has been worked off."""

    NOTHING = "nothing"
    UNLOAD = "unload"
    EXIT = "exit"
    SLEEP = "sleep"
    COMMAND = "command"


@dataclass(frozen=True)
class DoneActions:
    """How each action is done. `command` is asked when it runs; empty: none is set."""

    unload: Callable[[], None]
    exit: Callable[[], None]
    command: Callable[[], str]
    run: Callable[[tuple[str, ...]], int] = lambda words: subprocess.run(words, stdin=subprocess.DEVNULL).returncode
    """Runs a program to its end; its exit code."""

    def __call__(self, action: WhenDone) -> None:
        """Do it, in a thread of its own. What goes wrong is logged: nobody waits for an answer."""
        log.info("The queue is done: %s.", action.value)
        try:
            match action:
                case WhenDone.UNLOAD:
                    self.unload()
                case WhenDone.EXIT:
                    self.exit()
                case WhenDone.SLEEP:
                    self._run(SLEEP_COMMANDS.get(sys.platform, SLEEP_COMMANDS["linux"]))
                case WhenDone.COMMAND:
                    words = tuple(shlex.split(self.command()))
                    if words:
                        self._run(words)
                    else:
                        log.warning("No command is set (setting queue_done_command).")
                case WhenDone.NOTHING:
                    return
        except (OSError, ValueError) as error:
            log.error("What was to happen when the queue is done did not: %s", error)

    def _run(self, words: tuple[str, ...]) -> None:
        code = self.run(words)
        if code:
            log.error("What was to happen when the queue is done, %s, ended with the code %d.", words[0], code)
