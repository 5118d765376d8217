// An image made once more: in another precision, or with another value of any parameter or setting.
(() => {
  const fw = window.featherweight;
  const { ROUTE, address, button } = fw.history;
  const LOOK_MS = 700;
  const SETTINGS = "Settings"; // the group whose values go into the settings of the job

  // The tools of the dialog of one image. `shown` holds its image, `isShown` says whether it is still looked at.
  fw.history.again = ({ image, shown, tell, trying, isShown, figure }) => {
    const precision = fw.element("select", {}, ...fw.history.precisions().map(([value, text]) => fw.element("option", { value, textContent: text })));
    precision.setAttribute("aria-label", fw.t`Precision`);
    const same = button(fw.t`Same seed, other precision`, fw.t`Make it again and show the difference`, trying(async () => {
      const { task_id } = await fw.post(`${ROUTE}/again`, { id: image.id, precision: precision.value });
      tell(fw.t`Queued; the difference appears here.`);
      const other = await finished(task_id, tell, isShown);
      if (other) await showDifference(image, other, shown, tell, figure);
    }));
    const form = fw.element("form", { className: "fw-again", hidden: true });
    const open = button(fw.t`Vary a parameter`, fw.t`Make it again with other values of one parameter`, trying(async () => {
      form.hidden = !form.hidden;
      open.setAttribute("aria-expanded", String(!form.hidden));
      if (!form.hidden && !form.children.length) await build(form, { image, tell, trying, isShown });
    }));
    open.setAttribute("aria-expanded", "false");
    return fw.element("div", { className: "fw-history-again", dataset: { for: "user" } },
      fw.element("div", { className: "fw-tools" }, open, same, precision), form);
  };

  // The image that a job made; null where it is no longer looked for.
  async function finished(task_id, tell, isShown) {
    for (;;) {
      if (!isShown()) return null;
      const job = await fw.get(`featherweight/v1/queue/job?task_id=${encodeURIComponent(task_id)}`);
      if (job.status === "failed" || job.status === "interrupted") throw new Error(job.error || fw.t`The job was stopped.`);
      if (job.status === "done") break;
      tell(fw.queueLine(job) || "waiting");
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    const other = (await fw.get(`${ROUTE}/of-job?task_id=${encodeURIComponent(task_id)}`)).find(({ role }) => role === "sample");
    if (!other) throw new Error("The image was not saved, so nothing can be compared; see Settings > Saving.");
    return other;
  }

  async function showDifference(image, other, shown, tell, figure) {
    const numbers = await fw.get(`${ROUTE}/compare?first=${image.id}&second=${other.id}`);
    const text = fw.history.differenceLine(numbers);
    shown.replaceChildren(
      figure(address(image, "image"), "this image"),
      figure(address(other, "image"), "the other precision"),
      figure(`${ROUTE}/difference?first=${image.id}&second=${other.id}`, fw.t`difference, 8 times: ${text}`),
    );
    tell(text);
  }

  // -- any parameter ---------------------------------------------------------------------------------------------------

  async function build(form, { image, tell, trying, isShown }) {
    const items = await fw.get(`${ROUTE}/parameters?id=${image.id}`);
    const groups = new Map();
    for (const item of items) groups.set(item.group, [...(groups.get(item.group) || []), item]);
    const names = fw.element("select", {}, ...[...groups].map(([label, list]) =>
      fw.element("optgroup", { label: fw.text(label) }, ...list.map((item) => fw.element("option", { value: String(items.indexOf(item)), textContent: item.label })))));
    names.setAttribute("aria-label", fw.t`Parameter`);
    names.value = String(Math.max(0, items.findIndex(({ name }) => name === "steps")));
    const place = fw.element("div", { className: "fw-again-value" });
    let field = null;
    const draw = () => {
      field = fieldOf(items[Number(names.value)]);
      place.replaceChildren(field.element, ...field.hints.map((textContent) => fw.element("small", { textContent })));
    };
    names.addEventListener("change", draw);
    draw();
    const submit = fw.element("button", { type: "submit", textContent: fw.t`Enqueue`, title: fw.t`One job per value; everything else stays the same` });
    form.replaceChildren(names, place, submit);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      trying(async () => {
        const item = items[Number(names.value)];
        const values = field.values();
        if (!values.length) throw new Error(fw.t`Give at least one value.`);
        const changes = values.map((value) => (item.group === SETTINGS ? { override_settings: { [item.name]: value } } : { [item.name]: value }));
        const { task_ids } = await fw.post(`${ROUTE}/again-with`, { id: image.id, changes });
        if (task_ids.length > 1) return tell(fw.t`Queued: ${task_ids.length}. The images appear in the history.`);
        tell(fw.t`Queued; both are compared when it is done.`);
        const other = await finished(task_ids[0], tell, isShown);
        if (!other) return;
        tell("");
        fw.history.compare(image, other);
      })();
    });
  }

  // A field for values of a parameter; several where that makes sense.
  function fieldOf({ label, type, value, choices, minimum, maximum }) {
    const labelled = (made) => {
      made.setAttribute("aria-label", label);
      return made;
    };
    if (type === "flag") {
      const made = labelled(fw.element("select", {}, ...[true, false].map((one) => fw.element("option", { value: String(one), textContent: one ? fw.t`On` : fw.t`Off` }))));
      made.value = String(!value);
      return { element: made, hints: [], values: () => [made.value === "true"] };
    }
    if (type === "choice") {
      const made = labelled(fw.element("select", { multiple: true, size: Math.min(6, Math.max(2, choices.length)) },
        ...choices.map(([, text], index) => fw.element("option", { value: String(index), textContent: text, selected: choices[index][0] === value }))));
      return { element: made, hints: [fw.t`Hold Ctrl to choose several.`], values: () => [...made.selectedOptions].map((one) => choices[Number(one.value)][0]) };
    }
    if (type === "number") {
      const made = labelled(fw.element("input", { value: value ?? "", inputMode: "decimal" }));
      const range = minimum === null || maximum === null ? [] : [fw.t`${minimum} to ${maximum}`];
      return { element: made, hints: [...range, fw.t`Separate several values by commas: one job each.`], values: () => numbers(made.value) };
    }
    const made = labelled(fw.element("textarea", { value: value ?? "", rows: 3 }));
    return { element: made, hints: [], values: () => [made.value] };
  }

  function numbers(text) {
    return text.split(/[,;\s]+/).filter(Boolean).map((one) => {
      const number = Number(one);
      if (!Number.isFinite(number)) throw new Error(fw.t`"${one}" is not a number.`);
      return number;
    });
  }
})();
