"""The executor that computes in this process, under the engine's lock."""

from modules.jobs.job import Job
from modules.processing.engine import Engine
from modules.processing.output import Output
from modules.processing.results import Result


class InProcessExecutor:
    """Runs jobs one at a time with one engine; `output` saves their pictures."""

    def __init__(self, engine: Engine, output: Output) -> None:
        self._engine = engine
        self._output = output

    def run(self, job: Job) -> Result:
        """Compute the job in the calling thread."""
        # Under the lock: a load in the background imports the same packages, whose lazy modules must not meet halfway.
        with self._engine.lock:
            from modules.processing.txt2img import txt2img

        return txt2img(job.request, self._engine, self._output, job)

    def close(self) -> None:
        """Free the model."""
        self._engine.unload()
