// The form outlives the page: its values are kept whenever one changes, and put back when the page is opened.
(() => {
  const fw = window.featherweight;
  const LOOK_AFTER_MS = 100;

  for (const tab of fw.tabs) {
    const KEY = `form.${tab.prefix}`;
    const earlier = fw.kept(KEY) || "";
    let isOpening = false;
    let begun = null; // the values of the page before others are put into it
    let first = null; // those that the page came with
    let asked = null; // what is to be put in now, and who waits for it
    tab.others = []; // the values of scripts

    // Put values into the form (see `keptForm`); a promise of the names among `fields` that it did not take.
    tab.putIn = (kept, fields) =>
      new Promise((done) => {
        asked = { text: JSON.stringify(kept), fields, done };
        begun = [...Object.values(tab.form), ...tab.others];
        tab.press("restore");
      });

    tab.putBack = () => tab.putIn({ fields: fw.namedValues(tab.fields, first), others: first.slice(tab.fields.length) }, []);

    // What the page that stood here before kept, as JSON; empty where there is nothing.
    tab.keptForm = () => asked?.text ?? earlier;

    // The page stands: its fields are read, and what was kept comes back.
    tab.openForm = () => {
      if (!isOpening) tab.press("keep");
      isOpening = true;
    };

    // Called with the values of all fields: first those that the page begins with, then whenever something changed.
    tab.keepForm = (values) => {
      tab.form = fw.namedValues(tab.fields, values);
      first ??= values;
      if (tab.hasKeptForm === undefined && earlier && !begun) {
        begun = values;
        tab.press("restore");
        return [];
      }
      tab.hasKeptForm = earlier !== "";
      const others = values.slice(tab.fields.length).map((value) => (isFile(value) ? null : value));
      tab.others = others;
      fw.keep(KEY, JSON.stringify({ fields: tab.form, others }));
      tab.describeForm();
      describeScripts(others);
      return [];
    };

    // Of what the server says was kept (`ImageTab.opened`), what is another than the page begins with; undefined
    // leaves a field alone.
    tab.changes = (text) => {
      let updates = [];
      try {
        updates = JSON.parse(text);
      } catch {
        tab.message(fw.t`The form of your last visit could not be restored.`, true); // the server did not answer
      }
      if (asked) asked.refused = asked.fields.filter((name) => !updates[tab.fields.indexOf(name)]);
      const isSame = (update, index) => Object.keys(update).join() === "value" && same(update.value, begun[index]);
      return updates.map((update, index) =>
        update && !isSame(update, index) ? { ...update, __type__: "update" } : undefined,
      );
    };

    tab.restored = () => {
      asked?.done(asked.refused || []);
      asked = null;
      tab.press("keep");
    };

    // Ask for the values of the fields, soon and once.
    let looking = 0;
    tab.look = () => {
      if (tab.hasKeptForm === undefined) return; // they may still be those of an empty form
      clearTimeout(looking);
      looking = setTimeout(() => tab.press("keep"), LOOK_AFTER_MS);
    };

    // What a model for few steps asks for: steps, CFG scale, sampler, schedule type and decoder, put into the form at once.
    tab.takeSteps = (asked) => {
      tab.askedSteps = asked;
      tab.press("take_steps");
    };

    // In the order of `names`; what a file does not ask for stays as it is.
    tab.wantedSteps = (names) => names.map((name) => (name === "overrides" ? withDecoder(tab.askedSteps) : tab.askedSteps[name] || tab.form[name]));

    // The decoder is a setting, which holds for this form only.
    const DECODER = "VAE Decoder: ";
    const others = () => (tab.form.overrides || []).filter((line) => !line.startsWith(DECODER));
    const withDecoder = (asked) => {
      const value = asked.decoder ? [...others(), DECODER + asked.decoder] : tab.form.overrides || [];
      return { value, choices: value.map((line) => [line, line]), visible: value.length > 0, __type__: "update" };
    };

    tab.hasSteps = (asked) =>
      ["steps", "cfg_scale", "sampler", "scheduler"].every((name) => !asked[name] || asked[name] === tab.form[name]) &&
      (!asked.decoder || (tab.form.overrides || []).includes(DECODER + asked.decoder));

    tab.describeForm = () => {
      describe("hr", tab.form.hires_enabled ? fw.hiresLine(tab.form) : "");
      describe("refiner", fw.refinerLine(tab.form));
      describe("seed_extras", fw.variationLine(tab.form));
      describe("outpaint", fw.outpaintLine(tab.form));
      const size = tab.find("hr_size");
      if (size) size.textContent = tab.form.hires_enabled ? "" : fw.hiresLine(tab.form); // else the head says it
    };

    // The head of each script's section says what of it is on.
    function describeScripts(values) {
      const sections = tab.find("script_container")?.querySelectorAll(".fw-script:has(> .label-wrap)") || [];
      const said = new Map(tab.switches.map(([section]) => [section, []]));
      for (const [section, place, text] of tab.switches) if (values[place]) said.get(section).push(fw.text(text));
      for (const [section, texts] of said) {
        const head = sections[section]?.querySelector(".label-wrap > span");
        if (head) head.dataset.state = texts.join(", ");
      }
      fw.describeGroups(tab);
    }

    function describe(name, text) {
      const head = tab.find(name, ".label-wrap > span");
      if (head) head.dataset.state = text;
    }
  }

  // What may change a field: its user, and an answer of the server.
  for (const name of ["input", "change", "click", "keyup"]) {
    document.addEventListener(name, ({ target }) => {
      for (const tab of fw.tabs) if (target.closest?.(`#tab_${tab.prefix}`)) tab.look();
    });
  }

  if (window.PerformanceObserver) {
    const calls = (list) => list.getEntries().some((entry) => entry.name.includes("/gradio_api/"));
    const observer = new PerformanceObserver((list) => calls(list) && fw.tabs.forEach((tab) => tab.look()));
    observer.observe({ type: "resource" });
  }

  // The page stands, and its lists are those of now. The form that is seen goes first; the others can wait until the
  // browser has nothing else to do, or until they are looked at.
  fw.formsOpened = () => {
    fw.shownTab().openForm();
    for (const tab of fw.tabs) whenIdle(tab.openForm);
    return [];
  };

  const whenIdle = (run) => (window.requestIdleCallback ? requestIdleCallback(run, { timeout: 3000 }) : setTimeout(run, 500));

  document.addEventListener("pointerdown", ({ target }) => {
    for (const tab of fw.tabs) if (target.closest?.(`#tab_${tab.prefix}-button, #tab_${tab.prefix}`)) tab.openForm();
  });

  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  const isFile = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  fw.namedValues = (names, values) => Object.fromEntries(names.map((name, index) => [name, values[index]]));

  // What hires fix makes of the size: "from 512x512 to 1024x1024".
  fw.hiresLine = (form) => {
    const number = (name) => Number(form[name]) || 0;
    const [width, height, scale] = [number("width"), number("height"), number("hires_scale")];
    const [wantWidth, wantHeight] = [number("hires_resize_width"), number("hires_resize_height")];
    let size = [width * scale, height * scale];
    if (wantWidth && wantHeight) size = [wantWidth, wantHeight];
    else if (wantWidth) size = [wantWidth, (wantWidth * height) / width];
    else if (wantHeight) size = [(wantHeight * width) / height, wantHeight];
    return fw.t`from ${width}x${height} to ${size.map(Math.floor).join("x")}`;
  };

  // "Variation strength 0.3, 768x512": what the extra seed settings change; empty where they change nothing.
  fw.variationLine = (form) => {
    const [width, height] = [Number(form.seed_resize_from_width) || 0, Number(form.seed_resize_from_height) || 0];
    const strength = Number(form.subseed_strength) || 0;
    const size = width && height ? `${width}x${height}` : "";
    return [strength ? `${fw.text(fw.t`Variation strength`)} ${strength}` : "", size].filter(Boolean).join(", ");
  };

  // "← 64 ↓ 128": by how many pixels the image grows on its sides; empty where it does not.
  fw.outpaintLine = (form) => {
    const sides = { "←": "left", "→": "right", "↑": "up", "↓": "down" };
    const grows = Object.entries(sides).map(([sign, side]) => [sign, Number(form[`outpaint_${side}`]) || 0]);
    return grows.filter(([, pixels]) => pixels > 0).map((one) => one.join(" ")).join(" ");
  };

  // "sharp.safetensors at 0.8"; empty where no refiner is chosen.
  fw.refinerLine = (form) => {
    const name = form.refiner_checkpoint;
    return !name || name === "None" ? "" : fw.t`${name.replace(/ \[\w+\]$/, "")} at ${form.refiner_switch_at}`;
  };
})();
