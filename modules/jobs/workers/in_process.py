"""The executor that computes in this process, under the engine's lock."""

from dataclasses import replace

from modules.jobs.job import Job
from modules.processing.engine.engine import Engine
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.record.output import Output
from modules.processing.request.result import Result
from modules.scripts.extension import Fault
from modules.scripts.library import ScriptLibrary
from modules.scripts.running import run_with_scripts


class InProcessExecutor:
    """Runs jobs one at a time with one engine; `output` saves their images, `scripts` take part, `planner` learns."""

    def __init__(
        self,
        engine: Engine,
        output: Output,
        scripts: ScriptLibrary | None = None,
        estimator: MemoryEstimator | None = None,
    ) -> None:
        self._engine = engine
        self._output = output
        self._scripts = scripts or ScriptLibrary()
        self._estimator = estimator

    def run(self, job: Job) -> Result:
        """Compute the job in the calling thread."""
        # Under the lock: a load in the background imports the same packages, whose lazy modules must not meet halfway.
        with self._engine.lock:
            import modules.processing.pipeline.generate  # noqa: F401
        if job.request.settings.system.enable_console_prompts:
            print(job.request.prompt, flush=True)
        output = replace(self._output, task_id=job.task_id)
        result = run_with_scripts(job.request, self._engine, output, job, self._scripts, job.made, job.task_id)
        if self._estimator is not None and job.request.script is None and not job.is_let_in:
            self._estimator.learn_later(job.request, result)
        if job.request.settings.system.samples_log_stdout:
            for infotext in result.info.infotexts:
                print(infotext, flush=True)
        return result

    def extension_facts(self) -> dict[str, tuple[tuple[Fault, ...], float]]:
        """Return by name of an extension what of it failed in this process, and the seconds per image of the last
        job."""
        return {name: (tuple(one.faults), one.image_s) for name, one in self._scripts.extensions.items()}

    def close(self) -> None:
        """Free the model."""
        if self._estimator is not None:
            self._estimator.close()
        self._engine.close()
