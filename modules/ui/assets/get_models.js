// The Get models tab: what a file is before it comes, downloads, and the model files on disk. Asks only while it is shown.
(() => {
  const fw = window.featherweight;
  const ROUTE = "featherweight/v1";
  const LOOK_MS = 1000;
  const UNUSED_S = 90 * 24 * 3600;
  const KINDS = {
    "Stable-diffusion": fw.t`Checkpoints`, VAE: "VAEs", "VAE-taesd": "TAESD", text_encoder: fw.t`Text encoders`, Lora: "LoRAs", embeddings: fw.t`Embeddings`,
    ControlNet: "ControlNets", ESRGAN: fw.t`Upscalers`,
  };
  const NAMES = ["VAEs", "TAESD", "LoRAs", "ControlNets"]; // nobody's language
  let known = null;
  let fitting = null;
  let disk = null;
  let finished = null; // ids of the work that has ended well, as of the last look
  let drawn = "";

  const place = () => document.querySelector("#fw_models");
  const part = (name) => place().querySelector(`.fw-models-${name}`);
  const isShown = () => Boolean(place()?.offsetParent) && !document.hidden;
  const gb = (bytes) => (bytes >= 1e8 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`);

  function say(text, isBad = false) {
    const line = part("status");
    line.textContent = text;
    line.classList.toggle("fw-bad", isBad);
  }

  // What a click does; a refusal is said where the tab says everything.
  const act = (run) => async (event) => {
    const button = event?.currentTarget;
    if (button) button.disabled = true;
    try {
      await run();
    } catch (error) {
      say(error.message, true);
    } finally {
      if (button) button.disabled = false;
    }
  };

  function button(label, title, run, className = "") {
    const made = fw.element("button", { type: "button", textContent: label, title, className });
    made.addEventListener("click", act(run));
    return made;
  }

  // A name, or words that somebody else wrote: nobody's language.
  const named = (tag, text, className = "") => fw.element(tag, { textContent: text, className, translate: false });

  function row(title, lines, buttons, className = "") {
    const text = fw.element("div", { className: "fw-models-text" }, named("strong", title), ...lines.filter(Boolean));
    const tools = fw.element("div", { className: "fw-models-buttons" }, ...buttons);
    return fw.element("div", { className: `fw-models-row ${className}` }, text, tools);
  }

  const line = (text, className = "") => fw.element("span", { textContent: text, className });

  // -- getting -----------------------------------------------------------------------------------------------------------

  const asked = () => ({
    source: document.querySelector("#fw_models_source").value.trim(),
    allow_pickle: document.querySelector("#fw_models_pickle").checked,
  });

  async function get(...bodies) {
    for (const body of bodies) await fw.post(`${ROUTE}/downloads`, body);
    document.querySelector("#fw_models_pickle").checked = false;
    part("found").replaceChildren(); // what comes stands in its place
    say("");
    await downloads();
  }

  const getAll = (model) => get(...[model.name, ...model.parts].map((source) => ({ source })));

  async function look(body) {
    if (!body.source) {
      say(fw.t`Enter what to get: a name from the list, a repository and its file, or an address.`, true);
      return;
    }
    part("found").replaceChildren();
    say(fw.t`Reading the header of the file...`);
    const found = await fw.post(`${ROUTE}/downloads/look`, { ...body, judges: false });
    say("");
    const verdict = line(found.folder === "Stable-diffusion" ? fw.t`Checking whether it fits this machine...` : "");
    const parts = found.parts.map((one) => one.name);
    const size = found.parts.reduce((sum, one) => sum + one.size_gb, found.size_bytes / 1e9);
    part("found").replaceChildren(
      row(
        found.name,
        [
          named("span", found.line),
          verdict.textContent && verdict,
          line(found.is_there ? fw.t`A file of this name is in ${found.folder} already.` : fw.t`It goes into the folder ${found.folder}.`),
          parts.length && line(fw.t`It also needs: ${found.parts.map((one) => one.label).join("; ")}`),
        ],
        [
          ...(parts.length
            ? [button(fw.t`Download with its parts (${size.toFixed(1)} GB)`, fw.t`The model, its text encoders and its VAE`,
              () => get(body, ...parts.map((source) => ({ source }))), "fw-primary")]
            : []),
          button(fw.t`Download`, fw.t`Only this file`, () => get(body), parts.length ? "" : "fw-primary"),
        ],
      ),
    );
    if (!verdict.textContent) return;
    const judged = await fw.post(`${ROUTE}/downloads/look`, body);
    verdict.replaceWith(judged.verdict ? named("span", judged.verdict, judged.fits === false ? "fw-bad" : "fw-fits") : "");
  }

  async function downloads() {
    if (!isShown()) return;
    const tasks = (await fw.get(`${ROUTE}/tasks`)).filter((task) => task.type === "download" || task.type === "doubles" || task.type === "conversion");
    const now = tasks.filter((task) => task.status === "done").map((task) => task.id);
    const isNew = finished !== null && now.some((id) => !finished.includes(id));
    finished = now;
    if (isNew) {
      await onDisk();
      document.querySelector("#refresh_sd_model_checkpoint")?.click();
    }
    const parts = await fw.get(`${ROUTE}/downloads/unfinished`);
    const text = JSON.stringify([tasks, parts]);
    if (text === drawn) return;
    drawn = text;
    const newest = new Map(); // of downloads that were asked for again, the last
    for (const task of tasks) if (!newest.has(task.title)) newest.set(task.title, task);
    const shown = [...newest.values()].filter((task) => task.status !== "interrupted");
    // Before it has looked at its file, a download is known by its title alone, which ends in a name or an address.
    const isFor = ({ outcome, title }, one) => (outcome ? outcome.file === one.name && outcome.folder === one.folder : title.endsWith(one.name));
    const isShownAs = (one) => shown.some((task) => task.status !== "done" && isFor(task, one));
    part("downloads").replaceChildren(
      ...shown.map(progress),
      ...parts.filter((one) => !isShownAs(one)).map(unfinished),
    );
  }

  // What was paused, or broke off with the server: it goes on where it was.
  function unfinished(one) {
    const { name, folder, url } = one;
    return row(
      name,
      [named("span", `${gb(one.done_bytes)} / ${gb(one.size_bytes)}`), line(fw.t`Paused. The downloaded part is kept.`)],
      [
        button(fw.t`Resume`, fw.t`Resume the download`, () => get({ source: url, name, folder }), "fw-primary"),
        button(fw.t`Cancel`, fw.t`Cancel and delete the downloaded part`, async () => {
          await fw.post(`${ROUTE}/downloads/discard`, { name, folder });
          await downloads();
        }),
      ],
    );
  }

  function progress(task) {
    const { outcome } = task;
    const isDownload = task.type === "download";
    const lines = [outcome?.line && named("span", outcome.line)];
    if (task.status === "running") lines.push(named("span", task.phase));
    if (task.status === "queued") lines.push(line(fw.t`Waiting...`));
    if (task.status === "failed") lines.push(named("span", task.error, "fw-bad"));
    if (task.status === "done" && isDownload) {
      lines.push(line(outcome.was_there ? fw.t`You already have it as ${outcome.file}.` : fw.t`Saved in ${outcome.folder} as ${outcome.file}.`));
    }
    if (task.status === "done" && !isDownload) lines.push(line("Done."));
    const cancel = button(fw.t`Cancel`, fw.t`Cancel and delete the downloaded part`, async () => {
      await fw.post(`${ROUTE}/downloads/cancel`, { task_id: task.id });
      await fw.post(`${ROUTE}/queue/remove`, { task_id: task.id });
      await downloads();
    });
    const again = button(fw.t`Try again`, fw.t`Resume the download`, async () => {
      await fw.post(`${ROUTE}/queue/again`, { task_id: task.id });
      await fw.post(`${ROUTE}/queue/remove`, { task_id: task.id });
      await downloads();
    }, "fw-primary");
    const buttons = {
      running: [isDownload && button(fw.t`Pause`, fw.t`Pause; the downloaded part is kept`, async () => {
        await fw.post(`${ROUTE}/tasks/${encodeURIComponent(task.id)}/cancel`, {});
        await downloads();
      }), cancel],
      queued: [cancel],
      failed: isDownload ? [again, cancel] : [cancel],
      done: [],
    }[task.status];
    const made = row(outcome?.file || task.title, lines, buttons.filter(Boolean), `fw-is-${task.status}`);
    if (task.status === "running") {
      const filled = fw.element("span");
      filled.style.width = `${(100 * task.fraction).toFixed(1)}%`;
      made.querySelector(".fw-models-text").append(fw.element("div", { className: "fw-bar" }, filled));
    }
    return made;
  }

  // -- the list ----------------------------------------------------------------------------------------------------------

  const costs = (model) => {
    const needs = model.is_streamed
      ? fw.t`Needs ${model.needs_gb} GB in 8 bits, more than there is: its weights are streamed.`
      : fw.t`Fits in 8 bits: needs ${model.needs_gb} of ${fitting.memory_gb} GB ${fitting.has_gpu ? "VRAM" : "RAM"}.`;
    const time = model.seconds && fw.t`About ${fw.duration(model.seconds)} per image on this CPU.`;
    return [line(needs, "fw-fits"), time && line(time)];
  };

  function offer(model) {
    return row(
      model.label,
      [named("span", model.good_for), ...costs(model), named("span", model.licence)],
      [
        button(fw.t`Download (${model.download_gb} GB)`, fw.t`The model, its text encoders and its VAE`, () => getAll(model), "fw-primary"),
        button(fw.t`Inspect`, fw.t`Read the header of the file`, () => look({ source: model.name })),
      ],
    );
  }

  async function lists() {
    if (known) return;
    [known, fitting] = await Promise.all([fw.get(`${ROUTE}/downloads/known`), fw.get(`${ROUTE}/downloads/fitting`)]);
    part("fitting").replaceChildren(...fitting.models.map(offer));
    part("known").replaceChildren(
      ...known.map((model) => row(
        `${model.label} · ${model.size_gb} GB`,
        [
          named("span", `${model.name} · ${model.repository}/${model.file}`),
          model.good_for && named("span", model.good_for),
          named("span", model.licence),
        ],
        [
          button(fw.t`Inspect`, fw.t`Read the header of the file`, () => look({ source: model.name })),
          button(fw.t`Download`, fw.t`The model, its text encoders and its VAE`, () => getAll(model)),
        ],
      )),
    );
  }

  // -- on disk -----------------------------------------------------------------------------------------------------------

  const isUnused = (file) => !file.is_part_of_program && Date.now() / 1000 - Math.max(file.used_at || 0, file.added_at) > UNUSED_S;
  const FILTERS = {
    all: () => true,
    unused: isUnused,
    doubles: (file) => file.doubles.length > 0,
    missing: (file) => file.missing.length > 0,
  };
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);

  async function onDisk() {
    disk = await fw.get(`${ROUTE}/models`);
    drawDisk();
  }

  function drawDisk() {
    const keeps = FILTERS[document.querySelector("#fw_models_shown").value];
    const files = disk.files.filter(keeps);
    const groups = Object.entries(KINDS).flatMap(([kind, word]) => {
      const some = files.filter((file) => file.kind === kind);
      if (!some.length) return [];
      const bytes = some.reduce((sum, file) => sum + file.size_bytes, 0);
      return [fw.element("h4", {}, NAMES.includes(word) ? named("span", word) : line(word), named("span", ` · ${some.length} · ${gb(bytes)}`)), ...some.map(onShelf)];
    });
    const trash = disk.trash.map((one) => row(one.name, [named("span", `${gb(one.size_bytes)} · ${day(one.at)}`)], [
      button(fw.t`Restore`, fw.t`Put it back where it was`, () => change("restore", { id: one.id })),
      button(fw.t`Delete for good`, fw.t`This cannot be undone`, async () => {
        if (window.confirm(fw.text(fw.t`Delete it for good?`))) await change("forget", { id: one.id });
      }),
    ]));
    part("disk").replaceChildren(
      ...(groups.length ? groups : [fw.element("p", { className: "fw-empty", textContent: fw.t`No such model files.` })]),
      ...(trash.length ? [fw.element("h4", { textContent: fw.t`Trash` }), ...trash] : []),
    );
  }

  async function change(name, body) {
    const reply = await fw.post(`${ROUTE}/models/${name}`, body);
    say("");
    await onDisk();
    document.querySelector("#refresh_sd_model_checkpoint")?.click();
    return reply;
  }

  const isMisplaced = ({ kind, found }) =>
    found.folder && found.folder !== kind && !["VAE", "text_encoder"].every((name) => [kind, found.folder].includes(name));

  function onShelf(file) {
    const way = file.folder ? `${file.folder}/${file.name}` : file.name;
    const others = disk.files.filter((one) => file.doubles.includes(one.key)).map((one) => one.name);
    const missing_gb = file.missing.reduce((sum, one) => sum + one.size_gb, 0);
    return row(
      way,
      [
        named("span", `${gb(file.size_bytes)} · ${file.found.refusal || file.found.line}`),
        isMisplaced(file) && line(fw.t`It goes into the folder ${file.found.folder}.`, "fw-bad"),
        file.used_at ? line(fw.t`Last used on ${day(file.used_at)}`) : line(fw.t`No image in the history uses it; added ${day(file.added_at)}`),
        others.length && line(fw.t`The same bytes as ${others.join(", ")}`),
        file.missing.length && line(fw.t`Missing parts: ${file.missing.map((one) => one.label).join("; ")}`, "fw-bad"),
      ],
      [
        file.missing.length && button(fw.t`Get missing parts (${missing_gb.toFixed(1)} GB)`, fw.t`Text encoders and VAE that it needs`,
          () => get(...file.missing.map((one) => ({ source: one.name }))), "fw-primary"),
        file.saves_bytes > 0 && button(fw.t`Save in 8 bits (saves ${gb(file.saves_bytes)})`, fw.t`As a second file next to this one`, async () => {
          await fw.post(`${ROUTE}/convert`, { checkpoint: way, alone: true, name: file.name.replace(/\.\w+$/, "-8bit.safetensors") });
          await downloads();
        }),
        button(fw.t`Look it up`, fw.t`Trigger words, base model and preview from Civitai or the Hub, onto its card`, async () => {
          say(fw.t`Looking it up...`);
          const about = await fw.post(`${ROUTE}/models/about`, { key: file.key });
          say(`${about.source}: ${[about.name, about.base, about.triggers.join(", ")].filter(Boolean).join(" · ")}`);
        }),
        !file.is_part_of_program && button(fw.t`Move`, fw.t`Move to another folder of its type`, async () => {
          const folder = window.prompt(fw.text(fw.t`Which folder? Empty: the folder of its type.`), file.folder);
          if (folder !== null) await change("move", { key: file.key, folder });
        }),
        !file.is_part_of_program && button(fw.t`Delete`, fw.t`Move to the trash; it can be restored`, () => change("delete", { key: file.key })),
      ].filter(Boolean),
    );
  }

  // -- the tab -----------------------------------------------------------------------------------------------------------

  async function opened() {
    if (!isShown()) return;
    await act(async () => {
      await lists();
      await downloads();
      await onDisk();
    })();
  }

  fw.getModels = () => fw.showTab("getmodels");

  // Once, after the first image of the model in the box: what a newcomer asks next.
  const OFFERED = "featherweight.offer";
  fw.offerRealModel = (tab) => {
    if (document.body.classList.contains("fw-other-model") || fw.me.role !== "admin" || localStorage.getItem(OFFERED)) return;
    localStorage.setItem(OFFERED, "done");
    const text = line(fw.t`This image was made by the small included model. The tab Get models has three that fit this machine.`);
    const open = fw.element("button", { type: "button", textContent: fw.t`Get a real model` });
    open.addEventListener("click", fw.getModels);
    const box = fw.element("div", { className: "fw-message fw-note fw-offer" }, text, open);
    tab.find("messages")?.prepend(box);
  };

  document.addEventListener("submit", (event) => {
    if (!event.target.closest?.("#fw_models")) return;
    event.preventDefault();
    act(() => look(asked()))();
  });
  document.addEventListener("click", (event) => {
    const name = event.target.closest?.("#fw_models [data-do]")?.dataset.do;
    if (name === "get") act(() => (asked().source ? get(asked()) : look(asked())))();
    if (name === "doubles") act(async () => {
      await fw.post(`${ROUTE}/models/doubles`, {});
      await downloads();
    })();
  });
  fw.whenShown("#fw_models", opened);
  document.addEventListener("change", (event) => {
    if (event.target.id === "fw_models_shown" && disk) drawDisk();
  });
  setInterval(() => act(downloads)(), LOOK_MS);
})();
