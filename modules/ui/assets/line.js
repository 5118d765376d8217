// Beside the images: the line of jobs, and the last images as a strip. On wide screens it stands at the right of the
// page, else below the images of the tab that is shown; so does it where an image to start from stands beside the
// result, unless the screen has room for three. Asks only while a form that makes images is shown.
(() => {
  const fw = window.featherweight;
  const QUEUE = "featherweight/v1/queue";
  const HISTORY = "featherweight/v1/history";
  const BUSY_MS = 1000;
  const IDLE_MS = 4000;
  const SHOWN_JOBS = 50;
  const LAST_IMAGES = 24;
  let box = null;
  let drawn = "";
  let askedAt = 0;
  let isBusy = false;
  let newest = null; // the last job that ended when the strip was drawn
  let images = [];

  const has = (name) => document.body.classList.contains(name);

  function build() {
    box = fw.element("aside", { id: "fw_line", attributes: { "aria-label": fw.t`Queue and last images` } },
      fw.element("section", { className: "fw-line-jobs" },
        fw.element("h2", {}, fw.element("span", { textContent: fw.t`Queue` }), fw.element("b")),
        fw.element("ol")),
      fw.element("section", { className: "fw-line-images" },
        fw.element("h2", { textContent: fw.t`Last images` }),
        fw.element("div", { className: "fw-strip", attributes: { role: "list" } })));
    return box;
  }

  // Where the box stands now: at the right of the page, below the results in their zone, or below all of the tab's images.
  function put() {
    box ||= build();
    const tab = fw.shownTab();
    const home = !has("fw-working") ? tab.find("output", ".fw-output") : has("fw-pair") ? tab.find("results") : document.querySelector(".gradio-container");
    if (home && box.parentElement !== home) home.append(box);
  }

  const small = (text, title, run, label = "") => {
    const made = fw.element("button", { type: "button", textContent: text, title });
    if (label) made.setAttribute("aria-label", label);
    made.addEventListener("click", run);
    return made;
  };

  function row(job, index, isRunning) {
    const { act, draggable, toForm } = fw.line;
    const { task_id } = job;
    const thumb = fw.element("span", { className: "fw-line-thumb" });
    if (job.has_start_image) {
      const image = new Image();
      image.alt = "";
      image.src = `${QUEUE}/start-image?task_id=${encodeURIComponent(task_id)}`;
      thumb.append(image);
    } else thumb.textContent = isRunning ? "▶" : String(index + 1);
    const title = fw.element("strong", { textContent: job.title, title: job.title });
    title.translate = false;
    const facts = isRunning ? fw.queueLine(job) : job.waits_for ? fw.queueLine(job) : job.details || job.type;
    const text = fw.element("div", {}, title, fw.element("span", { textContent: facts }));
    if (job.adapters?.length) text.append(fw.element("span", { className: "fw-line-adapters", textContent: job.adapters.join(", ") }));
    const stop = small("×", isRunning ? fw.t`Stop it; finished images are kept` : fw.t`Remove it from the queue`, act("cancel", { task_id }), fw.t`Cancel: ${job.title}`);
    stop.classList.add("fw-icon", "fw-icon-close");
    const tools = fw.element("div", { className: "fw-line-tools" });
    if (!isRunning && job.is_image_job) {
      const edit = small("Edit", fw.t`Move it from the queue into the form`, async () => {
        if (await toForm(task_id)) await act("cancel", { task_id })();
      }, fw.t`Edit: ${job.title}`);
      edit.classList.add("fw-icon", "fw-icon-edit");
      tools.append(edit);
    }
    tools.append(stop);
    const made = fw.element("li", {}, thumb, text, tools);
    made.dataset.task = task_id;
    if (isRunning) {
      made.className = "fw-line-running";
      made.style.setProperty("--fw-done", `${Math.round(job.fraction * 100)}%`);
      return made;
    }
    made.tabIndex = 0;
    made.title = fw.t`Drag it to another place, or press Alt with an arrow`;
    made.addEventListener("keydown", (event) => {
      if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key) || event.target !== made) return;
      event.preventDefault();
      const other = event.key === "ArrowUp" ? made.previousElementSibling : made.nextElementSibling?.nextElementSibling;
      if (event.key === "ArrowUp" && !other?.draggable) return;
      act("move", { task_id, before: other?.dataset.task ?? null })();
    });
    return draggable(made, job);
  }

  function draw(state) {
    isBusy = Boolean(state.running || state.waiting.length);
    const text = JSON.stringify([state.running_all, state.waiting, state.waiting_total, state.paused]);
    if (text === drawn || fw.line.isDragged()) return;
    drawn = text;
    const focused = document.activeElement?.closest?.("#fw_line [data-task]")?.dataset.task;
    const list = box.querySelector("ol");
    list.replaceChildren(
      ...state.running_all.map((job) => row(job, 0, true)),
      ...state.waiting.map((job, index) => row(job, index, false)),
    );
    if (!list.children.length) list.append(fw.element("li", { className: "fw-empty", textContent: fw.t`The queue is empty.` }));
    box.querySelector("h2 b").textContent = [state.waiting_total || "", state.paused ? fw.text("paused") : ""].filter(Boolean).join(" · ");
    if (focused) list.querySelector(`[data-task="${CSS.escape(focused)}"]`)?.focus();
  }

  // -- the last images ---------------------------------------------------------------------------------------------

  const itemOf = (image) => ({
    url: `${HISTORY}/image?id=${image.id}`,
    infotext: image.infotext,
    seed: fw.seedOf(image.infotext),
    subseed: "-1",
    role: image.role,
    width: image.width,
    height: image.height,
    path: image.path,
    name: image.name,
  });

  async function drawImages() {
    const page = await fw.get(`${HISTORY}?limit=${LAST_IMAGES}`).catch(() => null);
    if (!page) return;
    const names = page.images.map((image) => image.id).join();
    if (names === images.map((image) => image.id).join()) return;
    images = page.images;
    box.querySelector(".fw-strip").replaceChildren(...images.map((image, place) => {
      const picture = new Image();
      picture.loading = "lazy";
      picture.alt = "";
      picture.src = `${HISTORY}/thumbnail?id=${image.id}`;
      const made = fw.element("button", { type: "button", title: image.infotext.split("\n")[0] || image.name }, picture);
      made.setAttribute("aria-label", image.infotext.split("\n")[0] || image.name);
      made.translate = false;
      picture.addEventListener("error", () => made.remove());
      made.addEventListener("click", () => fw.shownTab().showImages(images.map(itemOf), place));
      return fw.element("div", { attributes: { role: "listitem" } }, made);
    }));
  }

  fw.lookAtLine = async () => {
    if (document.hidden || !fw.tabs.some((tab) => tab.isShown) || !fw.line) return;
    askedAt = Date.now();
    put();
    const state = await fw.get(`${QUEUE}?limit=${SHOWN_JOBS}`).catch(() => null);
    if (!state) return;
    draw(state);
    const last = state.ended[0]?.task_id ?? "";
    if (last !== newest) {
      newest = last;
      await drawImages();
    }
  };

  setInterval(() => {
    if (Date.now() - askedAt >= (isBusy ? BUSY_MS : IDLE_MS) || (box && !box.offsetParent)) fw.lookAtLine();
  }, BUSY_MS);
  setTimeout(fw.lookAtLine, BUSY_MS);

  // -- the layout ----------------------------------------------------------------------------------------------------

  const WIDE = window.matchMedia?.("(min-width: 1200px)");
  const ROOM_FOR_THREE = window.matchMedia?.("(min-width: 1600px)");
  const tops = new Map();

  // The three zones fill the window below the tabs; everything outside of the forms keeps its own height.
  fw.layOut = () => {
    if (!fw.tabs.some((tab) => tab.find("generate_box"))) return; // to ask what is shown would lay out a page in the making
    const isImageTab = fw.tabs.some((tab) => tab.isShown);
    const isWork = Boolean(WIDE?.matches) && fw.view() !== "Classic" && isImageTab;
    const isPair = isWork && !ROOM_FOR_THREE.matches && Boolean(fw.shownTab().find("source")?.offsetParent) && !has("fw-on-canvas");
    const isElsewhere = has("fw-working") !== isWork || has("fw-pair") !== isPair;
    document.body.classList.toggle("fw-working", isWork);
    document.body.classList.toggle("fw-pair", isPair);
    if (box && isImageTab && (isElsewhere || !box.isConnected)) put();
    document.body.classList.toggle("fw-classic", fw.view() === "Classic");
    document.body.classList.toggle("fw-simple", fw.view() === "Simple");
    if (box) box.hidden = !isImageTab;
    document.body.classList.toggle("fw-enqueues", fw.settings.enqueue_always === true);
    if (!isWork) return;
    for (const tab of fw.tabs) {
      const area = tab.find("work");
      if (!area?.offsetParent) continue;
      fw.putHandles(area);
      const top = Math.round(area.getBoundingClientRect().top + window.scrollY);
      if (tops.get(tab.prefix) !== top) document.body.style.setProperty("--fw-top", `${top}px`);
      tops.clear();
      tops.set(tab.prefix, top);
    }
  };

  document.addEventListener("click", (event) => {
    const more = event.target.closest?.("#fw_more");
    if (event.target.closest?.("button[role=tab]")) requestAnimationFrame(fw.layOut);
    if (more) more.setAttribute("aria-expanded", String(document.body.classList.toggle("fw-header-open")));
  });

  setInterval(fw.layOut, 300);
  for (const width of [WIDE, ROOM_FOR_THREE]) width?.addEventListener?.("change", fw.layOut);
})();
