"""`python launch.py doctor`: what the program runs on, what it finds, and what is wrong, each fault with its remedy.

Standard library only, and nothing is installed first: it answers where the set-up fails.
"""

import argparse
import os
import platform
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from modules.cli.running import flags_of, run_guarded
from modules.flags.flags import PATHS, add_arguments
from modules.setup.environment import Environment, command_of
from modules.setup.hardware import ThisMachine, nvidia_smi
from modules.setup.installed import installed_versions, read_pins, unsatisfied
from modules.setup.pip import Pip
from modules.setup.process import Run, Runner
from modules.setup.stamp import KERNELS, NODEPS, PACKAGES, REQUIREMENTS
from modules.setup.torch_choice import TORCH_VERSION, choice_by_hardware
from modules.setup.torch_question import ASK_TORCH, MEASURE_DEVICE, gains_by_kernels, what_to_expect
from modules.system.bounded import read_json, read_json_file
from modules.system.cores import (
    THREADS_VARIABLE,
    Cores,
    core_groups,
    cores_here,
    divide,
    in_words,
    threads_asked,
    usable_cores,
)
from modules.system.model_folders import files_below
from modules.system.paths import Paths, resolve_paths
from modules.version import VERSION

ROOT = Path(__file__).resolve().parent.parent.parent
GB = 1_000_000_000
MIN_DISK_BYTES = 5 * GB
"""Below this neither an installation nor a few hundred large images fit."""
MIN_MEMORY_BYTES = 2 * GB
WHEELS_GLIBC = (2, 28)
"""What PyTorch's packages for Linux are built for (manylinux_2_28)."""
CAPABILITY_VARIABLE = "ATEN_CPU_CAPABILITY"
MODEL_SUFFIXES = frozenset((".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".onnx", ".sft", ".gguf"))
CHECKPOINTS = "checkpoints"
WRONG_RESULT = "gives wrong numbers"
"""As `modules.memory.device_probe` says it."""
DATABASES = ("jobs.sqlite", "history.sqlite")


@dataclass
class Findings:
    """Lines by heading, what is wrong, and what works slower than it could: each with what to do."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def heading(self, title: str) -> None:
        self.lines += ["", title] if self.lines else [title]

    def fact(self, name: str, text: str) -> None:
        self.lines.append(f"  {name + ':':<22} {text}")

    def fault(self, text: str) -> None:
        self.faults.append(text)


def main(argv: Sequence[str]) -> int:
    """Print what is found. Exit code 0, or 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        prog="launch.py doctor", description="Say what the program runs on, what it finds, and what is wrong."
    )
    add_arguments(parser, (PATHS,))
    parser.add_argument("--measure", action="store_true", help="measure first what the device computes fast (20 s)")
    arguments = parser.parse_args(argv)
    return run_guarded(lambda: _run(resolve_paths(flags_of(arguments), ROOT), arguments.measure))


def _run(paths: Paths, measures: bool = False) -> int:
    environment, run = Environment.of(paths.root, os.environ), Runner(os.environ)
    problem = measure_device(paths, environment, run) if measures else ""
    found = examine(paths, environment, run)
    if problem:
        found.fault(problem)
    print("\n".join(found.lines))
    if found.slow:
        print("\nWorks, but slower than it could:", *(f"  - {reason}" for reason in found.slow), sep="\n")
    if not found.faults:
        print("\nNothing is broken." if found.slow else "\nNothing is wrong.")
        return 0
    print("\nWrong:")
    for fault in found.faults:
        print(f"  - {fault}")
    return 1


def examine(paths: Paths, environment: Environment, run: Run) -> Findings:
    """Everything, in the order in which it is printed. `run` starts programs: nvidia-smi, git, the Python of .venv."""
    found = Findings()
    found.heading("Versions")
    _versions(found, paths.root, environment, run)
    found.heading("Device")
    _device(found, environment, run)
    found.heading("Space")
    _space(found, paths)
    found.heading("Models")
    _models(found, paths)
    found.heading("Data folder")
    _data(found, paths, "numba" in packages_of(environment))
    return found


# -- versions ----------------------------------------------------------------------------------------------------------


def _versions(found: Findings, root: Path, environment: Environment, run: Run) -> None:
    commit = ""
    if (root / ".git").exists() and shutil.which("git"):
        answer = run(["git", "-C", str(root), "rev-parse", "--short", "HEAD"])
        commit = f", commit {answer.output.strip()}" if answer.ok else ""
    found.fact("program", f"Featherweight {VERSION}{commit}")
    found.fact("Python", f"{platform.python_version()} ({sys.executable})")
    found.fact("system", platform.platform())
    packages, start = packages_of(environment), command_of(root)
    found.fact("packages in", str(environment.folder) if environment.python.exists() else f"{sys.prefix} (no .venv)")
    for name in ("torch", "gradio", "diffusers", "transformers", "fastapi"):
        found.fact(name, packages.get(name, "not installed"))
    if environment.folder.exists() and not environment.is_usable:
        found.fault(
            f"The virtual environment {environment.folder} does not work: its Python or pip is missing. "
            f"Delete the folder and start {start}, which makes it again."
        )
    if "torch" not in packages:
        old = old_glibc(glibc_version())
        found.fault(old or f"PyTorch is not installed. Start {start} once: it installs what is needed.")
    elif packages["torch"].partition("+")[0] != TORCH_VERSION:
        found.fault(
            f"PyTorch is {packages['torch']}, and {TORCH_VERSION} is needed. Start {start} --reinstall-torch once."
        )
    missing = [name for step in (PACKAGES, NODEPS) for name in _missing(root / REQUIREMENTS[step], packages)]
    if missing and "torch" in packages:
        shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
        found.fault(f"{len(missing)} packages are missing or have another version: {shown}. Start {start} once.")


def glibc_version() -> tuple[int, ...] | None:
    """Return the version of this Python; None on systems without it."""
    name, version = platform.libc_ver()
    found = re.match(r"(\d+)\.(\d+)", version) if name == "glibc" else None
    return tuple(map(int, found.groups())) if found else None


def in_digits(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def old_glibc(version: tuple[int, ...] | None) -> str | None:
    """Why PyTorch cannot be installed on Linux, with what to do; None where glibc is new enough, or not asked for."""
    if sys.platform != "linux" or (version is not None and version >= WHEELS_GLIBC):
        return None
    here = f"this system has glibc {in_digits(version)}" if version else "this system has another one (musl)"
    return (
        f"PyTorch is not installed, and its packages need glibc {in_digits(WHEELS_GLIBC)} or newer; {here}. Run the "
        "program in its container (Dockerfile) or on a newer system, or install a PyTorch that was built for this one "
        "with TORCH_COMMAND."
    )


def packages_of(environment: Environment) -> dict[str, str]:
    """Normal name -> version, of the virtual environment, or where there is none, of this Python."""
    if environment.python.exists():
        return environment.installed()
    return installed_versions(Path(one) for one in sys.path if one and Path(one).is_dir())


def _missing(file: Path, packages: Mapping[str, str]) -> list[str]:
    try:
        return unsatisfied(read_pins(file.read_text(encoding="utf-8")), packages)
    except (OSError, ValueError):
        return []  # a program folder without it: git status says so


# -- device ------------------------------------------------------------------------------------------------------------


def _device(found: Findings, environment: Environment, run: Run) -> None:
    cores = cores_here()
    limited = f", of which this container may use {cores.quota:g}" if cores.quota is not None else ""
    found.fact("CPU", f"{cpu_name()}, {cores.physical} cores ({cores.logical} threads){limited}")
    found.slow += slow_cores(cores, os.environ)
    parts = [in_words(number for group in part for number in group) for part in divide(core_groups(usable_cores()), 2)]
    found.fact("Two workers on it", f"cores {parts[0]} and {parts[1]}" if parts[0] else "share its one core")
    cards = nvidia_cards(run)
    for card in cards:
        found.fact("GPU", card)
    machine = ThisMachine(run, Pip(environment.python, run))
    others = [adapter for adapter in machine.adapters() if adapter.maker and not (cards and adapter.maker == "NVIDIA")]
    for adapter in others:
        found.fact("GPU", str(adapter))
    if not cards and not others:
        found.fact("GPU", "none that this system lists")
    found.fact("PyTorch fits", choice_by_hardware(machine).reason)
    answer = run([_python_of(environment), "-c", ASK_TORCH])
    try:
        facts = read_json(answer.output.splitlines()[-1]) if answer.ok else None
    except (ValueError, IndexError):
        facts = None
    if facts is None:
        reason = next(iter(reversed(answer.output.strip().splitlines())), f"exit status {answer.returncode}")
        found.fact("PyTorch computes on", "nothing: it cannot be imported")
        if "No module named 'torch'" not in reason:
            found.fault(f"PyTorch cannot be imported: {reason}. Start python launch.py --reinstall-torch once.")
        return
    found.fact("PyTorch computes on", facts["device"])
    if facts["type"] == "cpu":
        instructions = facts.get("instructions", "")
        found.fact("instructions", what_to_expect(facts))
        kernels = _missing(ROOT / REQUIREMENTS[KERNELS], packages_of(environment)) if gains_by_kernels(facts) else []
        if kernels:
            found.slow.append(
                f"This CPU computes faster with compiled kernels, and {', '.join(kernels)} is missing. "
                f"Run {_python_of(environment)} -m pip install -r {REQUIREMENTS[KERNELS]}."
            )
        found.slow += slow_instructions(instructions, platform.machine(), os.environ)
    found.fact("rows in 8 bits", facts.get("rows", "not told"))
    if decoding := facts.get("decoding"):
        found.fact("8 bits on the GPU", decoding)
    if cards and facts["type"] == "cpu":
        found.fault(
            f"There is an NVIDIA GPU, and PyTorch {facts['version']} does not use it. Start python launch.py "
            "--reinstall-torch once; with an older driver add --torch cu126."
        )


def _python_of(environment: Environment) -> str:
    return str(environment.python if environment.python.exists() else Path(sys.executable))


def measure_device(paths: Paths, environment: Environment, run: Run) -> str:
    """Have PyTorch measure its device again; why that failed, and what to do, or nothing."""
    answer = run([_python_of(environment), "-c", MEASURE_DEVICE, str(paths.cache_dir / "device.json")])
    if answer.ok:
        return ""
    reason = next(iter(reversed(answer.output.strip().splitlines())), f"exit status {answer.returncode}")
    return f"The device could not be measured: {reason}. Choices follow its name until it can; try a newer driver."


def slow_cores(cores: Cores, environment: Mapping[str, str]) -> list[str]:
    """Why fewer cores compute than the machine has."""
    found = []
    if cores.quota is not None and cores.quota < 1:
        found.append(
            f"This container may use {cores.quota:g} of a core: one thread computes, and waits the rest of the time. "
            "Give it more (docker run --cpus, CPUQuota)."
        )
    elif cores.quota is not None and cores.quota < cores.physical:
        found.append(f"This container may use {cores.quota:g} of {cores.physical} cores (docker run --cpus, CPUQuota).")
    asked, problem = threads_asked(environment, cores.logical)
    if problem:
        found.append(f"{problem}. Correct it, or take it out of the environment.")
    elif asked is not None and asked < cores.physical:
        found.append(f"{THREADS_VARIABLE} has {asked} of {cores.physical} cores compute. Take it out for all of them.")
    return found


def slow_instructions(instructions: str, machine: str, environment: Mapping[str, str]) -> list[str]:
    """Why PyTorch's own loops compute number by number on an x86 CPU."""
    if instructions != "DEFAULT" or machine.lower() not in ("x86_64", "amd64"):
        return []
    if environment.get(CAPABILITY_VARIABLE):
        return [f"{CAPABILITY_VARIABLE}={environment[CAPABILITY_VARIABLE]} has PyTorch not use AVX2. Take it out."]
    return [
        "This CPU has no AVX2, or the virtual machine hides it: steps take several times as long, and int8 products "
        "and attention in int8 do not pay. Small images and few steps help (Settings > Optimizations); in a virtual "
        "machine, pass the host's CPU on."
    ]


def cpu_name() -> str:
    """Return the name as in /proc/cpuinfo, or what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named.group(1) if named else platform.processor() or platform.machine()


def nvidia_cards(run: Run) -> list[str]:
    """Each NVIDIA GPU with memory and driver, as nvidia-smi tells."""
    program = nvidia_smi()
    if program is None:
        return []
    words = [program, "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader"]
    answer = run(words)
    if not answer.ok:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.output.splitlines()]
    return [f"{row[0]}, {row[1]} ({row[2]} free), driver {row[3]}" for row in rows if len(row) == 4]


# -- space -------------------------------------------------------------------------------------------------------------


def _space(found: Findings, paths: Paths) -> None:
    places = {"disk of the data": paths.data_dir, "disk of the program": paths.root}
    for name, place in places.items():
        here = next((one for one in (place, *place.parents) if one.exists()), Path(place.anchor))
        try:
            free = shutil.disk_usage(here).free
        except OSError as error:
            found.fault(f"{here} does not say how much space is free: {error.strerror}. Check that disk.")
            continue
        found.fact(name, f"{free / GB:.1f} GB free ({place})")
        if free < MIN_DISK_BYTES and (name == "disk of the data" or not paths.data_dir.is_relative_to(paths.root)):
            found.fault(
                f"The disk of {place} has {free / GB:.1f} GB left. Free some: launch.py offload-clean deletes streamed "
                "weights, and outputs/trash holds deleted images."
            )
    free_bytes = memory_free_bytes()
    if free_bytes is None:
        found.fact("memory", "this system does not say")
        return
    found.fact("memory", f"{free_bytes / GB:.1f} GB free")
    if free_bytes < MIN_MEMORY_BYTES:
        found.fault(
            f"{free_bytes / GB:.1f} GB of memory are free. Close other programs, or start with --lowvram and 8-bit "
            "weights (Settings > Optimizations)."
        )


def memory_free_bytes(info: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what a new program can have: of the machine, and of the container where that is less. None: not told."""
    try:
        named = re.search(r"^MemAvailable:\s+(\d+) kB$", info.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    if named is None:
        return None
    free = int(named.group(1)) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        files = re.search(r"^inactive_file (\d+)$", (cgroup / "memory.stat").read_text(encoding="ascii"), re.MULTILINE)
        return max(min(free, limit - used + int(files.group(1) if files else 0)), 0)
    except (OSError, ValueError):  # no container, or one without a limit
        return free


# -- models ------------------------------------------------------------------------------------------------------------


def model_folders(paths: Paths) -> dict[str, tuple[Path, ...]]:
    """Every folder that is searched, by what lies there."""
    return {
        CHECKPOINTS: paths.checkpoint_dirs,
        "VAE": paths.vae_dirs,
        "LoRA": paths.lora_dirs,
        "embeddings": paths.embeddings_dirs,
        "hypernetworks": paths.hypernetwork_dirs,
        **{f"upscalers {name}": folders for name, folders in paths.all_upscaler_dirs.items()},
        **{f"faces {name}": folders for name, folders in paths.all_face_dirs.items()},
    }


def count_models(folder: Path) -> int:
    """Count the model files below a folder."""
    return sum(path.suffix.lower() in MODEL_SUFFIXES for path in files_below(folder))


def _models(found: Findings, paths: Paths) -> None:
    total: dict[str, int] = {}
    elsewhere = {folder for folders in paths.extra_dirs.values() for folder in folders}
    for what, folders in model_folders(paths).items():
        for folder in folders:
            there = folder.is_dir()
            count = count_models(folder) if there else 0
            total[what] = total.get(what, 0) + count
            if count or what == CHECKPOINTS:
                found.fact(what, f"{count} in {folder}" if there else f"{folder} is not there")
    for folder in sorted(elsewhere):
        if not folder.is_dir():
            found.fault(
                f"{folder} is not there, and {paths.extra_folders_file} names it. Mount that disk, or take the line "
                "out of the file."
            )
        elif not os.access(folder, os.R_OK | os.X_OK):
            found.fault(f"{folder} may not be read. Change its permissions.")
    found.faults += paths.notices
    if not total[CHECKPOINTS]:
        found.fault(f"There is no checkpoint. Put one into {paths.checkpoint_dirs[0]}.")


# -- the data folder ---------------------------------------------------------------------------------------------------


def _data(found: Findings, paths: Paths, has_numba: bool) -> None:
    found.fact("folder", str(paths.data_dir))
    _writable(found, paths.data_dir)
    for file in (paths.config_file, paths.ui_config_file):
        _json_file(found, file)
    for file in paths.styles_files:
        if not any(sign in file.name for sign in "*?[") and file.exists():
            _readable(found, file, lambda path: f"{max(len(path.read_text('utf-8-sig').splitlines()) - 1, 0)} lines")
    for name in DATABASES:
        _readable(found, paths.data_dir / name, _database)
    _measured(
        found, "int8 products", paths.cache_dir / "int8.json", partial(_ratio_lines, "a product in the compute dtype")
    )
    if not has_numba:
        found.fact(
            "attention in int8", "not used: numba is not installed (.venv: pip install -r requirements-kernels.txt)"
        )
    else:
        _measured(found, "attention in int8", paths.cache_dir / "attention.json", partial(_ratio_lines, "PyTorch's"))
    _measured(found, "speed of the device", paths.cache_dir / "device.json", _probe_lines)
    _measured(found, "threads", paths.cache_dir / "threads.json", _thread_lines)


def _writable(found: Findings, folder: Path) -> None:
    try:
        here = next(one for one in (folder, *folder.parents) if one.exists())
        with tempfile.TemporaryFile(dir=here) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        found.fact("writable", "no")
        found.fault(
            f"{folder} cannot be written to: {error.strerror}. Change its permissions, or choose another --data-dir."
        )
    else:
        found.fact("writable", "yes")


def _json_file(found: Findings, file: Path) -> None:
    def entries(path: Path) -> str:
        read = read_json_file(path)
        if not isinstance(read, dict):
            raise ValueError("it is no JSON object")
        return f"{len(read)} entries"

    _readable(found, file, entries)


def _readable(found: Findings, file: Path, describe: Callable[[Path], str]) -> None:
    """Read what a file holds; a fault where it cannot be read."""
    if not file.exists():
        found.fact(file.name, "not there yet")
        return
    try:
        found.fact(file.name, describe(file))
    except (OSError, ValueError, sqlite3.Error) as error:
        found.fact(file.name, "cannot be read")
        found.fault(
            f"{file} cannot be read: {error}. Put a copy of it back (see backups/), correct it, or move it away: "
            "then the program begins a new one."
        )


def _database(path: Path) -> str:
    """Checked without waiting for a server that writes, and without changing anything."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as db:
        said = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if said != "ok":
            raise sqlite3.DatabaseError(str(said))
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return f"in order, {len(tables)} tables, {path.stat().st_size / 1e6:.1f} MB"


def _measured(found: Findings, name: str, file: Path, describe: Callable[[Any], Iterator[str]]) -> None:
    """Read what was measured on this machine and others that use the folder."""
    try:
        lines = list(describe(read_json_file(file)))
    except FileNotFoundError:
        lines = []
    except (OSError, ValueError, AttributeError):
        found.fault(f"{file} cannot be read. Delete it: the program measures again.")
        return
    found.fact(name, lines[0] if lines else "not measured yet")
    for line in lines[1:]:
        found.fact("", line)


def _ratio_lines(usual: str, answers: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """How long something takes beside what is `usual`."""
    for key, answer in answers.items():
        ratio = answer.get("ratio")
        if isinstance(ratio, int | float):
            yield f"{ratio:.2f} of the time of {usual} ({key})"
        else:
            yield f"not possible: {answer.get('problem')} ({key})"


def _probe_lines(answers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """List what each device was measured to take, and what was left out."""
    for key, answer in answers.items():
        yield key
        for name, seconds in dict(answer.get("seconds") or {}).items():
            yield f"  {name}: {1000 * seconds:.2f} ms"
        for name, problem in dict(answer.get("problems") or {}).items():
            yield f"  {name}: not used, it {problem}" if problem == WRONG_RESULT else f"  {name}: left out ({problem})"


def _thread_lines(answers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for key, answer in answers.items():
        times = ", ".join(f"{count}: {ms:g} ms" for count, ms in dict(answer.get("milliseconds") or {}).items())
        doubt = "; others computed meanwhile, so it will be measured again" if answer.get("doubted") else ""
        yield f"{answer.get('threads')} compute{f' ({times})' if times else ''} on {key}{doubt}"
