// The Extensions tab: what there is, what of it failed and what it costs; switching, installing, updating, removing.
// Names and sentences of extensions are set as text, never as HTML.
(() => {
  const fw = window.featherweight;
  const ROUTE = "featherweight/v1/extensions";
  const INDEX_KEY = "featherweight.extensionIndex";
  const QUESTION = 409; // the server asks before it does what was asked for
  let looking = null; // the look under way

  const place = () => document.querySelector("#fw_extensions");
  const part = (name) => place().querySelector(`.fw-extensions-${name}`);
  const own = (tag, textContent, className = "") => fw.element(tag, { textContent, className, attributes: { translate: "no" } });

  function say(text, isBad = false) {
    const line = part("status");
    line.textContent = text;
    line.classList.toggle("fw-bad", isBad);
  }

  // Ask what the server asks; true after a yes.
  function ask(text, yes) {
    return new Promise((resolve) => {
      const dialog = fw.element("dialog", { id: "fw_extensions_dialog", attributes: { "aria-label": fw.t`Question` } });
      const button = (label, value) => {
        const made = fw.element("button", { type: "button", textContent: label });
        made.dataset.answer = value;
        made.addEventListener("click", () => dialog.close(value));
        return made;
      };
      dialog.append(own("p", text), fw.element("div", { className: "fw-extensions-buttons" }, button(yes, "yes"), button(fw.t`Cancel`, "no")));
      dialog.addEventListener("close", () => {
        dialog.remove();
        resolve(dialog.returnValue === "yes");
      });
      document.body.append(dialog);
      dialog.showModal();
      dialog.querySelector("[data-answer=no]").focus();
    });
  }

  // Do something; where the server asks first, only after a yes.
  async function act(name, body, yes = "Yes") {
    say(fw.t`Working...`);
    try {
      const reply = await fw.post(`${ROUTE}/${name}`, body);
      say(reply.message);
    } catch (error) {
      if (error.status === QUESTION && !body.agreed) {
        if (await ask(error.message, yes)) return act(name, { ...body, agreed: true }, yes);
        say(fw.t`Nothing was changed.`);
        return false;
      }
      say(error.message, true);
      return false;
    }
    await look();
    return true;
  }

  function button(text, run, name) {
    const made = fw.element("button", { type: "button", textContent: text });
    made.setAttribute("aria-label", `${fw.text(text)}: ${name}`);
    made.addEventListener("click", async () => {
      made.disabled = true;
      await run();
      made.disabled = false;
    });
    return made;
  }

  function toggle(one) {
    const box = fw.element("input", { type: "checkbox", checked: one.will_be_enabled });
    box.setAttribute("role", "switch");
    box.setAttribute("aria-label", one.name);
    box.addEventListener("change", () => act("switch", { name: one.name, enabled: box.checked }));
    return box;
  }

  const megabytes = (bytes) => (bytes < 1e6 ? fw.t`${Math.max(Math.round(bytes / 1e3), 1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

  function costs(one) {
    const start = one.is_enabled ? fw.t`start ${Math.round(one.start_ms)} ms` : "";
    const image = one.image_ms ? fw.t`${one.image_ms.toFixed(1)} ms per image` : "";
    return [megabytes(one.size_bytes), start, image].filter(Boolean).join(" · ");
  }

  function lines(one) {
    const made = one.faults.map((fault) => {
      const line = fw.element("p", { className: "fw-bad" }, own("code", fault.where), " ", own("span", fault.reason));
      if (fault.missing) line.append(" ", fw.element("span", { textContent: fw.t`Missing:` }), " ", own("code", fault.missing));
      return line;
    });
    made.push(...one.notices.map((text) => own("p", text, "fw-extensions-notice")));
    if (one.packages.length) made.push(fw.element("p", {}, fw.element("span", { textContent: fw.t`Needs packages:` }), " ", own("code", one.packages.join(", "))));
    for (const [name, reason] of Object.entries(one.refused_packages)) {
      made.push(fw.element("p", { className: "fw-bad" }, fw.element("span", { textContent: fw.t`Not available:` }), " ", own("code", name), " ", own("span", reason)));
    }
    return made;
  }

  function buttons(one, mayChange) {
    if (!mayChange || one.is_built_in) return [];
    const name = one.name;
    const made = [];
    if (one.packages.length || one.has_installer) made.push(button(fw.t`Install packages`, () => act("packages", { name }, "Install"), name));
    if (one.remote) made.push(button(fw.t`Update`, () => act("update", { name }), name));
    if (one.can_restore) made.push(button(fw.t`Take back`, () => act("restore", { name }), name));
    made.push(button(fw.t`Remove`, () => act("remove", { name }, "Remove"), name));
    return made;
  }

  function row(one, mayChange) {
    const state = one.is_enabled ? (one.replaced_by ? "replaced" : one.faults.length ? "failed" : "loaded") : "off";
    const words = { failed: fw.t`failed`, replaced: fw.t`left out`, loaded: fw.t`is loaded`, off: fw.t`not loaded` };
    const later = one.will_be_enabled ? fw.t`will be loaded at the next start` : fw.t`will be left out at the next start`;
    const changes = one.will_be_enabled !== one.is_enabled ? [fw.element("span", { className: "fw-extensions-later", textContent: later })] : [];
    const head = fw.element(
      "div",
      { className: "fw-extensions-head" },
      toggle(one),
      own("strong", one.name),
      ...(one.version ? [own("code", one.version)] : []),
      fw.element("span", { className: `fw-extensions-state fw-is-${state}`, textContent: words[state] }),
      ...changes,
      fw.element("span", { className: "fw-extensions-costs", textContent: costs(one) }),
    );
    const about = one.about ? [fw.element("p", { textContent: one.about })] : [];
    const summary = fw.element("summary", { textContent: fw.t`Takes part in` });
    const hooks = one.hooks.length ? [fw.element("details", { className: "fw-extensions-hooks" }, summary, own("p", one.hooks.join(", ")))] : [];
    const item = fw.element("li", {}, head, ...about, ...hooks, ...lines(one), fw.element("div", { className: "fw-extensions-buttons" }, ...buttons(one, mayChange)));
    item.dataset.extension = one.name;
    return item;
  }

  function section(title, list, mayChange) {
    return [fw.element("h3", { textContent: title }), fw.element("ul", {}, ...list.map((one) => row(one, mayChange)))];
  }

  // One look at a time; one that is under way may have asked before what was just done.
  async function look() {
    const before = looking;
    const mine = (async () => {
      await before;
      if (looking === mine && place()?.offsetParent) await draw();
    })();
    looking = mine;
    await mine;
  }

  async function draw() {
    let state;
    try {
      state = await fw.get(ROUTE);
    } catch (error) {
      say(error.message, true);
      return;
    }
    part("install").hidden = part("index").hidden = !state.may_change;
    part("closed").hidden = state.may_change;
    part("closed").textContent = fw.t`Other machines reach this server: extensions can be looked at, not installed, updated or removed.`;
    const packages = part("packages");
    packages.replaceChildren();
    if (state.may_change && state.optional_packages.length) {
      packages.append(
        fw.element("span", { textContent: fw.t`Packages that many extensions need:` }), " ",
        own("code", state.optional_packages.join(", ")), " ",
        button(fw.t`Install packages`, () => act("packages", { name: "" }, "Install"), state.optional_packages.join(", ")),
      );
    }
    if (state.may_undo_packages) packages.append(button(fw.t`Undo`, () => act("packages/undo", {}), fw.t`Remove the packages that were installed last`));
    const mine = state.extensions.filter((one) => !one.is_built_in);
    const ours = state.extensions.filter((one) => one.is_built_in);
    const gone = (state.removed || []).map((name) => fw.element("li", {}, own("strong", name), " ", button(fw.t`Take back`, () => act("restore", { name }), name)));
    const empty = fw.element("p", { className: "fw-empty", textContent: fw.t`No extensions are installed. Put them into the folder extensions.` });
    part("list").replaceChildren(
      ...(mine.length ? section(fw.t`Installed`, mine, state.may_change) : [empty]),
      ...(gone.length ? [fw.element("h3", { textContent: fw.t`Removed` }), fw.element("ul", {}, ...gone)] : []),
      ...section(fw.t`Part of the program`, ours, false),
    );
  }

  async function search(form) {
    const source = form.elements.index.value.trim();
    if (!source) return;
    fw.keep(INDEX_KEY, source);
    say(fw.t`Working...`);
    try {
      const query = new URLSearchParams({ source, search: form.elements.search.value });
      const offers = await fw.get(`${ROUTE}/index?${query}`);
      say(fw.t`${offers.length} found.`);
      part("offers").replaceChildren(
        fw.element("ul", {}, ...offers.map((one) => {
          const install = button(fw.t`Install`, () => act("install", { source: one.address }, "Install"), one.name);
          return fw.element("li", {}, fw.element("div", { className: "fw-extensions-head" }, own("strong", one.name), own("code", one.address), install), own("p", one.description));
        })),
      );
    } catch (error) {
      say(error.message, true);
    }
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.closest?.("#fw_extensions")) return;
    event.preventDefault();
    if (form.matches(".fw-extensions-install")) {
      const source = form.elements.source.value.trim();
      if (source && (await act("install", { source }, "Install"))) form.reset();
    } else {
      await search(form);
    }
  });
  fw.whenShown("#fw_extensions", () => {
    look();
    const field = place().querySelector("[name=index]");
    if (!field.value) field.value = fw.kept(INDEX_KEY) || "";
  });
})();
