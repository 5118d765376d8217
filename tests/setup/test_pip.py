"""What the user reads when pip fails."""

from pathlib import Path

import pytest

from modules.setup.pip import Pip, failure_message
from modules.setup.process import Outcome, SetupError


def test_message_names_the_step_shows_the_end_and_how_to_go_on() -> None:
    noise = "WARNING: Location 'file:///x' is ignored: it is either a non-existing path or lacks a specific scheme.\n"
    lines = "".join(f"line {number}\n" for number in range(30))
    message = failure_message("installing requirements.txt", Outcome(1, lines + noise * 20))
    assert "installing requirements.txt (exit status 1)" in message
    assert "line 29" in message and "line 10" not in message and "Location" not in message
    assert "run the same command again" in message


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError: Temporary failure in name resolution", "could not be reached"),
        ("ERROR: No matching distribution found for torch==2.13.0", "--torch"),
        ("SSLError(SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED", "PIP_CERT"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "cannot be written to"),
    ],
)
def test_known_failures_come_with_advice(output: str, advice: str) -> None:
    assert advice in failure_message("a step", Outcome(1, output))


def test_silence_is_said() -> None:
    assert "(it said nothing)" in failure_message("a step", Outcome(-9, ""))


def test_pip_runs_in_the_given_python_without_asking_questions() -> None:
    commands: list[list[str]] = []

    def run(command: object) -> Outcome:
        assert isinstance(command, list)
        commands.append(command)
        return Outcome(0, "")

    Pip(Path("/v/python"), run).install("a step", ["a==1"])
    assert commands[0][:4] == [str(Path("/v/python")), "-m", "pip", "install"]
    assert "--no-input" in commands[0] and "--isolated" not in commands[0]


def test_failure_raises_with_the_step() -> None:
    pip = Pip(Path("python"), lambda command: Outcome(1, "ERROR: boom"))
    with pytest.raises(SetupError, match=r"installing x .*\n.*boom"):
        pip.install("installing x", ["x"])
    with pytest.raises(SetupError, match="removing y"):
        pip.uninstall("y")
