// The sub tab Batch of img2img: files that are sent ahead, and a batch that is watched job by job.
(() => {
  const fw = window.featherweight;
  const tab = fw.tab("img2img");
  const POLL_MS = 700;
  const MOUNT_MS = 200;
  const FILES = "batch.files";
  const ID = "batch.id";
  const UNSENT = "is not sent yet; wait until all are.";

  // "3 of 20 · b.png · 1 failed".
  fw.batchLine = (state) => {
    const parts = [fw.t`${state.done} of ${state.total}`];
    if (state.current) parts.push(state.current[0]);
    if (state.failures.length) parts.push(fw.t`${state.failures.length} failed`);
    if (state.is_over) parts.push(state.is_stopped ? "stopped" : "done");
    return parts.join(" · ");
  };

  if (!tab) return;

  let files = fw.keptList(FILES); // {name, key, infotext} or {name, error}
  let id = ""; // of the batch that is watched
  let followed = ""; // the task id of the job that is shown
  let timer = null;

  tab.batchFiles = () => files;

  // -- files ---------------------------------------------------------------------------------------------------------

  function mount() {
    const place = document.querySelector(".fw-batch-files:not([data-mounted])");
    if (!place) return;
    place.dataset.mounted = "";
    const clear = () => {
      files = [];
      keepFiles();
    };
    const named = { name: fw.t`Batch: choose image files`, listClass: "fw-batch-list", clearId: "img2img_batch_clear" };
    place.replaceChildren(...fw.uploadList({ ...named, add, clear }));
    keepFiles();
    resume();
  }

  async function add(chosen) {
    const added = chosen.map((file) => ({ name: file.name, error: `${file.name} ${UNSENT}` }));
    files = [...files, ...added];
    for (const [index, entry] of added.entries()) {
      try {
        const { key, infotext } = await fw.upload(chosen[index]);
        Object.assign(entry, { key, infotext });
        delete entry.error;
      } catch (error) {
        entry.error = error.message;
      }
      keepFiles();
    }
  }

  const named = (name, sentence) => (sentence.startsWith(name) ? sentence : `${name}: ${sentence}`);

  function keepFiles() {
    fw.keep(FILES, JSON.stringify(files));
    const list = document.querySelector(".fw-batch-list");
    if (!list) return;
    list.replaceChildren(
      ...files.map((file) =>
        fw.element("li", { textContent: file.error ? named(file.name, file.error) : file.name, className: file.error ? "fw-bad" : "" }),
      ),
    );
    document.querySelector("#img2img_batch_clear").hidden = !files.length;
  }

  // -- the batch -----------------------------------------------------------------------------------------------------

  const { start, submitted, failed } = tab;

  tab.start = () => {
    if (tab.mode() !== "batch") return start();
    id = `batch(${Math.random().toString(36).slice(2)}${Date.now().toString(36)})`;
    tab.endForever();
    tab.clearMessages();
    show(null);
    tab.find("generate_box").classList.add("fw-running");
    return id;
  };

  tab.submitted = () => {
    if (!id || timer) return submitted();
    if (tab.find("notice", ".fw-error")) return end();
    watch();
  };

  tab.failed = () => {
    if (id && !timer) end();
    failed();
  };

  function watch() {
    fw.keep(ID, id);
    followed = "";
    timer = setInterval(poll, POLL_MS);
    poll();
  }

  function end() {
    clearInterval(timer);
    [timer, id] = [null, ""];
    fw.keep(ID, "");
    if (!tab.isRunning()) tab.find("generate_box").classList.remove("fw-running");
  }

  // The batch of an earlier visit.
  async function resume() {
    id = fw.kept(ID) || "";
    if (id) watch();
  }

  async function poll() {
    let state;
    try {
      state = await fw.get(`internal/batch?id=${encodeURIComponent(id)}`);
    } catch (error) {
      if (!id || /does not answer|fetch/i.test(error.message)) return;
      end();
      tab.message(error.message, true);
      return;
    }
    if (!timer) return;
    show(state);
    if (state.current && state.current[1] !== followed) {
      followed = state.current[1];
      tab.follow(followed);
    }
    if (!state.is_over || tab.isRunning()) return;
    end();
    await showAll(state);
  }

  function show(state) {
    const place = document.querySelector("#img2img_batch_state");
    if (!place) return;
    if (!state) {
      place.replaceChildren();
      return;
    }
    const failures = state.failures.map(([name, sentence]) =>
      fw.element("li", { textContent: named(name, sentence), className: "fw-bad" }),
    );
    place.replaceChildren(fw.element("p", { textContent: fw.batchLine(state) }));
    if (failures.length) place.append(fw.element("ul", { className: "fw-batch-list" }, ...failures));
  }

  // What was made, as far as the settings say and the server still holds it.
  async function showAll(state) {
    const limit = fw.settings.img2img_batch_show_results_limit ?? 32;
    const tasks = limit < 0 ? state.finished : state.finished.slice(0, limit);
    const replies = await Promise.all(
      tasks.map((task) => fw.get(`internal/result?id_task=${encodeURIComponent(task)}`).catch(() => null)),
    );
    const found = replies.filter((reply) => reply && !reply.error);
    if (found.length) {
      const images = found.flatMap((reply) => reply.images.map((image, index) => ({ ...image, task: reply.task, index })));
      const last = found.at(-1);
      tab.showResult({ ...last, images, notices: found.flatMap((reply) => reply.notices), seconds: null });
    }
    if (state.failures.length) tab.message(fw.t`${state.failures.length} of ${state.total} could not be made; the list is below Batch.`, true);
    else tab.message(fw.t`The batch is ${state.is_stopped ? "stopped" : "done"}: ${state.done} of ${state.total}.`);
    fw.chime();
  }

  document.addEventListener("click", (event) => {
    if (timer && tab.holds(event.target, "interrupt")) fw.post("internal/stop-batch", { id }).catch(() => {});
  });

  setInterval(mount, MOUNT_MS);
})();
