// Presets of the whole form by name, kept by the server and shared as files; and how much of the page is shown.
(() => {
  const fw = window.featherweight;
  const ROUTE = "internal/presets";
  const FORMAT = 1;
  const MAX_FILE_BYTES = 1_000_000;
  const VIEWS = { Simple: fw.t`Simple`, Work: fw.t`Full`, Classic: fw.t`Classic` };
  const HINTS = {
    Simple: fw.t`Prompt, size, style, Generate`, Work: fw.t`Form, image and queue beside each other`, Classic: fw.t`Prompts on top, as in the reference UI`,
  };
  const PROMPTS = ["prompt", "negative_prompt", "hires_prompt", "hires_negative_prompt"];
  const OF_IMAGES = ["mode", "batch_source", "batch_input_dir", "batch_output_dir", "batch_mask_dir", "batch_png_info_dir"]; // no part of a look
  const SHAPES = { Square: [1, 1], Portrait: [3, 4], Landscape: [4, 3], Wide: [16, 9] };
  const SHAPE_NAMES = { Square: fw.t`Square`, Portrait: fw.t`Portrait`, Landscape: fw.t`Landscape`, Wide: fw.t`Wide` };
  let presets = {};
  let applied = "";

  fw.view = () => fw.kept("view") || fw.settings.ui_layout || "Work";

  // -- what a form holds, by names that another version knows ----------------------------------------------------------

  // The fields of scripts as "Title of the fold/Label", in the order in which their values arrive; of those with one name
  // the later ones are numbered.
  fw.scriptFields = (config, prefix, first) => {
    const keep = config.components.find((part) => part.props.elem_id === `${prefix}_keep`)?.id;
    const inputs = config.dependencies.find((event) => event.targets.some(([id]) => id === keep))?.inputs || [];
    const parts = new Map(config.components.map((part) => [part.id, part]));
    const folds = new Map();
    const walk = (node, fold) => {
      const part = parts.get(node.id);
      const inside = part?.type === "accordion" && !fold ? part.props.label : fold;
      folds.set(node.id, inside);
      for (const child of node.children || []) walk(child, inside);
    };
    walk(config.layout, "");
    const seen = new Map();
    return inputs.slice(first).map((id) => {
      const props = parts.get(id)?.props || {};
      const name = [folds.get(id), props.label || props.elem_id].filter(Boolean).join("/");
      seen.set(name, (seen.get(name) || 0) + 1);
      return seen.get(name) > 1 ? `${name} #${seen.get(name)}` : name;
    });
  };

  const fieldsOf = (tab) => (tab.scriptFields ??= fw.scriptFields(window.gradio_config, tab.prefix, tab.fields.length));

  function taken(tab, withPrompts) {
    const left = withPrompts ? OF_IMAGES : [...OF_IMAGES, ...PROMPTS];
    const fields = Object.fromEntries(Object.entries(tab.form).filter(([name, value]) => !left.includes(name) && value !== null)); // null: the field is hidden
    const scripts = Object.fromEntries(fieldsOf(tab).map((name, index) => [name, tab.others[index]]).filter(([, value]) => value !== null));
    return { featherweight_preset: FORMAT, family: fw.family || "", tab: tab.prefix, fields, scripts };
  }

  // What `preset` says, as a page keeps a form: fields that it does not name stay as they are. Also the names that this
  // version has no field for.
  fw.presetForm = (preset, names, others) => {
    const scripts = preset.scripts || {};
    const unknown = Object.keys(scripts).filter((name) => !names.includes(name));
    return { unknown, kept: { fields: preset.fields || {}, others: names.map((name, index) => (Object.hasOwn(scripts, name) ? scripts[name] : others[index] ?? null)) } };
  };

  const isPreset = (one) => one?.featherweight_preset !== undefined && typeof one.fields === "object" && one.fields !== null;

  function say(text, isError = false) {
    const tab = fw.shownTab();
    tab.clearMessages();
    tab.message(text, isError);
  }

  async function apply(name) {
    const tab = fw.shownTab();
    const preset = presets[name];
    if (!isPreset(preset) || preset.featherweight_preset > FORMAT) {
      return say(fw.t`The preset ${name} is of a newer version, or none at all: update the program, or save it again.`, true);
    }
    const { kept, unknown } = fw.presetForm(preset, fieldsOf(tab), tab.others);
    const refused = await tab.putIn(kept, Object.keys(preset.fields));
    applied = name;
    draw();
    const left = [...unknown, ...refused];
    if (left.length) say(fw.t`Preset ${name}: left out, because this page or model has nothing of the kind: ${left.slice(0, 8).join(", ")}`);
  }

  // As the page comes, and then as the loaded model's own settings have it.
  async function reset() {
    const tab = fw.shownTab();
    await tab.putBack();
    applied = "";
    if (tab.proposedSize) for (const side of ["width", "height"]) tab.set(side, String(tab.proposedSize));
    const usual = document.querySelector("#fw_usual");
    if (usual && !usual.hidden) usual.click();
    draw();
  }

  async function change(name, preset) {
    try {
      presets = (await fw.post(ROUTE, { name, preset })).presets;
    } catch (error) {
      say(error.message, true);
    }
    draw();
  }

  async function open(file) {
    try {
      if (file.size > MAX_FILE_BYTES) throw new Error(fw.t`${file.name} is larger than 1 MB, which no preset is.`);
      const read = await file.text().then(JSON.parse).catch(() => null);
      if (!isPreset(read)) throw new Error(fw.t`${file.name} is no preset of this program.`);
      const name = String(read.name || file.name.replace(/(\.preset)?\.json$/, "")).slice(0, 80);
      await change(name, read);
      if (presets[name]) await apply(name);
    } catch (error) {
      say(error.message, true);
    }
  }

  function share(name) {
    const url = URL.createObjectURL(new Blob([JSON.stringify({ name, ...presets[name] }, null, 2)], { type: "application/json" }));
    fw.element("a", { href: url, download: `${name.replace(/[^\p{L}\p{N} _-]/gu, "_")}.preset.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  // -- the menu ----------------------------------------------------------------------------------------------------------

  const button = (text, run, properties = {}) => {
    const made = fw.element("button", { type: "button", textContent: text, ...properties });
    made.addEventListener("click", run);
    return made;
  };

  const sign = (icon, text, run) => button("", run, { className: `fw-icon fw-icon-${icon}`, title: text, attributes: { "aria-label": text } });

  function row(name) {
    const own = button(name, () => apply(name), { translate: false, className: "fw-preset-name", title: fw.t`Put it into the form` });
    own.setAttribute("aria-pressed", String(name === applied));
    return fw.element("div", { className: "fw-preset" }, own, sign("download", fw.t`Share ${name} as a file`, () => share(name)), sign("delete", fw.t`Delete ${name}`, () => change(name, null)));
  }

  const heading = (text) => fw.element("h3", { textContent: text });

  function saving() {
    const name = fw.element("input", { type: "text", maxLength: 80, placeholder: fw.t`Name of the preset`, attributes: { "aria-label": fw.t`Name of the preset` } });
    const prompts = fw.element("input", { type: "checkbox" });
    const form = fw.element("form", { className: "fw-preset-saving" }, name, fw.element("button", { type: "submit", textContent: fw.t`Save` }),
      fw.element("label", {}, prompts, fw.element("span", { textContent: fw.t`with the prompts` })));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const wanted = name.value.trim();
      if (!wanted) return name.focus();
      applied = wanted;
      await change(wanted, taken(fw.shownTab(), prompts.checked));
    });
    return form;
  }

  function draw() {
    const menu = document.querySelector("#fw_presets");
    if (!menu) return;
    const head = menu.querySelector("[data-menu]") || menu.appendChild(button("", () => {}, { attributes: { "data-menu": "", "aria-haspopup": "true", "aria-expanded": "false" } }));
    head.className = "fw-menu-button fw-icon-preset";
    head.title = fw.t`Presets of the form, and how much of the page is shown`;
    head.replaceChildren(fw.element("span", { textContent: applied || fw.t`Presets`, translate: !applied }));
    if (applied) head.title = applied;
    const box = menu.querySelector(":scope > div") || menu.appendChild(fw.element("div"));
    const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
    const ours = names.filter((name) => !fw.family || !presets[name]?.family || presets[name].family === fw.family);
    const others = names.filter((name) => !ours.includes(name));
    const views = Object.entries(VIEWS).map(([view, title]) => button(title, () => show(view), { title: HINTS[view], attributes: { "aria-pressed": String(fw.view() === view) } }));
    const file = fw.element("input", { type: "file", accept: ".json,application/json", hidden: true });
    file.addEventListener("change", () => file.files[0] && open(file.files[0]));
    box.replaceChildren(
      fw.element("div", { className: "fw-views", attributes: { role: "group", "aria-label": fw.t`How much is shown` } }, ...views),
      ...(ours.length ? [heading(fw.t`Presets`), ...ours.map(row)] : []),
      ...(others.length ? [heading(fw.t`Of other models`), ...others.map(row)] : []),
      heading(fw.t`Save the form as a preset`), saving(), file,
      button(fw.t`Open a preset file ...`, () => file.click()),
      button(fw.t`Reset to the model's own`, reset),
      button(fw.t`What is shown ...`, fw.chooseShown),
    );
  }

  function show(view) {
    fw.keep("view", view);
    fw.layOut();
    draw();
  }

  document.addEventListener("click", async (event) => {
    if (!event.target.closest?.("#fw_presets > [data-menu]")) return;
    draw();
    presets = await fw.get(ROUTE).then((reply) => reply.presets).catch(() => presets);
    draw();
  });

  // -- sizes by their shapes, for the simple view ------------------------------------------------------------------------

  function sizes(tab) {
    const place = tab.find("prompt")?.closest(".fw-prompts");
    if (!place || place.querySelector(".fw-shapes")) return;
    const made = Object.entries(SHAPES).map(([shape, [across, down]]) => {
      const one = button(SHAPE_NAMES[shape], () => {
        const side = tab.proposedSize || Number(tab.field("width")?.value) || 512;
        const fit = (share) => Math.max(64, Math.round((side * Math.sqrt(share)) / 64) * 64);
        tab.set("width", String(fit(across / down)));
        tab.set("height", String(fit(down / across)));
      }, { attributes: { style: `--across: ${across}; --down: ${down}` } });
      return one;
    });
    place.append(fw.element("div", { className: "fw-shapes", attributes: { role: "group", "aria-label": fw.t`Size` } }, ...made));
  }

  fw.drawPresets = () => {
    draw();
    fw.tabs.forEach(sizes);
    fw.hideUnused();
  };
})();
