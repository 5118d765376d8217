// A job is known by its task id. The id is kept in localStorage, so that a reloaded page finds its job again.
(() => {
  const fw = window.featherweight;
  const KEY = "featherweight.task";
  const POLL_MS = 1000;
  const GRACE_MS = 6000; // how long a submitted job may be unknown to the server
  let timer = null;
  let task = "";
  let previewId = -1;
  let startedAt = 0;
  let forever = false;
  let restart = false;

  fw.task = () => task || localStorage.getItem(KEY) || "";

  // Called by the Generate button: gives the job its id and starts to watch it.
  fw.start = () => {
    task = `task(${Math.random().toString(36).slice(2)}${Date.now().toString(36)})`;
    localStorage.setItem(KEY, task);
    fw.clearMessages();
    watch(task);
    return task;
  };

  // Called when the server took (or refused) the job.
  fw.submitted = () => {
    if (document.querySelector("#txt2img_notice .fw-error")) stop(true);
  };

  fw.isRunning = () => timer !== null;

  fw.resume = async () => {
    const kept = localStorage.getItem(KEY);
    if (!kept) return;
    const state = await fw.post("internal/progress", { id_task: kept, live_preview: false }).catch(() => null);
    if (!state) return;
    if (state.active || state.queued) watch(kept);
    else if (state.completed) { task = kept; await show(kept); }
  };

  fw.toggleForever = () => {
    forever = !forever;
    document.querySelector("#txt2img_generate")?.classList.toggle("fw-forever", forever);
    fw.clearMessages();
    fw.message(forever ? "Generating forever: right-click the same place again, or press Esc, to end it." : "Generating forever has ended.");
    if (forever && !fw.isRunning()) document.querySelector("#txt2img_generate")?.click();
  };

  fw.endForever = () => { if (forever) fw.toggleForever(); };

  // Interrupt, and begin anew with the form as it now is.
  fw.restart = () => {
    restart = true;
    document.querySelector("#txt2img_interrupt")?.click();
  };

  function watch(id) {
    task = id;
    restart = false;
    previewId = -1;
    startedAt = Date.now();
    document.querySelector("#txt2img_generate_box")?.classList.add("fw-running");
    draw({ progress: 0, textinfo: "submitting" });
    if (timer) clearInterval(timer);
    timer = setInterval(poll, fw.settings.live_preview_refresh_period || POLL_MS);
    fw.keepAwake();
  }

  function stop(failed) {
    clearInterval(timer);
    timer = null;
    document.querySelector("#txt2img_generate_box")?.classList.remove("fw-running");
    const box = document.querySelector("#txt2img_progress");
    if (box) box.hidden = true;
    document.title = "Featherweight";
    fw.letSleep();
    if (failed) forever = false;
  }

  async function poll() {
    const asked = task;
    let state;
    try {
      state = await fw.post("internal/progress", { id_task: task, id_live_preview: previewId, live_preview: true });
    } catch (error) {
      draw({ progress: null, textinfo: "the server does not answer; trying again" });
      return;
    }
    if (asked !== task || timer === null) return;
    if (state.completed) {
      stop(false);
      const failed = await show(task);
      fw.chime();
      if (failed) fw.endForever();
      if (forever || restart) document.querySelector("#txt2img_generate")?.click();
      return;
    }
    if (!state.active && !state.queued) {
      if (Date.now() - startedAt > GRACE_MS) stop(true);
      return;
    }
    draw(state);
    if (state.live_preview) {
      previewId = state.id_live_preview;
      fw.showPreview(state.live_preview);
    }
  }

  // Shows what came of a job; whether it failed.
  async function show(id) {
    try {
      const result = await fw.get(`internal/result?id_task=${encodeURIComponent(id)}`);
      fw.showResult(result);
      return Boolean(result.error);
    } catch (error) {
      localStorage.removeItem(KEY);
      return true;
    }
  }

  function draw(state) {
    const box = document.querySelector("#txt2img_progress");
    if (!box) return;
    const percent = Math.round((state.progress || 0) * 100);
    box.hidden = false;
    box.querySelector(".fw-bar span").style.width = `${percent}%`;
    box.querySelector(".fw-bar").setAttribute("aria-valuenow", String(percent));
    const parts = [];
    if (state.queued) parts.push(state.textinfo);
    else {
      parts.push(`${percent}%`);
      if (state.steps) parts.push(`step ${state.step} of ${state.steps}`);
      if (state.eta !== null && state.eta !== undefined) parts.push(`${duration(state.eta)} left`);
      if (state.textinfo && state.stage !== "denoise") parts.push(state.textinfo);
    }
    box.querySelector(".fw-progress-text").textContent = parts.join(" · ");
    const steps = state.steps ? ` (${state.step} of ${state.steps})` : "";
    if (fw.settings.show_progress_in_title === false) return;
    document.title = state.queued ? "[waiting] Featherweight" : `[${percent}%${steps}] Featherweight`;
  }

  function duration(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    return whole >= 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole} s`;
  }
})();
