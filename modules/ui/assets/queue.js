// The Queue tab: what runs, waits and has ended; its order, by buttons and by dragging. Asks only while it is shown.
(() => {
  const fw = window.featherweight;
  const ROUTE = "featherweight/v1/queue";
  const LOOK_MS = 1000;
  const FIELDS = [
    ["prompt", fw.t`Prompt`, "textarea"],
    ["negative_prompt", fw.t`Negative prompt`, "textarea"],
    ["steps", fw.t`Steps`, "number"],
    ["cfg_scale", fw.t`CFG Scale`, "number"],
    ["width", fw.t`Width`, "number"],
    ["height", fw.t`Height`, "number"],
    ["seed", fw.t`Seed`, "seed"],
    ["n_iter", fw.t`Batch count`, "number"],
  ];
  let drawn = "";
  let dragged = null;

  const place = () => document.querySelector("#fw_queue");
  const act = (name, body = {}) => async () => {
    try {
      const reply = await fw.post(`${ROUTE}/${name}`, body);
      say(typeof reply.count === "number" ? `${reply.count} ${reply.count === 1 ? "job" : "jobs"}.` : "");
    } catch (error) {
      say(error.message, true);
      if (!place()?.offsetParent) fw.shownTab()?.message(error.message, true);
    }
    await look();
    fw.lookAtLine?.();
  };

  function say(text, isBad = false) {
    const line = place()?.querySelector(".fw-queue-status");
    if (!line) return;
    line.textContent = text;
    line.classList.toggle("fw-bad", isBad);
  }

  function button(text, title, run, options = {}) {
    const made = fw.element("button", { type: "button", textContent: text, title, disabled: Boolean(options.disabled) });
    if (options.for) made.dataset.for = options.for;
    if (options.label) made.setAttribute("aria-label", options.label);
    made.addEventListener("click", run);
    return made;
  }

  async function look() {
    if (!place()?.offsetParent || document.hidden || dragged) return;
    let state;
    try {
      state = await fw.get(ROUTE);
    } catch (error) {
      say(error.message, true);
      return;
    }
    bar(state);
    const text = JSON.stringify([state, 0]);
    if (text === drawn) return;
    drawn = text;
    const focused = document.activeElement?.closest?.("[data-task]")?.dataset.task;
    const label = document.activeElement?.textContent;
    const list = place().querySelector(".fw-queue-lists");
    list.replaceChildren(
      ...workers(state.workers),
      ...fw.workDone(state.workers),
      ...section(fw.t`Running`, state.running_all, (job) => row(job, runningButtons(job))),
      ...section(
        fw.t`Queued (${state.waiting_total})`,
        state.waiting,
        (job, index, jobs) => draggable(row(job, waitingButtons(job, index, jobs)), job),
      ),
      ...section(fw.t`Finished`, state.ended, (job) => row(job, endedButtons(job))),
      ...times(state.ended),
    );
    fw.drawIcons();
    if (!state.running && !state.waiting.length && !state.ended.length) {
      list.append(fw.element("p", { className: "fw-empty", textContent: fw.t`The queue is empty. Jobs from Generate appear here.` }));
    }
    if (focused) {
      const again = [...list.querySelectorAll(`[data-task="${CSS.escape(focused)}"] button`)];
      again.find((item) => item.textContent === label)?.focus();
    }
  }

  function bar(state) {
    const pause = place().querySelector("[data-do=pause]");
    pause.textContent = state.paused ? fw.t`Resume` : fw.t`Pause`;
    pause.setAttribute("aria-pressed", String(state.paused));
    place().querySelector(".fw-queue-paused").hidden = !state.paused;
    place().querySelector("[data-do=clear]").disabled = state.waiting_total === 0;
    const retry = place().querySelector("[data-do=retry]");
    retry.disabled = state.failed_total === 0;
    retry.textContent = state.failed_total ? fw.t`Retry ${state.failed_total} failed` : fw.t`Retry failed`;
    const done = place().querySelector("#fw_queue_done");
    if (document.activeElement !== done) done.value = state.when_done;
  }

  function section(title, jobs, draw) {
    if (!jobs.length) return [];
    return [fw.element("h3", { textContent: title }), fw.element("ol", {}, ...jobs.map(draw))];
  }

  // A table of the worker processes and other servers; nothing where the server makes its images itself.
  function workers(list) {
    if (!list.length) return [];
    const cells = (tag, texts) => fw.element("tr", {}, ...texts.map((text) => fw.element(tag, { textContent: text })));
    const rows = list.map((worker) => {
      const job = worker.title || worker.message || worker.model;
      const line = cells("td", [worker.name, worker.place, worker.state, job, String(worker.restarts)]);
      line.className = `fw-worker-${worker.state}`;
      line.title = [worker.message, worker.model].filter(Boolean).join("\n");
      return line;
    });
    const head = cells("th", [fw.t`Worker`, fw.t`Where`, fw.t`State`, fw.t`What`, fw.t`Restarts`]);
    return [
      fw.element("h3", { textContent: fw.t`Workers` }),
      fw.element("table", { className: "fw-workers" }, fw.element("thead", {}, head), fw.element("tbody", {}, ...rows)),
    ];
  }

  // What the workers have done since the page looked first: a line each, or of all together where there are many.
  const MOST_LINES = 4;
  const KEPT_LOOKS = 600;
  const done = []; // [seconds since the first look, jobs by name]
  let firstLook = 0;
  fw.workDone = (list) => {
    if (list.length < 2) return [];
    firstLook ||= Date.now();
    done.push([(Date.now() - firstLook) / 1000, new Map(list.map((worker) => [worker.name, worker.jobs]))]);
    if (done.length > KEPT_LOOKS) done.splice(1, 1);
    if (done.length < 2) return [];
    const names = list.map((worker) => worker.name);
    const since = (jobs, name) => (jobs.get(name) || 0) - (done[0][1].get(name) || 0);
    const all = (jobs) => names.reduce((sum, name) => sum + since(jobs, name), 0);
    const lines = names.length > MOST_LINES
      ? [{ name: fw.t`All workers`, points: done.map(([at, jobs]) => [at, all(jobs)]) }]
      : names.map((name) => ({ name, points: done.map(([at, jobs]) => [at, since(jobs, name)]) }));
    const label = fw.t`Jobs done by the workers`;
    const plot = fw.plot({
      label,
      lines,
      showX: (seconds) => fw.duration(seconds),
      fromZero: true,
      table: { head: [fw.t`Worker`, fw.t`Jobs`], rows: list.map((worker) => [worker.name, String(since(done[done.length - 1][1], worker.name))]) },
    });
    return [fw.element("h3", { textContent: label }), plot];
  };

  // How long the jobs that ended took, the oldest first; nothing for a single one.
  function times(ended) {
    const jobs = ended.filter((job) => job.seconds !== null && job.seconds !== undefined).reverse();
    if (jobs.length < 2) return [];
    const label = fw.t`Time of the last jobs`;
    const plot = fw.plot({
      label,
      lines: [{ name: fw.t`Seconds`, points: jobs.map((job, place) => [place + 1, job.seconds]) }],
      showX: (place) => jobs[place - 1]?.title || String(place),
      showY: (seconds) => seconds.toFixed(1),
      fromZero: true,
      table: { head: [fw.t`What`, fw.t`Seconds`], rows: jobs.map((job) => [job.title || job.task_id, job.seconds.toFixed(1)]) },
    });
    plot.translate = false; // titles are the user's words
    return [fw.element("h3", { textContent: label }), plot];
  }

  // "40 % · sampling · 3 s left", "waits for ...", "failed: ...".
  fw.queueLine = (job) => {
    if (job.waits_for) return fw.t`waiting ${job.waits_for}`;
    const parts = [];
    if (job.status === "running") {
      parts.push(`${Math.round(job.fraction * 100)} %`, job.phase);
      if (job.eta_s !== null && job.eta_s !== undefined) parts.push(fw.t`${fw.duration(job.eta_s)} left`);
    } else if (job.status !== "queued") {
      parts.push(job.status);
      if (job.seconds !== null && job.seconds !== undefined) parts.push(fw.duration(job.seconds));
    } else if (job.is_pinned) parts.push(fw.t`next`);
    if (job.images) parts.push(`${job.images} ${job.images === 1 ? "image" : "images"}`);
    if (job.user) parts.push(job.user);
    if (job.error) parts.push(job.error);
    return parts.filter(Boolean).join(" · ");
  };

  function row(job, buttons) {
    const thumb = fw.element("span", { className: "fw-queue-thumb" });
    const hasImage = job.images && job.status !== "running" && job.status !== "queued";
    if (hasImage || job.has_start_image) {
      const image = new Image();
      image.loading = "lazy";
      image.alt = "";
      image.src = `${ROUTE}/${hasImage ? "image" : "start-image"}?task_id=${encodeURIComponent(job.task_id)}`;
      image.addEventListener("error", () => image.remove());
      thumb.append(image);
    }
    const text = fw.element(
      "div",
      { className: "fw-queue-text" },
      fw.element("strong", { textContent: `${job.is_bookmarked ? "★ " : ""}${job.title}` }),
      fw.element("span", { textContent: [job.is_image_job ? "" : job.type, fw.queueLine(job)].filter(Boolean).join(" · ") }),
      ...(job.details ? [fw.element("span", { textContent: [job.details, ...(job.adapters || [])].join(" · ") })] : []),
    );
    if (job.status === "running") {
      const filled = fw.element("span");
      filled.style.width = `${Math.round(job.fraction * 100)}%`;
      text.append(fw.element("div", { className: "fw-bar" }, filled));
    }
    const made = fw.element("li", { className: `fw-queue-job fw-is-${job.status}` }, thumb, text,
      fw.element("div", { className: "fw-queue-buttons" }, ...buttons));
    made.dataset.task = job.task_id;
    return made;
  }

  const isImage = (job) => job.is_image_job;

  function runningButtons(job) {
    return [button(fw.t`Stop`, fw.t`Stop it within one step; finished images are kept`, act("cancel", { task_id: job.task_id }))];
  }

  function waitingButtons(job, index, jobs) {
    const { task_id } = job;
    const after = jobs[index + 2]?.task_id ?? null;
    return [
      button("↑", fw.t`Earlier`, act("move", { task_id, before: jobs[index - 1]?.task_id }), { disabled: index === 0, label: fw.t`Earlier: ${job.title}` }),
      button("↓", fw.t`Later`, act("move", { task_id, before: after }), { disabled: index === jobs.length - 1, label: fw.t`Later: ${job.title}` }),
      button(fw.t`Next`, fw.t`Run it before all others`, act("next", { task_id }), { for: "admin" }),
      ...(isImage(job) ? [button(fw.t`Edit`, fw.t`Change its parameters`, () => edit(job)), ...repeating(job)] : []),
      button(fw.t`Cancel`, fw.t`Remove it from the queue`, act("cancel", { task_id })),
    ];
  }

  function repeating(job) {
    return [button(fw.t`New seed`, fw.t`Queue it again with another seed`, act("again", { task_id: job.task_id, seed: -1 }))];
  }

  function endedButtons(job) {
    const { task_id } = job;
    return [
      button(job.status === "done" ? fw.t`Repeat` : fw.t`Retry`, fw.t`Queue it again with the same seeds`, act("again", { task_id })),
      ...(isImage(job) ? [...repeating(job), button(fw.t`To form`, fw.t`Fill the form with its parameters`, () => toForm(task_id))] : []),
      button(fw.t`Remove`, fw.t`Remove it from the list; its images stay`, act("remove", { task_id })),
    ];
  }

  // -- dragging --------------------------------------------------------------------------------------------------------

  function draggable(item, job) {
    item.draggable = true;
    item.addEventListener("dragstart", (event) => {
      dragged = job.task_id;
      event.dataTransfer.setData("text/plain", job.task_id);
      event.dataTransfer.effectAllowed = "move";
      item.classList.add("fw-dragged");
    });
    item.addEventListener("dragend", () => {
      dragged = null;
      item.classList.remove("fw-dragged");
    });
    item.addEventListener("dragover", (event) => {
      if (dragged && dragged !== job.task_id) event.preventDefault();
    });
    item.addEventListener("drop", (event) => {
      event.preventDefault();
      const [task_id, middle] = [dragged, item.getBoundingClientRect().top + item.offsetHeight / 2];
      dragged = null;
      if (!task_id) return;
      const next = item.nextElementSibling?.dataset.task ?? null;
      act("move", { task_id, before: event.clientY < middle ? job.task_id : next })();
    });
    return item;
  }

  // -- editing ---------------------------------------------------------------------------------------------------------

  // Fill the form that a job belongs to; whether that came about.
  async function toForm(task_id) {
    try {
      const job = await fw.get(`${ROUTE}/job?task_id=${encodeURIComponent(task_id)}`);
      if (!job.infotext) throw new Error(fw.t`The parameters of this job cannot be read.`);
      const tab = (job.has_start_image && fw.tabs.find((one) => one.setImage)) || fw.tabs[0];
      await tab.takeSent(job.infotext);
      if (job.has_start_image) await tab.setImage?.(Object.keys(tab.takes)[0], `${ROUTE}/start-image?whole=true&task_id=${encodeURIComponent(task_id)}`);
      return true;
    } catch (error) {
      say(error.message, true);
      fw.shownTab()?.message(error.message, true);
      return false;
    }
  }

  // For the line beside the images, which is the same line.
  fw.line = { act, draggable, toForm, isDragged: () => dragged !== null };

  async function edit(job) {
    let whole;
    try {
      whole = await fw.get(`${ROUTE}/job?task_id=${encodeURIComponent(job.task_id)}`);
    } catch (error) {
      say(error.message, true);
      return;
    }
    if (!place().offsetParent) return; // another tab was opened meanwhile
    const values = { ...whole.parameters, seed: fw.seedOf(whole.infotext) };
    const inputs = new Map();
    const labels = FIELDS.map(([name, text, type]) => {
      const input = fw.element(type === "textarea" ? "textarea" : "input", { value: values[name] ?? "" });
      if (type === "number") Object.assign(input, { type: "number", step: "any" });
      if (type === "seed") input.inputMode = "numeric";
      inputs.set(name, input);
      return fw.element("label", { className: `fw-queue-${type}` }, fw.element("span", { textContent: text }), input);
    });
    const status = fw.element("p", { className: "fw-bad", attributes: { role: "alert" } });
    const dialog = fw.element("dialog", { id: "fw_queue_dialog", attributes: { "aria-labelledby": "fw_queue_title" } });
    const close = () => dialog.close();
    const save = async () => {
      const parameters = {};
      for (const [name, , type] of FIELDS) {
        const text = inputs.get(name).value;
        const value = type === "number" ? Number(text) : text;
        if (value !== values[name]) parameters[name] = value;
      }
      try {
        await fw.post(`${ROUTE}/change`, { task_id: job.task_id, parameters });
        close();
        look();
      } catch (error) {
        status.textContent = error.message;
      }
    };
    const tools = fw.element("div", { className: "fw-tools" },
      button(fw.t`Save`, fw.t`Apply to the job`, save),
      button(fw.t`Edit in the form`, fw.t`Move it from the queue into the form`, async () => {
        if (await toForm(job.task_id)) await act("cancel", { task_id: job.task_id })();
        close();
      }),
      button(fw.t`Close`, fw.t`Keep it unchanged`, close));
    dialog.append(fw.element("h2", { id: "fw_queue_title", textContent: job.title }), ...labels, status, tools);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // -- the tab ---------------------------------------------------------------------------------------------------------

  document.addEventListener("click", (event) => {
    const name = event.target.closest?.("#fw_queue [data-do]")?.dataset.do;
    if (name === "pause") act(event.target.getAttribute("aria-pressed") === "true" ? "resume" : "pause")();
    if (name === "clear" && window.confirm(fw.text(fw.t`Cancel all queued jobs?`))) act("clear")();
    if (name === "retry") act("retry-failed")();
  });
  fw.whenShown("#fw_queue", look);
  document.addEventListener("change", (event) => {
    if (event.target.id === "fw_queue_done") act("when-done", { action: event.target.value })();
  });
  document.addEventListener("visibilitychange", look);
  setInterval(look, LOOK_MS);
})();
