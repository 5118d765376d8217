// The Settings tab: one page at a time, a search over all, marks, what is not saved yet, actions.
(() => {
  const fw = window.featherweight;
  let fields = []; // of settings_fields.js, in the order of the page
  let stored = {}; // what the server has, as JSON by key
  let unsaved = 0;
  let place = "0";

  const find = (inside) => document.querySelector(`#tab_settings ${inside}`);
  const all = (inside) => [...document.querySelectorAll(`#tab_settings ${inside}`)];
  const settings = () => all(".fw-section:not(.fw-no-settings) .fw-setting");

  // The page at this place of the list, or "all".
  function show(wanted) {
    place = wanted;
    all(".fw-section").forEach((section, index) => {
      section.hidden = wanted === "all" ? section.classList.contains("fw-no-settings") : String(index) !== wanted;
      section.style.display = section.hidden ? "none" : "";
    });
    for (const setting of settings()) setting.style.display = "";
    for (const button of all("[data-place]")) button.setAttribute("aria-current", String(button.dataset.place === wanted));
    find("#settings_nothing").hidden = true;
    if (!find("#settings_page_licences")?.hidden) licences();
  }

  function search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return show(place);
    // In the page's language, and in English, in which all guides are written.
    const found = (part) => [part.textContent, fw.sourceText(part)].some((one) => one.toLowerCase().includes(wanted));
    let total = 0;
    const places = new Set();
    for (const [index, section] of all(".fw-section").entries()) {
      const title = found(section.querySelector("h2"));
      let shown = title && section.classList.contains("fw-no-settings") ? 1 : 0;
      for (const setting of section.querySelectorAll(".fw-setting")) {
        const matches = title || found(setting) || setting.id.toLowerCase().includes(wanted);
        setting.style.display = matches ? "" : "none";
        shown += matches ? 1 : 0;
      }
      section.hidden = shown === 0;
      section.style.display = shown ? "" : "none";
      if (shown) places.add(String(index));
      total += shown;
    }
    for (const button of all("[data-place]")) button.setAttribute("aria-current", String(places.has(button.dataset.place)));
    find("#settings_nothing").hidden = total > 0;
  }

  // -- what is not saved, and what is not as it comes -----------------------------------------------------------------

  const asText = (value) => JSON.stringify(value ?? null);

  // A field that holds what the server has not; an emptied number keeps its value.
  const isChanged = (field) => field.value() !== null && asText(field.value()) !== stored[field.key];

  function compare() {
    const changed = fields.filter(isChanged);
    unsaved = changed.length;
    const line = find("#settings_unsaved");
    if (line) line.textContent = unsaved ? (unsaved === 1 ? fw.t`1 change is not saved` : fw.t`${unsaved} changes are not saved`) : "";
    for (const field of fields) field.element.classList.toggle("fw-unsaved", changed.includes(field));
  }

  // The server has these values now.
  function taken(values) {
    stored = Object.fromEntries(Object.entries(values).map(([key, value]) => [key, asText(value)]));
    for (const field of fields) {
      field.set(values[field.key]);
      mark(field);
    }
    compare();
  }

  window.addEventListener("beforeunload", (event) => {
    if (unsaved) event.preventDefault();
  });

  // A dot beside each setting that is not at its default, which is what the dot says.
  function mark(field) {
    let dot = field.element.querySelector(":scope > .fw-mark");
    if (stored[field.key] === asText(field.initial)) return dot?.remove();
    if (!dot) {
      dot = fw.element("span", { className: "fw-mark", textContent: "●", attributes: { role: "img" } });
      field.element.append(dot);
    }
    dot.title = fw.t`Changed; the default is ${asText(field.initial)}`;
    dot.setAttribute("aria-label", dot.title);
  }

  function refused(error) {
    const box = fw.element("div", { className: "fw-message fw-error", textContent: error.message });
    box.setAttribute("role", "alert");
    find("#settings_result").replaceChildren(box);
  }

  async function save() {
    const changed = fields.filter(isChanged);
    const values = Object.fromEntries(changed.map((field) => [field.key, field.value()]));
    try {
      const reply = await fw.post("internal/settings", { values });
      taken(reply.values);
      find("#settings_result").innerHTML = reply.html; // the server has escaped it
      document.dispatchEvent(new CustomEvent("fw:settings"));
    } catch (error) {
      refused(error);
    }
  }

  // The fields of all settings, in the sections that the page has for them.
  async function build() {
    let description;
    try {
      description = await fw.get("internal/settings");
    } catch (error) {
      return refused(error);
    }
    const places = all(".fw-section"); // by their order: two may have the same id
    for (const [index, section] of description.sections.entries()) {
      const own = section.settings.map(fw.settingField);
      places[index].append(...own.map((field) => field.element));
      fields.push(...own);
    }
    taken(Object.fromEntries(description.sections.flatMap((one) => one.settings.map(({ key, value }) => [key, value]))));
  }

  // -- actions --------------------------------------------------------------------------------------------------------

  const say = (text) => {
    const line = find("#settings_action_result");
    if (line) line.textContent = text;
  };

  const actions = {
    save,
    async reload() {
      unsaved = 0;
      await fw.post("internal/reload-page", {});
      location.reload();
    },
    async unload() {
      await fw.post("sdapi/v1/unload-checkpoint", {});
      say(fw.t`The model is unloaded.`);
    },
    async load() {
      await fw.post("sdapi/v1/reload-checkpoint", {});
      say(fw.t`The model is loaded.`);
    },
    async measure() {
      say(fw.t`The device is measured ...`);
      await fw.post("featherweight/v1/measure-device", {});
      say(fw.t`The device was measured. Images are made by it from now on.`);
    },
    async notify() {
      if (!window.Notification) throw new Error(fw.t`This browser shows notifications only on this machine, or over https.`);
      const answer = await Notification.requestPermission();
      say(answer === "granted" ? fw.t`The browser will tell you when images are done.` : fw.t`The browser does not allow it.`);
    },
  };

  async function licences() {
    const table = find("#settings_licences");
    if (!table || table.childElementCount) return;
    const rows = await fw.get("internal/licences").catch(() => []);
    const cells = rows.map((row) => fw.element("tr", {}, ...row.map((text) => fw.element("td", { textContent: text }))));
    table.replaceChildren(fw.element("table", {}, ...cells));
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("#tab_settings [data-place], #tab_settings [data-act]");
    if (!button) return;
    if (button.dataset.place !== undefined) {
      find("#settings_search").value = "";
      return show(button.dataset.place);
    }
    button.disabled = true;
    try {
      await actions[button.dataset.act]();
    } catch (error) {
      say(error.message);
    }
    button.disabled = false;
  });
  for (const name of ["input", "change"]) {
    document.addEventListener(name, (event) => {
      if (event.target.closest?.("#tab_settings .fw-setting")) compare();
    });
  }
  document.addEventListener("input", (event) => {
    if (event.target.id === "settings_search") search(event.target.value);
  });

  // The tab's contents come when it is first opened.
  const waiting = setInterval(async () => {
    if (!find("#settings_nothing")) return;
    clearInterval(waiting);
    show(place);
    await build();
    search(find("#settings_search").value); // what was typed while the settings were on their way
  }, 100);
})();
