// The Settings tab: one page at a time, a search over all, marks, what is not saved yet, actions.
(() => {
  const fw = window.featherweight;
  let stored = []; // the settings' values as the server has them, in the order of the page
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
    for (const section of all(".fw-section")) {
      const title = found(section.querySelector("h2"));
      let shown = title && section.classList.contains("fw-no-settings") ? 1 : 0;
      for (const setting of section.querySelectorAll(".fw-setting")) {
        const matches = title || found(setting) || setting.id.toLowerCase().includes(wanted);
        setting.style.display = matches ? "" : "none";
        shown += matches ? 1 : 0;
      }
      section.hidden = shown === 0;
      section.style.display = shown ? "" : "none";
      total += shown;
    }
    find("#settings_nothing").hidden = total > 0;
  }

  // -- what is not saved, and what is not as it comes -----------------------------------------------------------------

  fw.settingsStored = (values) => {
    stored = values.map((value) => JSON.stringify(value ?? null));
    fw.settingsChanged(values);
    mark();
    return [];
  };

  fw.settingsChanged = (values) => {
    if (!stored.length) return [];
    const changed = values.map((value, index) => JSON.stringify(value ?? null) !== stored[index]);
    unsaved = changed.filter(Boolean).length;
    const line = find("#settings_unsaved");
    if (line) line.textContent = unsaved ? (unsaved === 1 ? "1 change is not saved" : `${unsaved} changes are not saved`) : "";
    settings().forEach((setting, index) => setting.classList.toggle("fw-unsaved", Boolean(changed[index])));
    return [];
  };

  window.addEventListener("beforeunload", (event) => {
    if (unsaved) event.preventDefault();
  });

  // A dot beside each setting that is not at its default, which is what the dot says.
  async function mark() {
    const defaults = await fw.get("internal/changed-settings").catch(() => null);
    if (!defaults) return;
    for (const setting of settings()) {
      const key = setting.id.replace(/^settings_tab_|^setting_/, "");
      let dot = setting.querySelector(":scope > .fw-mark");
      if (!Object.hasOwn(defaults, key)) dot?.remove();
      else {
        if (!dot) {
          dot = fw.element("span", { className: "fw-mark", textContent: "●", attributes: { role: "img" } });
          setting.append(dot);
        }
        dot.title = `Changed; the default is ${defaults[key]}`;
        dot.setAttribute("aria-label", dot.title);
      }
    }
  }

  // -- actions --------------------------------------------------------------------------------------------------------

  const say = (text) => {
    const line = find("#settings_action_result");
    if (line) line.textContent = text;
  };

  const actions = {
    async reload() {
      unsaved = 0;
      await fw.post("internal/reload-page", {});
      location.reload();
    },
    async unload() {
      await fw.post("sdapi/v1/unload-checkpoint", {});
      say("The model is unloaded.");
    },
    async load() {
      await fw.post("sdapi/v1/reload-checkpoint", {});
      say("The model is loaded.");
    },
    async notify() {
      if (!window.Notification) throw new Error("This browser shows notifications only on this machine, or over https.");
      const answer = await Notification.requestPermission();
      say(answer === "granted" ? "The browser will say when images are done." : "The browser does not allow it.");
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
  let comparing = 0;
  for (const name of ["input", "change", "click", "keyup"]) {
    document.addEventListener(name, (event) => {
      if (!event.isTrusted || !event.target.closest?.("#tab_settings .fw-setting")) return;
      clearTimeout(comparing);
      comparing = setTimeout(() => find("#settings_compare")?.click(), 300);
    });
  }
  document.addEventListener("input", (event) => {
    if (event.target.id === "settings_search") search(event.target.value);
  });

  // The tab's contents come when it is first opened.
  const waiting = setInterval(() => {
    if (!find("#settings_nothing") || !find("#settings_open")) return;
    clearInterval(waiting);
    show(place);
    find("#settings_open").click(); // asks for what is stored now; when the page is opened that would cost seconds
  }, 200);
})();
