// A job is known by its task id, which outlives a reload: each page finds its own job again.
(() => {
  const fw = window.featherweight;
  const POLL_MS = 1000;
  const GRACE_MS = 6000; // how long a job may be unknown to the server after the submission was answered
  const DOUBLE_CLICK_MS = 500; // what systems take for a double click, unless told otherwise
  const DOUBLE_CLICK_PX = { mouse: 5, touch: 30 };
  const ASK_MS = 250; // how long other pages have to say that a job is theirs
  const LOST = fw.t`The server was restarted before this job was done. The form is unchanged: press Generate to make it again.`;
  const NOT_TAKEN = fw.t`The server did not take this job. Press Generate again; if that does not help, the server's log says why.`;
  const REFUSED =
    fw.t`The job was not started: the server could not read a value of the form, or could not be reached. Its log says more.`;
  const ENDED = fw.t`Generating forever has ended.`;

  const channel = window.BroadcastChannel ? new BroadcastChannel("featherweight") : null;

  for (const tab of fw.tabs) {
    const KEY = `task.${tab.prefix}`;
    const SHOWN_KEY = `shown.${tab.prefix}`; // the last job of this form whose images were shown
    let timer = null;
    let task = "";
    let previewId = -1;
    let startedAt = 0;
    let answeredAt = 0; // when the submission was answered; 0 while it is under way
    let isKnown = false; // whether the server has answered for this job
    let stopping = ""; // what the user has asked for
    let pressed = ""; // the button that was pressed before the server knew the job
    let forever = false;
    let saysEnded = false; // generating forever has ended, which the last job's result, or its start, covers
    let restart = false;
    let enqueueing = ""; // the job that is being put in line behind the running one
    let beginning = null; // the click on Generate whose second half, if it is a double click, falls on Interrupt
    const LINE_KEY = `line.${tab.prefix}`;
    const inLine = () => JSON.parse(fw.kept(LINE_KEY) || "[]"); // jobs of this form that wait, in their order

    tab.task = () => task || keptTask().id;
    tab.isRunning = () => timer !== null;

    // Called by the Generate button: gives the job its id and starts to watch it.
    tab.start = () => {
      const id = `task(${Math.random().toString(36).slice(2)}${Date.now().toString(36)})`;
      if (enqueueing) return (enqueueing = id);
      remember(id, false);
      tab.clearMessages();
      watch(id);
      return id;
    };

    // Put the form in line. While a job runs, that one is watched on; its images come first.
    tab.enqueue = () => {
      if (enqueueing) return;
      if (timer !== null) enqueueing = "begun";
      tab.press("generate");
    };

    // Watch a job that was put in line elsewhere.
    tab.follow = (id) => {
      remember(id, false);
      tab.clearMessages();
      watchKnown(id);
    };

    // Called when the server took (or refused) the job.
    tab.submitted = () => {
      const isRefused = Boolean(tab.find("notice", ".fw-error"));
      if (!enqueueing) {
        answeredAt = Date.now();
        if (isRefused) fail();
        else if (pressed) poll();
      } else if (!isRefused) {
        if (timer === null) tab.follow(enqueueing); // the one before has ended meanwhile
        else fw.keep(LINE_KEY, JSON.stringify([...inLine(), enqueueing]));
      }
      enqueueing = "";
      fw.lookAtLine?.();
    };

    // Called when the form did not arrive, or its answer did not: the server may have the job all the same.
    tab.failed = async () => {
      if (!enqueueing) {
        const asked = task;
        const state = await stateOf(asked);
        if (asked === task && timer !== null && !isThere(state)) fail(REFUSED);
        return;
      }
      enqueueing = "";
      tab.message(REFUSED, true);
    };

    // The job of an earlier visit, unless another page of this browser watches it; `asked`: the user wants to see it.
    tab.resume = async (asked = false) => {
      const { id, isOver } = keptTask();
      if (!id || (!asked && (await isWatchedElsewhere(id)))) return;
      const state = await stateOf(id);
      if (!state || tab.isRunning()) return;
      if (!state.completed || !asked) await showEarlier(id);
      if (tab.isRunning()) return;
      if (state.active || state.queued) watchKnown(id);
      else if (state.completed) {
        await show(id, state, isOver && !asked);
        await watchNext();
      } else if (!isOver) lost(id, state);
    };

    // What stood on the stage before the job of this id.
    async function showEarlier(id) {
      const shown = fw.kept(SHOWN_KEY);
      if (!shown || shown === id || tab.images().length) return;
      const result = await fw.get(`internal/result?id_task=${encodeURIComponent(shown)}`).catch(() => null);
      if (result?.images.length && !tab.isRunning()) tab.showResult({ ...result, notices: [], seconds: null });
    }

    tab.toggleForever = () => {
      forever = !forever;
      tab.find("generate_box")?.classList.toggle("fw-forever", forever);
      tab.clearMessages();
      saysEnded = !forever;
      if (!forever) tab.message(ENDED);
      else if (!tab.isRunning()) tab.press("generate");
    };

    tab.endForever = () => {
      if (forever) tab.toggleForever();
    };

    // Interrupt, and begin again with the form as it now is.
    tab.restart = () => {
      restart = true;
      tab.press("interrupt");
    };

    function keptTask() {
      const [id, over] = (fw.kept(KEY) || "").split(" ");
      return { id, isOver: over === "over" };
    }

    const remember = (id, isOver) => fw.keep(KEY, isOver ? `${id} over` : id);

    const stateOf = (id) => fw.post("internal/progress", { id_task: id, live_preview: false }).catch(() => null);
    const isThere = (state) => Boolean(state && (state.active || state.queued || state.completed));

    // Watch a job that the server has.
    function watchKnown(id) {
      watch(id);
      answeredAt = startedAt;
    }

    function watch(id) {
      task = id;
      [restart, previewId, startedAt, answeredAt, isKnown, pressed] = [false, -1, Date.now(), 0, false, ""];
      ask("");
      const box = tab.find("generate_box");
      const hadFocus = tab.holds(document.activeElement, "generate");
      box?.classList.add("fw-running");
      if (hadFocus) tab.find("interrupt")?.focus({ preventScroll: true });
      draw({ progress: 0, textinfo: fw.t`submitting` });
      // On a phone the image stands above the form: it comes into sight with the job.
      if (window.matchMedia?.("(max-width: 760px)").matches && tab.isShown) tab.find("output")?.scrollIntoView?.({ block: "start" });
      if (timer) clearInterval(timer);
      timer = setInterval(poll, fw.settings.live_preview_refresh_period || POLL_MS);
      fw.keepAwake();
    }

    function stop() {
      clearInterval(timer);
      timer = null;
      ask("");
      const hadFocus = tab.holds(document.activeElement, "interrupt", "skip");
      tab.find("generate_box")?.classList.remove("fw-running");
      if (hadFocus) tab.find("generate")?.focus({ preventScroll: true });
      const box = tab.find("progress");
      if (box) box.hidden = true;
      document.title = "Featherweight";
      if (!fw.isRunning()) fw.letSleep();
    }

    // The job came to nothing. With a text, that is said.
    function fail(text) {
      if (timer !== null) stop();
      remember(task, true);
      tab.endForever();
      saysEnded = false;
      if (text) tab.message(text, true);
    }

    function lost(id, state) {
      task = id;
      fail(state.error || state.message || LOST);
    }

    async function poll() {
      const [asked, askedAt] = [task, Date.now()];
      let state;
      try {
        state = await fw.post("internal/progress", { id_task: task, id_live_preview: previewId, live_preview: true });
      } catch {
        if (asked !== task || timer === null) return;
        draw({ progress: null, textinfo: fw.t`the server does not answer; trying again` });
        if (!isKnown && !answeredAt && Date.now() - startedAt > GRACE_MS) fail(REFUSED);
        return;
      }
      if (asked !== task || timer === null) return;
      if (state.completed) {
        stop();
        const failed = await show(task, state);
        fw.chime();
        if (failed) tab.endForever();
        else if (saysEnded) tab.message(ENDED);
        saysEnded = false;
        if (forever || restart) tab.press("generate");
        else await watchNext();
        return;
      }
      if (!state.active && !state.queued) {
        if (isKnown) lost(task, state);
        else if (answeredAt && askedAt - answeredAt > GRACE_MS) fail(NOT_TAKEN);
        return;
      }
      isKnown = true;
      if (pressed) tab.press(pressed);
      pressed = "";
      draw(state);
      if (state.live_preview) {
        previewId = state.id_live_preview;
        tab.showPreview(state.live_preview);
      }
    }

    // The next job of this form that is in line; what was cancelled or is over is passed over.
    async function watchNext() {
      for (let [id, ...rest] = inLine(); id; [id, ...rest] = rest) {
        fw.keep(LINE_KEY, JSON.stringify(rest));
        const state = await stateOf(id);
        if (timer !== null) return;
        if (state?.active || state?.queued) {
          remember(id, false);
          watchKnown(id);
          return;
        }
        if (state?.completed) await show(id, state);
      }
    }

    // Shows what came of a job; whether it failed. An error that was said before (`isSaid`) is not said again.
    async function show(id, state, isSaid = false) {
      task = id;
      remember(id, true);
      try {
        const result = await fw.get(`internal/result?id_task=${encodeURIComponent(id)}`);
        if (result.error && isSaid) return true;
        tab.showResult(result);
        if (result.images.length) fw.keep(SHOWN_KEY, id);
        if (!result.error && result.images.length) fw.offerRealModel(tab);
        return Boolean(result.error);
      } catch (error) {
        if (!isSaid) tab.message(state.error || error.message, true);
        return true;
      }
    }

    // What the user asked of the running job, until it has come to pass.
    function ask(what) {
      stopping = what;
      for (const name of ["interrupt", "skip"]) tab.find(name)?.setAttribute("aria-busy", String(what.startsWith(name.slice(0, 4))));
    }

    function draw(state) {
      const box = tab.find("progress");
      if (!box) return;
      const percent = Math.round((state.progress || 0) * 100);
      box.hidden = false;
      box.querySelector(".fw-bar span").style.width = `${percent}%`;
      box.querySelector(".fw-bar").setAttribute("aria-valuenow", String(percent));
      box.querySelector(".fw-progress-text").textContent = fw.progressLine(state, { stopping, forever });
      if (fw.settings.show_progress_in_title !== false) document.title = fw.progressTitle(state);
    }

    document.addEventListener("click", (event) => {
      if (tab.holds(event.target, "enqueue")) tab.enqueue();
      if (timer === null && tab.holds(event.target, "generate")) draw({ progress: 0, textinfo: fw.t`submitting` }); // before Gradio hears of it
      const before = beginning;
      if (event.isTrusted) beginning = tab.holds(event.target, "generate") ? event : null;
      if (!timer || !tab.holds(event.target, "interrupt", "skip")) return;
      if (event.isTrusted && before && isSecondClick(before, event)) {
        event.preventDefault();
        event.stopImmediatePropagation();
        return;
      }
      const name = tab.holds(event.target, "skip") ? "skip" : "interrupt";
      ask(name === "skip" ? fw.t`skipping` : fw.t`interrupting`);
      if (!isKnown) {
        event.stopImmediatePropagation(); // the form is still on its way, and the server would find nothing to stop
        pressed = name;
      }
      const line = tab.find("progress", ".fw-progress-text");
      if (line && !line.textContent.endsWith(stopping)) line.textContent += ` · ${stopping}`;
    }, true);

    // Enter that is held down on Generate, which gives its place and the focus to Interrupt.
    document.addEventListener("keydown", (event) => {
      if (event.repeat && event.key === "Enter" && tab.holds(event.target, "interrupt", "skip")) event.preventDefault();
    }, true);

    channel?.addEventListener("message", (event) => {
      if (event.data.asked && event.data.asked === task) channel.postMessage({ held: task });
    });
  }

  // Whether two clicks, one after the other, are one double click. Browsers that count per element begin again at 1 when
  // another one has come under the pointer; clicks by key have no count and no place.
  function isSecondClick(first, second) {
    if (second.detail === 2) return true;
    if (second.timeStamp - first.timeStamp > DOUBLE_CLICK_MS) return false;
    if (!first.detail || !second.detail) return first.detail === second.detail;
    const reach = DOUBLE_CLICK_PX[second.pointerType] ?? DOUBLE_CLICK_PX.mouse;
    return Math.hypot(second.clientX - first.clientX, second.clientY - first.clientY) <= reach;
  }

  function isWatchedElsewhere(id) {
    if (!channel) return false;
    return new Promise((resolve) => {
      const heard = (event) => event.data.held === id && done(true);
      const done = (answer) => {
        channel.removeEventListener("message", heard);
        clearTimeout(timeout);
        resolve(answer);
      };
      const timeout = setTimeout(() => done(false), ASK_MS);
      channel.addEventListener("message", heard);
      channel.postMessage({ asked: id });
    });
  }

  // "40% · step 8 of 20 · 3 s left".
  fw.progressLine = (state, { stopping = "", forever = false } = {}) => {
    const parts = [];
    if (state.queued) parts.push(state.textinfo);
    else {
      parts.push(`${Math.round((state.progress || 0) * 100)}%`);
      if (state.steps) parts.push(fw.t`step ${state.step} of ${state.steps}`);
      if (state.eta !== null && state.eta !== undefined) parts.push(fw.t`${fw.duration(state.eta)} left`);
      if (state.textinfo && state.stage !== "denoise") parts.push(state.textinfo);
    }
    if (forever) parts.push(fw.t`generating forever: right-click Interrupt, or Esc, ends it`);
    if (stopping && !(state.textinfo || "").startsWith("stops after")) parts.push(stopping);
    return parts.join(" · ");
  };

  fw.progressTitle = (state) => {
    if (state.queued) return "[waiting] Featherweight";
    const steps = state.steps ? fw.t` (${state.step} of ${state.steps})` : "";
    return `[${Math.round((state.progress || 0) * 100)}%${steps}] Featherweight`;
  };

  fw.duration = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    return whole >= 60 ? fw.t`${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole} s`;
  };
})();
