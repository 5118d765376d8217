"""The work of `launch.py`, by its words: set up, go on in the virtual environment, start what was asked for."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from modules.cli.commands import WITHOUT_SET_UP, command_names, load_command, require_command, takes_extensions
from modules.errors import FeatherweightError, UnknownNameError
from modules.flags.flags import Flags, UsageError, parse_flags, without_effect
from modules.setup.checks import run_checks
from modules.setup.environment import Environment
from modules.setup.prepare import Wanted, prepare
from modules.setup.process import say
from modules.setup.torch_choice import TorchRequest
from modules.system.lean_imports import without_garbage_collection

PREPARED = "FEATHERWEIGHT_PREPARED"  # set for the process that goes on after the set-up, so that it does none
# Nothing leaves the machine unless the user asks for it; a value set outside wins.
QUIET_PACKAGES = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
STOPPED_BY_KEYBOARD = 130


@dataclass(frozen=True)
class Invocation:
    """A parsed command line: the server (no command, no tests), a subcommand, or the checks with pytest's words."""

    flags: Flags
    command: str | None = None
    tests: bool = False
    words: tuple[str, ...] = ()  # for the subcommand or pytest


def parse_invocation(argv: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """Understand the command line before anything is installed. Raises `UsageError`.

    A subcommand reads its own words later; of COMMANDLINE_ARGS only the set-up's flags matter to it.
    Words before --test are flags for the set-up, words after it are pytest's.
    """
    if argv and not argv[0].startswith("-"):
        try:
            require_command(argv[0])
        except UnknownNameError as error:
            raise UsageError(f"{error} Flags begin with dashes: python launch.py --help lists them.") from None
        return Invocation(parse_flags([], environ), command=argv[0], words=tuple(argv[1:]))
    if "--test" in argv:
        at = list(argv).index("--test")
        return Invocation(parse_flags(argv[:at], environ), tests=True, words=tuple(argv[at + 1 :]))
    try:
        return Invocation(parse_flags(argv, environ))
    except UsageError as error:
        command = next((word for word in argv if word in command_names()), None)
        if command is None:
            raise
        whole = shlex.join([command, *(word for word in argv if word != command)])
        raise UsageError(f"{error} If {command} is the command, it comes first: python launch.py {whole}") from None


def launch(
    root: Path, argv: Sequence[str], environ: MutableMapping[str, str], foreign: Callable[[], Any] = lambda: None
) -> int:
    """Parse, set up, start; returns the exit code: 2 for a wrong command line, 1 for a failed set-up. `foreign` gives
    what loads extensions of another program (`modules.services.ForeignProgram`)."""
    try:
        invocation = parse_invocation(argv, environ)
        if invocation.command in WITHOUT_SET_UP:
            return start(invocation, foreign)
        environment = Environment.of(root, environ)
        _set_up(root, environment, invocation, environ)
        return _start_in(environment, root, argv, invocation, environ, foreign)
    except UsageError as error:
        print(f"launch.py: {error}", file=sys.stderr)
        return 2
    except FeatherweightError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return STOPPED_BY_KEYBOARD


def _set_up(root: Path, environment: Environment, invocation: Invocation, environ: MutableMapping[str, str]) -> None:
    """Prepare the environment, unless the process before us just did or the user does not want it."""
    flags = invocation.flags
    prepared = environ.pop(PREPARED, "") == str(environment.folder)
    if prepared or flags.skip_install or flags.skip_prepare_environment:
        return
    wanted = Wanted(
        request=TorchRequest.of(flags.torch, environ),
        reinstall_torch=flags.reinstall_torch,
        tests=invocation.tests,
        xformers=flags.xformers or flags.force_enable_xformers or flags.reinstall_xformers,
        reinstall_xformers=flags.reinstall_xformers,
        name_device=not flags.skip_torch_cuda_test,
    )
    prepare(root, environment, wanted, environ)


def _start_in(
    environment: Environment,
    root: Path,
    argv: Sequence[str],
    invocation: Invocation,
    environ: MutableMapping[str, str],
    foreign: Callable[[], Any],
) -> int:
    """Start in the environment: here if this process runs in it (or there is none), else in its Python."""
    if invocation.flags.exit:
        return 0
    for name, default in QUIET_PACKAGES.items():
        environ.setdefault(name, default)
    exists = environment.python.exists()
    if invocation.tests:
        return run_checks(environment.python if exists else Path(sys.executable), root, invocation.words, environ)
    if environment.is_active() or not exists:
        return start(invocation, foreign)
    command = [str(environment.python), str(root / "launch.py"), *argv]
    return replace_process(command, {**environ, PREPARED: str(environment.folder)})


def start(invocation: Invocation, foreign: Callable[[], Any] = lambda: None) -> int:
    """Run the subcommand or the server in this process, after naming the flags that have no effect."""
    if invocation.command is not None:
        with without_garbage_collection():
            command = load_command(invocation.command, invocation.words)
            more = {"foreign": foreign()} if takes_extensions(invocation.command) else {}
        return command(invocation.words, **more)
    for flag, reason in without_effect(invocation.flags).items():
        say(f"{flag} is accepted and has no effect: {reason}")
    with without_garbage_collection():
        serve: Callable[..., int] = import_module("webui").main
        given = foreign()
    return serve(invocation.flags, given)


def replace_process(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Go on as `command`. Windows cannot replace a process: there it is waited for, and it handles Ctrl+C itself."""
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], list(command), dict(environ))
    with subprocess.Popen(command, env=dict(environ)) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
