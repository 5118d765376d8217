"""What happens when the line has been worked off: a command is run to its end, and what goes wrong is logged."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from modules.jobs.when_done import DoneActions, WhenDone


def actions(command: str) -> DoneActions:
    return DoneActions(unload=lambda: None, exit=lambda: None, command=lambda: command)


def test_a_command_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script, pid = tmp_path / "leave.py", tmp_path / "pid"
    script.write_text("import os, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nsys.exit(3)\n")
    actions(shlex.join([sys.executable, str(script), str(pid)]))(WhenDone.COMMAND)
    assert "ended with the code 3" in caplog.text
    if hasattr(os, "WNOHANG"):
        with pytest.raises(ChildProcessError):  # it was waited for
            os.waitpid(int(pid.read_text()), os.WNOHANG)


def test_a_command_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    actions("/no/such/program")(WhenDone.COMMAND)
    assert "did not" in caplog.text
    actions("")(WhenDone.COMMAND)
    assert "No command is set" in caplog.text
