// Memory: what the job in the form would need, next to Generate; and after a job what its stages took.
(() => {
  const fw = window.featherweight;
  const LOOK_MS = 1000;
  const SETTLED_MS = 700; // the form must have been left alone for so long
  const STALE_MS = 60000;
  // A field of an API body -> the tab's name of its element.
  const ELEMENTS = { width: "width", height: "height", batch_size: "batch_size", n_iter: "batch_count" };

  // -- the estimate --------------------------------------------------------------------------------------------------

  for (const tab of fw.tabs) {
    let asked = ""; // what the last estimate was asked for
    let askedAt = 0;
    let seen = "";
    let seenAt = 0;
    let isAsking = false;
    let wasRunning = false;

    tab.lookAtMemory = () => {
      const scales = document.querySelector("#fw_scales");
      if (!tab.isShown || !scales || document.visibilityState === "hidden") return;
      const isRunning = tab.isRunning();
      if (wasRunning && !isRunning) askedAt = 0; // the job taught something
      wasRunning = isRunning;
      if (isRunning || isAsking || !/fw-(ready|failed)/.test(scales.className)) return;
      const now = Date.now();
      const wanted = JSON.stringify([fw.weighedForm(tab.form), tab.imageSize(), scales.textContent]);
      if (wanted !== seen) [seen, seenAt] = [wanted, now];
      if (wanted !== asked && asked) stale(); // what stands there belongs to another form
      if (now - seenAt < SETTLED_MS) return;
      if (wanted !== asked || now - askedAt > STALE_MS) ask(wanted);
    };

    async function ask(wanted) {
      isAsking = true;
      try {
        const [form, size] = JSON.parse(wanted);
        const imageSize = size && [size.width, size.height];
        show(await fw.post("internal/memory-estimate", { form, tab: tab.prefix, image_size: imageSize }));
      } catch {
        show(null); // a form that cannot be used: Generate will say why
      }
      [asked, askedAt, isAsking] = [wanted, Date.now(), false];
    }

    function stale() {
      const text = tab.find("plan_line", ".fw-plan-text");
      if (text) text.textContent = "…";
    }

    function show(estimate) {
      const place = tab.find("plan_line");
      if (!estimate) {
        place.replaceChildren();
        return;
      }
      const share = estimate.available ? Math.min(estimate.needs / estimate.available, 1) : 0;
      const bar = fw.element("span", { className: "fw-plan-bar" });
      const filled = fw.element("span");
      filled.style.width = `${Math.round(share * 100)}%`;
      bar.append(filled);
      const text = fw.element("span", { className: "fw-plan-text", textContent: named(estimate.line, estimate.device) });
      text.title = fw.estimateHint(estimate);
      place.classList.toggle("fw-over", !estimate.fits);
      place.replaceChildren(bar, text);
      if (!estimate.fits && !estimate.proposals.length) {
        place.append(fw.element("span", { textContent: estimate.nothing_fits || fw.t`It does not fit.` }));
      }
      for (const proposal of estimate.proposals) {
        const button = fw.element("button", { type: "button", textContent: `${proposal.title}: ${proposal.line}` });
        button.addEventListener("click", () => take(proposal));
        place.append(button);
      }
    }

    // One click makes the change that was proposed.
    async function take(proposal) {
      try {
        if (Object.keys(proposal.settings).length) await fw.post("sdapi/v1/options", proposal.settings);
        for (const [name, value] of Object.entries(proposal.fields)) tab.set(ELEMENTS[name], String(value));
        tab.clearMessages();
        tab.message(fw.t`Changed: ${proposal.title}.`);
      } catch (error) {
        tab.message(error.message, true);
      }
      askedAt = 0;
    }
  }

  setInterval(() => fw.tabs.forEach((tab) => tab.lookAtMemory()), LOOK_MS);

  // "needs 3.2 of 4.0 GB VRAM": of which memory.
  const named = (line, device) => line.replace("GB", /cpu/i.test(device || "") ? "GB RAM" : "GB VRAM");

  // The form as far as it decides about memory: of the prompts only their adapters, nothing of the seed.
  fw.weighedForm = (form) =>
    Object.fromEntries(
      Object.entries(form).map(([name, value]) => {
        if (name.endsWith("prompt")) return [name, (String(value || "").match(/<[^<>]+>/g) || []).join(" ")];
        return name === "seed" ? [name, -1] : [name, value];
      }),
    );

  fw.estimateHint = (estimate) => {
    const stages = estimate.stages.map((item) => fw.t`${item.stage}: ${(item.needs / 1e9).toFixed(2)} GB`);
    if (!estimate.learnt_from) stages.push(fw.t`an estimate, until an image of this kind was made`);
    return [estimate.device, ...stages].join("\n");
  };

  // -- the timeline --------------------------------------------------------------------------------------------------

  for (const tab of fw.tabs) {
    tab.showTimeline = async (task) => {
      const place = tab.find("memory");
      if (!place) return;
      place.hidden = true;
      try {
        const record = await fw.get(`featherweight/v1/memory-timeline?id_task=${encodeURIComponent(task)}`);
        if (!record.stages.length) return;
        const onCard = record.peak.allocated !== null;
        place.querySelector("summary").textContent = onCard
          ? fw.t`Memory: at most ${giga(record.peak.allocated)} of the GPU, ${giga(record.peak.rss)} of main memory`
          : fw.t`Memory: at most ${giga(record.peak.rss)}`;
        place.querySelector(".fw-memory-plot").replaceChildren(plot(record, onCard));
        place.hidden = false;
      } catch (error) {
        place.hidden = true; // no timeline of this job: nothing to show
      }
    };
  }

  const giga = (bytes) => (bytes === null ? "?" : `${(bytes / 1e9).toFixed(2)} GB`);

  // Stages as bands with their peaks, the samples as a line.
  function plot(record, onCard) {
    const column = onCard ? 3 : 2;
    const key = onCard ? "allocated" : "rss";
    const samples = record.samples.filter((sample) => sample[column] !== null);
    return fw.plot({
      label: fw.t`Memory over time, at most ${giga(record.peak[key])}`,
      lines: [{ name: onCard ? fw.t`Card` : fw.t`Main memory`, points: samples.map((sample) => [sample[0], sample[column]]) }],
      bands: record.stages.map((stage) => ({ name: stage.stage, from: stage.begin_s, to: stage.end_s, level: stage[key] || 0 })),
      showX: (seconds) => `${seconds.toFixed(1)} s`,
      showY: giga,
      fromZero: true,
      table: table(record, onCard),
    });
  }

  // The same as numbers, one line a stage.
  function table(record, onCard) {
    const most = new Map();
    for (const stage of record.stages) {
      const known = most.get(stage.stage) || { seconds: 0, rss: 0, allocated: 0, reserved: 0 };
      known.seconds += stage.end_s - stage.begin_s;
      for (const key of ["rss", "allocated", "reserved"]) known[key] = Math.max(known[key], stage[key] || 0);
      most.set(stage.stage, known);
    }
    const head = [fw.t`Stage`, fw.t`Seconds`, fw.t`Main memory`, ...(onCard ? [fw.t`Card`, fw.t`Reserved`] : [])];
    const rows = [...most].map(([name, peak]) => [
      name, peak.seconds.toFixed(1), giga(peak.rss), ...(onCard ? [giga(peak.allocated), giga(peak.reserved)] : []),
    ]);
    return { head, rows };
  }
})();
