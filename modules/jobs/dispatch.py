"""Works the line off: a thread for each lane, what happens when a worker is lost, images let into a task."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from modules.errors import FeatherweightError, Interrupted
from modules.jobs.job import Ending, Entry, Job, JobStatus, WorkerLostError
from modules.jobs.lanes import Lane
from modules.jobs.line import Line
from modules.jobs.tasks import Task
from modules.jobs.when_done import WhenDone
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

PRUNED_EVERY = 50  # ended jobs
MAX_LET_IN = 16  # image jobs between two steps of a task
LOSS_S = 1.0  # how long a lane may take to notice that its worker was ended
REFUSED_S = 20.0  # how long an image waits that had no room beside a task, before memory is looked at again
RECORD_RETRY_S = 2.0
HELD_RETRY_S = 5.0  # how often it is looked whether a model that was missing is back
STOPPED = "The server was stopped before the job ended; it goes on when the server is started again."


@dataclass
class Admission:
    """Whether there is room for an image beside a task. One that had none is not looked at again for a while."""

    has_room: Callable[[Job], bool]
    _refused: dict[str, float] = field(default_factory=dict)  # when, by task id

    def __call__(self, job: Job) -> bool:
        now = time.monotonic()
        if now - self._refused.get(job.task_id, -REFUSED_S) < REFUSED_S:
            return False
        if self.has_room(job):
            return True
        self._refused[job.task_id] = now
        return False


class Dispatcher:
    """Build it once for a line; `start()` begins to work, `close()` ends. What lanes hold is changed under the line's
    lock."""

    def __init__(self, line: Line, lanes: Sequence[Lane]) -> None:
        self._line = line
        self._store = line.store
        self._lanes = tuple(lanes)
        self._bells = {lane.name: threading.Condition(line.lock) for lane in self._lanes}
        self._threads: list[threading.Thread] = []
        self._ended = 0
        self._is_closing = False
        self._when_done = WhenDone.NOTHING
        self._on_done: Callable[[WhenDone], None] = lambda action: None
        self._has_worked = False  # since the line was empty
        line.turns.attach(self._lanes, self._ring)

    def start(self) -> None:
        """Start the lanes' threads; what was submitted earlier begins now."""
        assert not self._threads, "the lanes are started twice"
        self._threads = [
            start_loop(f"featherweight-lane-{lane.name}", partial(self._work, lane)) for lane in self._lanes
        ]

    def wake(self) -> None:
        """A lane can take work, or no longer can."""
        with self._line.lock:
            self._ring(None)

    def close(self, timeout_s: float = 30.0) -> None:
        """Interrupt what runs, leave all of it on record for the next start, and end the workers. May be called
        again."""
        with self._line.lock:
            if self._is_closing:
                return
            self._is_closing = True
            waiting, running = self._line.turns.take_no_more(), self._line.running()
        for entry in waiting:
            entry.end(JobStatus.INTERRUPTED, Interrupted(STOPPED))
        for entry in running:
            entry.interrupt()
        self._join(timeout_s)
        left = [lane for lane in self._lanes if lane.is_busy]
        ended = [lane.executor for lane in self._lanes if lane not in left or lane.is_endable]
        if ended:
            with ThreadPoolExecutor(len(ended)) as together:  # processes take a moment each
                for _ in together.map(lambda executor: executor.close(), ended):
                    pass
        self._join(LOSS_S if any(lane.is_endable for lane in left) else 0.0)
        left = [lane for lane in self._lanes if lane.is_busy]
        if left:
            log.warning("What runs did not stop within %.0f s; it is tried again at the next start.", timeout_s)
        for lane in left:
            for unfinished in (lane.entry, lane.left):
                if unfinished is not None:
                    self._store.put_back(unfinished.task_id)
        if not left:
            self._store.file.close()

    def _join(self, timeout_s: float) -> None:
        """Wait for the lanes' threads, so long for all of them."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _ring(self, entry: Entry | None) -> None:
        """Something has changed: wake all lanes; for a new entry one that can do it, because waking all of many for
        each job would cost more than the job's record."""
        if entry is None:
            for bell in self._bells.values():
                bell.notify_all()
            return
        if self._line.is_paused:
            return
        for lane in self._lanes:
            is_free = lane.entry is None and not lane.is_rung and lane.is_ready()
            if is_free and lane.may_take(entry):
                lane.is_rung = True
                self._bells[lane.name].notify()
                return

    # -- when the line is worked off ---------------------------------------------------------------------------------

    @property
    def when_done(self) -> WhenDone:
        """Return what happens once when the line has been worked off."""
        return self._when_done

    def set_when_done(self, action: WhenDone) -> None:
        """Choose it."""
        with self._line.lock:
            self._when_done = action
            self._has_worked = self._line.waiting_count() > 0 or self._is_working

    def on_done(self, act: Callable[[WhenDone], None]) -> None:
        """Who does what was chosen; called in a thread of its own."""
        self._on_done = act

    def _action_when_done(self) -> WhenDone:
        """Return what to do now that nothing can be begun, once."""
        line = self._line
        if line.waiting_count() or line.is_paused or self._is_working or not self._has_worked:
            return WhenDone.NOTHING
        action, self._when_done, self._has_worked = self._when_done, WhenDone.NOTHING, False
        return action

    @property
    def _is_working(self) -> bool:
        return any(lane.is_busy for lane in self._lanes)

    # -- a lane's thread ---------------------------------------------------------------------------------------------

    def _work(self, lane: Lane) -> bool:
        """Do one piece of work; False when the server ends."""
        entry = self._next(lane)
        if entry is not None:
            self._run_to_its_end(lane, entry)
        return entry is not None

    def _next(self, lane: Lane) -> Entry | None:
        """Return what to do next; None when the server ends. While nothing can be begun, changes of the record that
        could not be written are tried again, and so are jobs whose model was missing."""
        line, store = self._line, self._store
        while True:
            with line.lock:
                lane.is_rung = False
                if self._is_closing:
                    return None
                entry = line.turns.take(lane)
                if entry is not None:
                    lane.entry, self._has_worked = entry, True
                    return entry
                action = self._action_when_done()
                if action is WhenDone.NOTHING:
                    looks = (line.has_held and not line.is_paused) or len(self._lanes) > 1
                    wait_s = HELD_RETRY_S if looks else None
                    self._bells[lane.name].wait(RECORD_RETRY_S if store.file.is_behind else wait_s)
            if action is not WhenDone.NOTHING:
                name = "featherweight-when-done"
                threading.Thread(target=self._on_done, args=(action,), name=name, daemon=True).start()
            if store.file.is_behind:
                store.file.flush()

    def _run_to_its_end(self, lane: Lane, entry: Entry) -> None:
        try:
            self._run(lane, entry)
        except BaseException as error:  # without this thread every later job would wait for ever
            log.exception("%s could not be brought to its end", entry.task_id)
            if not entry.status.is_final:
                self._fail(entry, _ours(error))
        finally:
            with self._line.lock:
                lane.entry = None
                self._line.turns.left(entry)
                self._line.known.forget()

    def _fail(self, entry: Entry, error: FeatherweightError) -> None:
        """End an entry whose own end could not be recorded; what it has made until then stands in the record."""
        try:
            self._store.ended(entry.task_id, JobStatus.FAILED, str(error))
            self._line.images.forget(entry.task_id)
        finally:
            entry.end(JobStatus.FAILED, error)

    def _run(self, lane: Lane, entry: Entry) -> None:
        self._store.started(entry.task_id)
        entry.standing.attempts += 1
        if isinstance(entry, Task):
            entry.on_note, entry.on_let_in = self._store.note, self.let_images_in
        entry.begin()
        began = time.monotonic()
        try:
            ending, error = self._computed(lane, entry)
        except WorkerLostError as lost:
            found = self._after_loss(lane, entry, lost)
            if found is None:
                return
            ending, error = found
        if self._is_closing and ending.status is JobStatus.INTERRUPTED:
            self._store.put_back(entry.task_id)
            error = error or Interrupted(STOPPED) if isinstance(entry, Task) else error
        else:
            text = str(error) if error is not None else None
            self._store.ended(entry.task_id, ending.status, text, ending.outcome or None)
            self._line.images.forget(entry.task_id)
        entry.end(ending.status, error)
        self._ended += 1
        if self._ended % PRUNED_EVERY == 0:
            self._store.prune(self._line.options().kept_records)
        log.info("%s: %s in %.1f s", entry.task_id, ending.status.value, time.monotonic() - began)

    def _computed(self, lane: Lane, entry: Entry) -> tuple[Ending, FeatherweightError | None]:
        around = lane.around_task if isinstance(entry, Task) else nullcontext
        try:
            with around():
                return entry.compute(lane.executor), None
        except WorkerLostError:
            raise
        except Interrupted as stop:
            return Ending(JobStatus.INTERRUPTED, {}), stop
        except FeatherweightError as error:
            log.warning("%s (%s): %s", entry.task_id, entry.title, error)
            return Ending(JobStatus.FAILED, {}), error
        except BaseException as error:
            log.exception("%s (%s) failed", entry.task_id, entry.title)
            return Ending(JobStatus.FAILED, {}), _ours(error)

    def _after_loss(
        self, lane: Lane, entry: Entry, lost: WorkerLostError
    ) -> tuple[Ending, FeatherweightError | None] | None:
        """Its worker is gone: put it back in line, with the images that it has, and return None; or how it ended."""
        if entry.is_interrupt_requested:  # the user's, or the server's that ends
            return Ending(JobStatus.INTERRUPTED, {}), Interrupted(str(lost))
        if lost.avoid:
            entry.standing.avoids |= {lost.avoid}
            entry.standing.attempts = max(entry.standing.attempts - 1, 0)
            self._store.put_back(entry.task_id)
        elif entry.standing.attempts > self._line.options().retries:
            tries = entry.standing.attempts
            text = f"{lost} That happened {tries} times while this job ran; it is not tried again."
            return Ending(JobStatus.FAILED, {}), FeatherweightError(text)
        if isinstance(entry, Job):
            entry.made = {item.image.key: item.image for item in self._line.images.made_by(entry)}
        elif isinstance(entry, Task):
            entry.noted = self._store.notes(entry.task_id)
        entry.put_back(f"{lost} The job was tried again.")
        log.warning("%s (%s): %s It is tried again.", entry.task_id, entry.title, lost)
        with self._line.lock:
            lane.entry = None
            self._line.turns.put_back(entry)
        return None

    # -- images between two steps of a task --------------------------------------------------------------------------

    def let_images_in(self, task: Task, admits: Callable[[Job], bool]) -> int:
        """Have the image jobs that wait made now by the lane of `task`, which is between two of its steps; returns how
        many. To be called in the task's own thread.

        `admits` is asked of the first of them whether there is room beside the task; those that it refuses stay in
        line. At most `MAX_LET_IN` are made, so that the task goes on too. Where the server ends meanwhile, the task is
        interrupted.
        """
        line = self._line
        with line.lock:
            lane = next((lane for lane in self._lanes if lane.entry is task), None)
        if lane is None:
            return 0
        asked = [entry for entry in line.first(MAX_LET_IN) if isinstance(entry, Job)]
        admitted = {job.task_id for job in asked if admits(job)}
        count = 0
        while admitted and (job := self._let_in(lane, task, admitted)) is not None:
            self._run_to_its_end(lane, job)
            count += 1
        with line.lock:
            lane.entry, lane.left = task, None
            task.standing.is_left = False
        if count:
            with lane.around_task():  # makes room for the task again
                pass
        return count

    def _let_in(self, lane: Lane, task: Task, admitted: set[str]) -> Job | None:
        with self._line.lock:
            if task.is_interrupt_requested:
                return None
            entry = self._line.turns.take(lane, admitted)
            if entry is None:
                return None
            assert isinstance(entry, Job)
            entry.is_let_in = True
            lane.entry, lane.left = entry, task
            task.standing.is_left = True
            return entry


def _ours(error: BaseException) -> FeatherweightError:
    return FeatherweightError(f"The job failed: internal error {type(error).__name__}: {error}. The log says more.")
