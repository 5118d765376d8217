"""A real server in a process of its own whose model computes nothing: to be killed, stopped and started again."""

import json
import os
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from PIL import Image

from tests.forked import forked
from tests.ports import reserved_port
from tests.recordings import TINY

STEP_S = 0.01


class Refused(Exception):  # noqa: N818 - an answer like another
    """An answer that is not 200: its status and its text."""


class TinyServer:
    """One start of the server on a data folder. Without the page, which takes most of the time of a start."""

    def __init__(self, data: Path, *words: str) -> None:
        self.port = reserved_port()
        self.log = data.with_suffix(f".{self.port}.log")
        own = ["--nowebui", "--port", str(self.port), "--data-dir", str(data), "--ckpt", str(TINY)]
        flags = [*own, "--skip-load-model-at-start", "--use-cpu", "all", *words]
        self._process = forked().Process(target=serve, args=(flags, str(self.log)), daemon=True)
        self.log.touch()
        self._process.start()

    def ask(self, path: str, body: object = None, method: str | None = None, timeout_s: float = 120.0) -> Any:
        """The reply to a GET, or to a POST where there is a body. Raises OSError when none comes, `Refused` for 4xx."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
            reply = connection.getresponse()
            text = reply.read().decode()
        finally:
            connection.close()
        if reply.status != 200:
            raise Refused(reply.status, text)
        return json.loads(text)

    def wait_until_up(self) -> None:
        """Return when it answers."""
        until = time.monotonic() + 180
        while time.monotonic() < until and self._process.is_alive():
            with suppress(OSError):
                self.ask("/internal/ping")
                return
            time.sleep(0.05)
        raise AssertionError(f"the server does not answer:\n{self.log.read_text()}")

    def kill(self) -> None:
        """kill -9, as a crash or a loss of power ends it."""
        self._process.kill()
        self._process.join(10)

    def signal(self, number: int) -> None:
        """As a terminal or a service manager sends it."""
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return int(self._process.pid)

    def exit_code(self, timeout_s: float) -> int | None:
        """Wait for the end; None when it did not come."""
        self._process.join(timeout_s)
        code: int | None = self._process.exitcode
        return code


def serve(flags: list[str], log: str) -> None:
    """Serve with plain images; what is printed goes into the log."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    import modules.assembly as assembly
    import webui
    from modules.flags.flags import parse_flags
    from modules.jobs.job import Job
    from modules.processing.record.output import Output
    from modules.processing.request.result import GeneratedImage, Result
    from tests.fakes import CHECKPOINT, FakeExecutor, name_context_of, result_of

    class SavingExecutor(FakeExecutor):
        """Steps, makes a plain image for each batch, and saves it as the program does."""

        def __init__(self, engine: object, output: Output, *others: object) -> None:
            self._output = output

        def run(self, job: Job) -> Result:
            request = job.request
            images: list[GeneratedImage] = []
            interrupted = False
            for batch in range(request.batch_count):
                key = f"0/{batch}/0"
                if key in job.made:
                    images.extend(filter(None, [job.made[key].read()]))
                    continue
                for _ in range(request.steps):
                    if interrupted := job.is_interrupt_requested:
                        break
                    time.sleep(STEP_S)
                if interrupted:
                    break
                plain = Image.new("RGB", request.size_px, (batch, 80, 80))
                image = GeneratedImage(plain, request.prompt, request.seed + batch, request.subseed, key=key)
                saved, _ = self._output.save(
                    image,
                    request,
                    name_context_of(request, CHECKPOINT),
                    on_path=lambda path, found, image=image: job.saving(image, path, found),  # type: ignore[misc]
                )
                images.append(saved)
                job.finished_image(saved)
            return result_of(request, images, interrupted)

    setattr(assembly, "InProcessExecutor", SavingExecutor)  # noqa: B010 - the name is not there for others
    sys.exit(webui.main(parse_flags(["--workers", "0", *flags])))
