// Finds any control by its words: those of the forms and other tabs, of scripts, and of the settings. Ctrl+K opens it. The
// same list says which parts of the forms one never uses: these are hidden, as long as they are off.
(() => {
  const fw = window.featherweight;
  const [MAX_FOUND, FLASH_MS, HIDDEN] = [40, 1800, "unused"];
  const FIELDS = ["slider", "checkbox", "textbox", "dropdown", "radio", "number", "checkboxgroup", "button", "accordion", "file", "image", "seedfield"];
  let dialog = null;
  let entries = null; // what can be found
  let found = [];
  let chosen = 0;

  const words = (text) => String(text || "").toLowerCase();

  // Everything with a name in the page's description, with the tab and the folds that it is in.
  fw.controlsOf = (config) => {
    const parts = new Map(config.components.map((part) => [part.id, part]));
    const list = [];
    const walk = (node, path) => {
      const part = parts.get(node.id);
      const { label, elem_id: id = "", visible, choices, value, info } = part?.props || {};
      if (visible === false || visible === "hidden") return;
      const isTab = part?.type === "tabitem";
      const title = part?.type === "button" ? value : label;
      const here = { type: part?.type, id, title, path };
      if (title && (isTab || FIELDS.includes(part.type)) && path.length + isTab > 0) list.push({ ...here, info });
      if (id.endsWith("_script_list")) list.push(...choices.slice(1).map(([name]) => ({ ...here, title: name, path: [...path, { title }] })));
      const isPlace = isTab || part?.type === "accordion";
      for (const child of node.children || []) walk(child, isPlace && title ? [...path, here] : path);
    };
    walk(config.layout, []);
    return list;
  };

  async function load() {
    if (entries) return;
    entries = fw.controlsOf(window.gradio_config || { components: [], layout: {} });
    const { sections } = await fw.get("internal/settings").catch(() => ({ sections: [] })); // for admins only
    const settings = sections.flatMap((section) => section.settings.map((one) => ({ ...one, section })));
    const path = entries.filter((one) => one.id === "tab_settings").slice(0, 1);
    entries.push(...settings.map((one) => ({ type: "setting", id: one.id, title: one.label, info: one.hint, path, key: one.key })));
  }

  // The entries with all of the words, in their names, places or explanations; those that begin with them first, and of the
  // tab that is shown.
  fw.search = (list, text, shown = "") => {
    const wanted = words(text).split(/\s+/).filter(Boolean);
    if (!wanted.length) return [];
    const ranked = list.flatMap((one) => {
      const [title, own] = [words(one.title), words(fw.text(String(one.title)))];
      const place = one.path.map((part) => words(part.title)).join(" ");
      const all = [title, own, place, words(one.info), words(fw.help[one.id]), words(one.key)].join(" ");
      if (!wanted.every((word) => all.includes(word))) return [];
      const inTitle = wanted.every((word) => title.includes(word) || own.includes(word));
      const rank = (inTitle ? 0 : 8) + (title.startsWith(wanted[0]) || own.startsWith(wanted[0]) ? 0 : 2) + (one.path[0]?.id === shown ? 0 : 1);
      return [{ one, rank }];
    });
    return ranked.sort((a, b) => a.rank - b.rank).slice(0, MAX_FOUND).map(({ one }) => one);
  };

  const placeOf = (one) => one.path.map((part) => fw.text(String(part.title))).join(" › ");

  function draw() {
    const list = dialog.querySelector("ul");
    list.replaceChildren(...found.map((one, index) => {
      const row = fw.element("li", { id: `fw_found_${index}`, attributes: { role: "option" } },
        fw.element("b", { textContent: fw.text(String(one.title)) }), fw.element("span", { textContent: placeOf(one) }));
      row.setAttribute("aria-selected", String(index === chosen));
      row.addEventListener("click", () => go(one));
      return row;
    }));
    const field = dialog.querySelector("input");
    field.setAttribute("aria-activedescendant", found.length ? `fw_found_${chosen}` : "");
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
    dialog.querySelector("p").hidden = found.length > 0 || !field.value.trim();
  }

  function look() {
    const shown = document.querySelector("#tabs > .tab-wrapper [aria-selected=true]")?.id.replace(/-button$/, "");
    [found, chosen] = [fw.search(entries || [], dialog.querySelector("input").value, shown), 0];
    draw();
  }

  const named = (root, one) => (one.id && document.getElementById(one.id)) ||
    [...(root?.querySelectorAll(".label-wrap > span:first-child, [data-testid=block-info], .label-text, label > span, button") || [])]
      .find((part) => fw.sourceText(part).trim() === one.title)?.closest(".block, button");

  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  async function go(one) {
    dialog.close();
    const tabs = [...one.path, one].filter((part) => part.type === "tabitem");
    await fw.showTab(tabs[0].id.replace(/^tab_/, ""), ...tabs.slice(1).map((part) => part.id).filter(Boolean));
    if (one.type === "setting") {
      const field = document.querySelector("#settings_search input, .fw-search input");
      if (field) {
        field.value = one.title;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }
    let element = document.getElementById(tabs[0].id);
    for (const part of [...one.path.slice(1).filter((place) => place.type === "accordion"), one]) {
      for (let tries = 0; tries < 20; tries += 1, await pause(100)) {
        const next = named(element, part);
        if (!next) continue;
        element = next;
        break;
      }
      if (element) await fw.reveal(element);
    }
    element?.classList.add("fw-found");
    element?.querySelector("input, textarea, select, button")?.focus({ preventScroll: true });
    setTimeout(() => element?.classList.remove("fw-found"), FLASH_MS);
  }

  function build() {
    dialog = fw.element("dialog", { id: "fw_finder", attributes: { "aria-label": fw.t`Find a control` } });
    const field = fw.element("input", { type: "search", placeholder: fw.t`Find a control, a setting, a script or a tab`, autocomplete: "off",
      attributes: { role: "combobox", "aria-expanded": "true", "aria-controls": "fw_found", "aria-label": fw.t`Find a control` } });
    field.addEventListener("input", look);
    dialog.append(field, fw.element("ul", { id: "fw_found", attributes: { role: "listbox", "aria-label": fw.t`Found` } }), fw.element("p", { textContent: fw.t`Nothing found.`, hidden: true }));
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by && found.length) {
        event.preventDefault();
        chosen = (chosen + by + found.length) % found.length;
        draw();
      } else if (event.key === "Enter") {
        event.preventDefault();
        event.stopPropagation();
        if (found[chosen]) go(found[chosen]);
      }
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
  }

  fw.openFinder = async () => {
    if (!dialog) build();
    const field = dialog.querySelector("input");
    field.value = "";
    if (!dialog.open) dialog.showModal();
    field.focus();
    look();
    await load();
    look();
  };

  document.addEventListener("click", (event) => event.target.closest?.("#fw_find") && fw.openFinder());
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
    event.preventDefault();
    fw.openFinder();
  });

  // -- what one never uses ---------------------------------------------------------------------------------------------

  const hidden = new Set(read());

  function read() {
    try {
      return JSON.parse(fw.kept(HIDDEN)) || [];
    } catch {
      return [];
    }
  }

  const FOLDS = ".fw-parameters .gr-accordion, .fw-parameters .form:has(> [id$=_script_list]), .fw-examples, [id$=_interrogation]";

  // The parts of both forms by their names: folds, scripts, and a few rows.
  function parts() {
    const all = new Map();
    for (const part of document.querySelectorAll(FOLDS)) {
      if (part.parentElement.closest(".gr-accordion") || part.classList.contains("hidden")) continue;
      const head = part.querySelector(":scope > .label-wrap > span");
      const name = head ? fw.sourceText(head).trim() : part.id.endsWith("examples") ? fw.t`Example prompts` : part.id ? fw.t`Interrogate` : fw.t`Script`;
      all.set(name, [...(all.get(name) || []), part]);
    }
    return all;
  }

  fw.hideUnused = () => {
    for (const [name, list] of parts()) for (const part of list) part.classList.toggle("fw-unused", hidden.has(name));
  };

  fw.chooseShown = () => {
    const box = fw.element("dialog", { id: "fw_shown_parts", attributes: { "aria-label": fw.t`What is shown` } });
    const rows = [...parts().keys()].map((name) => {
      const check = fw.element("input", { type: "checkbox", checked: !hidden.has(name) });
      check.addEventListener("change", () => {
        if (check.checked) hidden.delete(name);
        else hidden.add(name);
        fw.keep(HIDDEN, JSON.stringify([...hidden]));
        fw.hideUnused();
      });
      return fw.element("label", {}, check, fw.element("span", { textContent: fw.text(name) }));
    });
    const done = fw.element("button", { type: "button", className: "fw-primary", textContent: fw.t`Done` });
    done.addEventListener("click", () => box.close());
    box.append(fw.element("h2", { textContent: fw.t`What is shown` }),
      fw.element("p", { textContent: fw.t`Parts of the forms without a check mark are hidden while they are off.` }),
      fw.element("div", {}, ...rows), done);
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  };
})();
