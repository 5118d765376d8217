"""Running other programs during the set-up: output kept for the error message, a sign of life while it lasts."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from modules.errors import FeatherweightError

HEARTBEAT_SECONDS = 20.0
Say = Callable[[str], None]


class SetupError(FeatherweightError):
    """The set-up cannot go on; the message names the step, shows what the tool said and what to do."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its exit status and everything it printed (standard output and error together)."""

    returncode: int
    output: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0


Run = Callable[[Sequence[str]], Outcome]


def say(line: str) -> None:
    """One line to the user, at once (the launcher has no logging yet)."""
    print(line, flush=True)


@dataclass(frozen=True)
class Runner:
    """Runs programs with `environ`, without standard input; says every 20 seconds that it still waits."""

    environ: Mapping[str, str]
    say: Say = say

    def __call__(self, command: Sequence[str]) -> Outcome:
        """Run to the end. A program that does not exist is an outcome with status 127, not an exception."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=dict(self.environ),
            )
        except OSError as error:
            return Outcome(127, f"{command[0]}: {error.strerror}")
        with process:
            try:
                return self._wait(process)
            except BaseException:
                process.kill()
                raise

    def _wait(self, process: "subprocess.Popen[str]") -> Outcome:
        began = time.monotonic()
        while True:
            try:
                output, _ = process.communicate(timeout=HEARTBEAT_SECONDS)
                return Outcome(process.returncode, output)
            except subprocess.TimeoutExpired:
                self.say(f"  ... still working, {time.monotonic() - began:.0f} s")
