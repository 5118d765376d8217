"""What happens when the line has been worked off: a command is run to its end, and what goes wrong is logged."""

import os
import sys

import pytest

from modules.jobs.when_done import DoneActions, WhenDone


def actions(command: str) -> DoneActions:
    return DoneActions(unload=lambda: None, exit=lambda: None, command=lambda: command)


def test_a_command_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    actions(f"{sys.executable} -c 'import sys; sys.exit(3)'")(WhenDone.COMMAND)
    assert "ended with the code 3" in caplog.text
    if hasattr(os, "WNOHANG"):
        with pytest.raises(ChildProcessError):  # nobody is left that was not waited for
            os.waitpid(-1, os.WNOHANG)


def test_a_command_that_is_not_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    actions("/no/such/program")(WhenDone.COMMAND)
    assert "did not" in caplog.text
    actions("")(WhenDone.COMMAND)
    assert "No command is set" in caplog.text
