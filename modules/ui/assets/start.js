// Runs once the page stands: theme, scales, the job of an earlier visit.
(() => {
  const fw = window.featherweight;
  const THEME = "featherweight.theme";

  function applyTheme(theme) {
    document.body.classList.toggle("dark", theme === "dark");
    document.documentElement.style.colorScheme = theme;
  }

  function startTheme() {
    const asked = new URLSearchParams(location.search).get("__theme") || fw.forcedTheme;
    const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    applyTheme(asked || localStorage.getItem(THEME) || preferred);
    document.addEventListener("click", (event) => {
      if (!event.target.closest || !event.target.closest("#fw_theme")) return;
      const theme = document.body.classList.contains("dark") ? "light" : "dark";
      localStorage.setItem(THEME, theme);
      applyTheme(theme);
    });
  }

  async function weigh() {
    const place = document.querySelector("#fw_scales");
    if (!place) return;
    try {
      const engine = await fw.get("internal/engine");
      fw.settings = engine.settings;
      fw.family = engine.state === "ready" ? engine.line.split(" · ")[0] : fw.family;
      follow();
      const line = engine.state === "ready" ? [engine.line, engine.pending].filter(Boolean).join(" · ") : engine.message;
      place.textContent = fw.text(line).replaceAll(" · ", "\u00a0· "); // no line begins with the dot
      place.className = `fw-${engine.state}`;
      place.title = engine.facts.split("\n").map(fw.text).join("\n");
      place.dataset.hashing = engine.hashing;
      document.body.classList.toggle("fw-other-model", !engine.is_bundled);
      for (const tab of fw.tabs) followSize(tab, engine.size);
      if (engine.unused) document.body.dataset.unused = engine.unused.join(" "); // while none is loaded, as it was
      offerUsual(engine.usual);
    } catch {
      place.textContent = fw.t`The server does not answer.`;
      place.className = "fw-failed";
    }
  }

  // Steps, sampler and scales that the model was made for, put into the form by one click; never by themselves.
  function offerUsual(usual) {
    const button = document.querySelector("#fw_usual");
    if (!button) return;
    button.hidden = !usual;
    button.title = usual || "";
    button.onclick = () => {
      const tab = fw.tabs.find((one) => one.isShown) || fw.tabs[0];
      const [prompt, negative] = ["prompt", "neg_prompt"].map((name) => tab.field(name)?.value || "");
      tab.take([prompt, negative && [fw.t`Negative prompt`, negative].join(": "), usual].filter((line, at) => line || !at).join("\n"));
    };
  }

  const isConfigured = (tab, name) => Boolean(tab.find(name)?.classList.contains("fw-configured"));

  // The form's size follows the model's, as long as it is the size that was proposed; one that a user chose stays.
  function followSize(tab, size) {
    const [width, height] = ["width", "height"].map((name) => Number(tab.field(name)?.value));
    // A page that is there before the model shows the size that the server guessed.
    if (!size && !tab.proposedSize && !tab.hasKeptForm && width === height) tab.proposedSize = width;
    if (!size) return;
    if (tab.proposedSize && size !== tab.proposedSize) {
      if (width === tab.proposedSize && !isConfigured(tab, "width")) tab.set("width", String(size));
      if (height === tab.proposedSize && !isConfigured(tab, "height")) tab.set("height", String(size));
    }
    tab.proposedSize = size;
  }

  // Settings that change how the page looks.
  function follow() {
    for (const tab of fw.tabs) {
      const stage = tab.find("gallery", ".fw-stage");
      if (stage) stage.style.height = fw.settings.gallery_height;
    }
    document.body.style.setProperty("--fw-viewer-opacity", fw.settings.sd_webui_modal_lightbox_icon_opacity);
    document.body.classList.toggle("fw-no-counters", fw.settings.disable_token_counters);
    document.body.classList.toggle("fw-no-progressbar", !fw.settings.show_progressbar);
    document.body.classList.toggle("fw-no-canvas-help", fw.settings.canvas_show_tooltip === false);
    document.body.classList.toggle("fw-compact", fw.settings.ui_density === "Compact");
    document.body.classList.toggle("fw-contrast", fw.settings.gradio_theme === "High contrast");
  }

  // What buttons that show a sign only are called: for the pointer that rests on them, and for screen readers.
  const SIGNS = {
    "↻": fw.t`Look for new files`,
    "⇅": fw.t`Swap width and height`,
    "⚄": fw.t`Use a new seed each time`,
    "⇲": fw.t`Take the size of the image`,
    "♻": fw.t`Use the seed of the selected image`,
    Clear: fw.t`Empty both prompts`,
    Paste: fw.t`Fill the form from the parameters in the prompt, or from the last image`,
    [fw.t`Last job`]: fw.t`Show the last job again`,
  };

  // Signs that are shown as icons (icons.css); the sign itself is for those who read without styles.
  const ICONS = {
    "↻": "refresh", "⇅": "swap", "⚄": "dice", "⇲": "measure", "♻": "reuse", "◐": "theme", "⋯": "more", "×": "close", "✕": "close",
    "↑": "up", "↓": "down", "←": "left", "→": "right", "↶": "undo", "↷": "redo", "−": "zoom-out", "+": "zoom-in", "⤢": "measure", "⟲": "reuse", "⌕": "find", "⚙": "gear",
  };
  const TOOLS = { Paste: "use", Clear: "erase", [fw.t`Last job`]: "clock" }; // of the row below the prompts

  // What holds where nothing is chosen.
  function nameEmpty() {
    const field = document.querySelector("#setting_forge_additional_modules input");
    if (field) field.placeholder = field.closest(".wrap-inner")?.querySelector(".token") ? "" : fw.text(fw.t`Automatic`);
  }

  fw.drawIcons = () => {
    for (const button of document.querySelectorAll("button:not(.fw-icon):not(#lightboxModal button)")) {
      const icons = button.closest(".fw-form-tools") ? TOOLS : ICONS;
      const icon = button.childElementCount === 0 && icons[fw.sourceText(button).trim()];
      if (icon) button.classList.add("fw-icon", `fw-icon-${icon}`);
    }
  };

  function nameButtons() {
    fw.drawIcons();
    nameEmpty();
    fw.dressUploads();
    for (const button of document.querySelectorAll("button:not([title])")) {
      const name = SIGNS[fw.sourceText(button).trim()];
      if (!name) continue;
      button.title = name;
      if (button.textContent.trim().length === 1 && !button.hasAttribute("aria-label")) button.setAttribute("aria-label", name);
    }
  }

  // A text that is longer than its field can be read while the pointer rests on it.
  document.addEventListener("mouseover", (event) => {
    if (event.target.matches?.("input[role=combobox]")) event.target.title = event.target.value;
  });

  // The entry of a tab in the menu of tabs that found no room; entries have no id, only the tab's title.
  function inMenu(id, outer) {
    const title = window.gradio_config?.components.find((part) => part.props.elem_id === id)?.props.label;
    const entries = outer ? document.querySelectorAll(`#${outer} .overflow-dropdown button`) : topMenu();
    return [...entries].find((entry) => fw.sourceText(entry).trim() === title);
  }

  const topMenu = () => document.querySelector("#tabs .overflow-dropdown")?.querySelectorAll("button") || [];

  let clicks = 0; // of the user, whose own choice of a tab stays
  document.addEventListener("click", (event) => event.isTrusted && (clicks += 1), true);

  const pause = () => new Promise((resolve) => setTimeout(resolve, 50));

  async function until(isSo, tries = 100) {
    while (!isSo() && (tries -= 1) > 0) await pause();
    return isSo();
  }

  // Show a tab, or a sub tab inside of it, by the ids of their elements. Their buttons may come after the page. A form that
  // is put back shows the sub tab that was kept with it, be it when it arrives or when Gradio builds its tab: then once more.
  fw.showTab = async (name, ...subTabs) => {
    const [outer, form, before] = [`tab_${name}`, fw.tab(name), clicks];
    form?.openForm();
    await until(() => form?.hasKeptForm !== undefined || !form);
    for (const id of [outer, ...subTabs]) {
      const wanted = () => document.querySelector(`#${id}-button`) || inMenu(id, id === outer ? "" : outer);
      await until(wanted);
      for (let presses = 0; presses < 10; presses += 1) {
        if (presses && clicks !== before) return;
        wanted()?.click();
        await pause();
        if (await until(() => document.getElementById(id)?.offsetParent, 4)) break;
      }
    }
  };

  // The tabs and sub tabs that are seen come back after a reload of this window.
  const TABS = "featherweight.tabs";
  const seenTabs = () => [...document.querySelectorAll("[role=tabpanel][id]")].filter((panel) => panel.offsetParent).map((panel) => panel.id);

  function reopenTabs() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(TABS) || "[]");
      addEventListener("pagehide", () => sessionStorage.setItem(TABS, JSON.stringify(seenTabs())));
      if (kept[0]?.startsWith("tab_") && kept.join() !== seenTabs().join()) fw.showTab(kept[0].slice("tab_".length), ...kept.slice(1));
    } catch (error) {
      console.warn(fw.t`The browser cannot keep the form over a reload: ${error.message}`); // switched off, or full of another's
    }
  }

  // A tab that was not opened yet has no place to show its job.
  async function resumeWhenThere(tab) {
    while (!tab.find("gallery")) await new Promise((resolve) => setTimeout(resolve, 300));
    tab.resume();
  }

  function ready() {
    if (!fw.tabs.some((tab) => tab.find("generate") && tab.find("gallery"))) {
      setTimeout(ready, 100);
      return;
    }
    startTheme();
    fw.drawPresets();
    reopenTabs();
    nameButtons();
    weigh();
    setInterval(weigh, 2000);
    setInterval(nameButtons, 2000);
    setInterval(fw.hideUnused, 2000);
    document.addEventListener("click", () => setTimeout(nameButtons)); // a tab that is opened for the first time
    setInterval(() => fw.tabs.forEach((tab) => tab.countTokens()), 500);
    fw.tabs.forEach(resumeWhenThere);
    fw.showNotices();
    fw.greet();
  }

  ready();
})();
