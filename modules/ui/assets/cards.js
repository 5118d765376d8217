// Panels of cards: the list comes once as JSON, is searched and sorted here, and drawn as far as it is looked at.
(() => {
  const fw = window.featherweight;
  const CHUNK = 28;
  const AHEAD = 600; // so many pixels below what is seen are drawn
  const WAIT_MS = 16;
  const TRIES = 120;
  const PAGES = new RegExp(`_(${fw.cardPages.join("|")})$`);
  const SEARCHED = 4; // so many letters bring out cards of hidden folders
  const ROUTE = "internal/extra-networks";
  const TAB_BUTTONS = "button[role=tab], .overflow-dropdown button"; // the second: in the menu of a narrow page
  const panels = new Map();
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const ORDERS = {
    Path: (a, b) => a.place - b.place, // as the server sorted them
    Name: (a, b) => collator.compare(a.name, b.name),
    [fw.t`Date Created`]: (a, b) => a.created - b.created,
    [fw.t`Date Modified`]: (a, b) => a.modified - b.modified,
  };

  const ICONS = {
    copy: "M7 7h9v10H7zM4 13V3h9",
    metadata: "M10 9v5M10 6v.01M3 10a7 7 0 1 0 14 0a7 7 0 1 0-14 0",
    edit: "M4 16l1-4l8-8l3 3l-8 8zM11 6l3 3",
  };
  const ACTIONS = {
    use: (panel, card) => panel.use(card),
    steps: (panel, card) => panel.takeSteps(card),
    copy: (panel, card) => panel.copy(card),
    metadata: (panel, card) => fw.openCard(panel, card, true),
    edit: (panel, card) => fw.openCard(panel, card, false),
    direction: (panel) => panel.turn(),
    folders: (panel) => panel.toggleFolders(),
    folder: (panel, _, button) => panel.chooseFolder(button.dataset.search),
    others: (panel) => panel.toggleOthers(),
    refresh: (panel) => panel.refresh(),
  };

  fw.cardSettings = null;

  const element = fw.element;

  fw.previewAddress = (page, card) =>
    `${ROUTE}/preview?page=${page}&key=${encodeURIComponent(card.key)}&v=${card.stamp}`;

  const ahead = new Map(); // lists that were asked for when the tab was pressed, before it was there

  async function read(page) {
    const reply = await fetch(`${ROUTE}?page=${page}`);
    const raw = await reply.text();
    if (!reply.ok) throw new Error(JSON.parse(raw).errors || fw.t`The server answered ${reply.status}.`);
    return raw;
  }

  class Panel {
    constructor(root) {
      this.root = root;
      this.tab = root.dataset.tab;
      this.page = root.dataset.page;
      this.cards = [];
      this.shown = [];
      this.drawn = 0;
      this.raw = "";
      this.descending = false;
      this.showsOthers = false;
      this.place = root.querySelector(".fw-cards");
      this.search = root.querySelector("input[type=search]");
      this.order = root.querySelector("select");
      this.folders = root.querySelector(".fw-networks-folders");
      this.end = element("div", { className: "fw-cards-end", attributes: { "aria-hidden": "true" } });
      new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && this.drawMore(), {
        rootMargin: `${AHEAD}px`,
      }).observe(this.end);
      // Where the box scrolls for itself, its end may stand below the edge of the zone around it.
      this.place.addEventListener("scroll", () => {
        const { scrollHeight, scrollTop, clientHeight } = this.place;
        if (scrollHeight - scrollTop - clientHeight < AHEAD) this.drawMore();
      }, { passive: true });
      this.search.addEventListener("input", () => this.filter());
      this.order.addEventListener("change", () => this.sort());
      root.addEventListener("click", (event) => this.clicked(event));
    }

    async load() {
      try {
        const raw = await (ahead.get(this.page) || read(this.page));
        if (raw === this.raw) return this.mark();
        const isFirst = this.raw === "";
        this.raw = raw;
        this.take(JSON.parse(raw), isFirst);
      } catch (error) {
        this.say(error.message, true);
      } finally {
        ahead.delete(this.page);
      }
    }

    take(list, isFirst) {
      this.list = list;
      this.cards = [...list.cards];
      this.made = new Map(); // elements by key: what was drawn once is not built again
      for (const [place, card] of this.cards.entries()) {
        card.place = place;
        card.haystack = `/${card.folder}/${card.search}`.toLowerCase();
        card.isHidden = card.folder.split("/").some((part) => part.startsWith("."));
      }
      fw.cardSettings = list.settings;
      const settings = list.settings;
      if (isFirst) {
        this.order.value = settings.extra_networks_card_order_field;
        this.descending = settings.extra_networks_card_order === "Descending";
        this.folders.hidden = !settings.extra_networks_tree_view_default_enabled;
      }
      const style = this.root.style;
      setLength(style, "--card-width", settings.extra_networks_card_width);
      setLength(style, "--card-height", settings.extra_networks_card_height);
      setLength(style, "--tree-width", settings.extra_networks_tree_view_default_width);
      style.setProperty("--card-text", String(settings.extra_networks_card_text_scale));
      this.root.classList.toggle("fw-tree", settings.extra_networks_tree_view_style === "Tree");
      this.drawFolders();
      this.sort();
    }

    sort() {
      this.cards.sort(ORDERS[this.order.value] || ORDERS.Path);
      if (this.descending) this.cards.reverse();
      this.filter();
    }

    // -- which cards -------------------------------------------------------------------------------------------------

    filter() {
      const query = this.search.value.trim().toLowerCase();
      const words = query.split(/\s+/);
      const settings = this.list?.settings || {};
      const hidden = settings.extra_networks_hidden_models;
      const showsHidden = hidden === "Always" || (hidden === "When searched" && query.length >= SEARCHED);
      let others = 0;
      this.shown = this.cards.filter((card) => {
        if (card.isHidden && !showsHidden) return false;
        if (query && !card.haystack.includes(query) && !words.every((word) => card.haystack.includes(word))) return false;
        if (!this.isForAnother(card)) return true;
        others += 1;
        return this.showsOthers;
      });
      this.drawAll(others);
    }

    isForAnother(card) {
      const { version, others } = this.list;
      if (!version || !others.hides) return false;
      return card.version ? card.version !== version : others.without_unknown.includes(version);
    }

    // -- drawing -----------------------------------------------------------------------------------------------------

    drawAll(others) {
      this.drawn = 0;
      this.place.replaceChildren(this.end);
      this.place.scrollTop = 0;
      const direction = this.root.querySelector("[data-do=direction]");
      direction.textContent = this.descending ? "↓" : "↑";
      direction.setAttribute("aria-label", this.descending ? fw.t`Descending` : fw.t`Ascending`);
      this.root.querySelector("[data-do=folders]").setAttribute("aria-pressed", String(!this.folders.hidden));
      this.count(others);
      this.place.setAttribute("role", this.shown.length ? "list" : "group"); // a list must have items
      if (!this.shown.length) this.place.prepend(this.nothing());
      this.drawMore();
      for (const button of this.folders.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.dataset.search === this.search.value));
      }
    }

    drawMore() {
      const next = this.shown.slice(this.drawn, this.drawn + CHUNK);
      if (!next.length) return;
      this.drawn += next.length;
      this.end.before(...next.map((card) => this.draw(card)));
    }

    draw(card) {
      const known = this.made.get(card.key);
      if (known) {
        this.markOne(known, card);
        return known;
      }
      const use = element(
        "button",
        { type: "button", className: "fw-card-use", dataset: { do: "use" } },
        this.image(card),
        element(
          "span",
          { className: "fw-card-text" },
          element("span", { className: "name", textContent: card.name }),
          this.description(card),
        ),
      );
      const tools = [
        ["copy", fw.t`Copy the path of`],
        ["metadata", fw.t`Metadata of`],
        ["edit", fw.t`Edit the notes of`],
      ].map(([action, label]) =>
        element("button", {
          type: "button",
          innerHTML: `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${ICONS[action]}"/></svg>`,
          title: `${label} ${card.name}`,
          dataset: { do: action, ...(action === "edit" ? { for: "admin" } : {}) },
          attributes: { "aria-label": `${label} ${card.name}` },
        }),
      );
      const made = element(
        "div",
        { className: "card", dataset: { key: card.key, name: card.name }, attributes: { role: "listitem" } },
        use,
        ...this.stepsBadge(card),
        element("div", { className: "fw-card-tools" }, ...tools),
      );
      fw.dressCard?.(made, card);
      this.markOne(made, card);
      this.made.set(card.key, made);
      return made;
    }

    // What a model for few steps asks for: one click sets it, nothing else does.
    stepsBadge(card) {
      if (!card.few_steps) return [];
      const { label, values } = card.few_steps;
      return [
        element("button", {
          type: "button",
          className: "fw-card-steps",
          textContent: label,
          title: fw.t`Set ${values}`,
          dataset: { do: "steps" },
          attributes: { "aria-label": fw.t`Set ${values}` },
        }),
      ];
    }

    image(card) {
      const plain = element("span", { className: "fw-card-blank", textContent: [...card.name][0] || "?", attributes: { "aria-hidden": "true" } });
      if (card.stamp === "0") return plain;
      const image = element("img", { loading: "lazy", decoding: "async", alt: "", src: fw.previewAddress(this.page, card) });
      image.addEventListener("error", () => image.replaceWith(plain));
      return image;
    }

    description(card) {
      const place = element("span", { className: "description" });
      const settings = this.list.settings;
      if (!card.description || !settings.extra_networks_card_show_desc) return place;
      if (settings.extra_networks_card_description_is_html) place.append(...fw.safeHtml(card.description));
      else place.textContent = card.description;
      return place;
    }

    count(others) {
      const place = this.root.querySelector(".fw-networks-count");
      const [shown, all] = [this.shown.length, this.cards.length].map((number) => number.toLocaleString("en"));
      place.replaceChildren(shown === all ? all : fw.t`${shown} of ${all}`);
      if (!others) return;
      const text = this.showsOthers ? fw.t`hide those for other models` : fw.t`show ${others} for other models`;
      place.append(" · ", element("button", { type: "button", textContent: text, dataset: { do: "others" } }));
    }

    nothing() {
      const { folders, suffixes } = this.list || { folders: [], suffixes: [] };
      const text = this.cards.length
        ? fw.t`No card matches all of these words.`
        : fw.t`No files yet. Put ${suffixes.join(", ")} files into ${folders[0]} and press ↻.`;
      return element("p", { className: "fw-cards-empty", textContent: text });
    }

    drawFolders() {
      const settings = this.list.settings;
      const slash = settings.extra_networks_dir_button_function ? "/" : "";
      const paths = new Set();
      for (const card of this.cards) {
        const parts = card.folder ? card.folder.split("/") : [];
        parts.forEach((_, index) => paths.add(parts.slice(0, index + 1).join("/")));
      }
      const isHidden = (path) => path.split("/").some((part) => part.startsWith("."));
      const listed = [...paths]
        .filter((path) => settings.extra_networks_show_hidden_directories || !isHidden(path))
        .sort(collator.compare);
      const button = (label, search, depth) =>
        element("button", {
          type: "button",
          textContent: label,
          title: search || fw.t`All folders`,
          dataset: { do: "folder", search },
          attributes: { style: `--depth: ${depth}` },
        });
      const isTree = settings.extra_networks_tree_view_style === "Tree";
      this.folders.replaceChildren(
        button("all", "", 0),
        ...listed.map((path) => {
          const parts = path.split("/");
          const label = isTree ? parts.at(-1) : path;
          return button(slash + label + (slash ? "" : "/"), slash + path + (slash ? "" : "/"), parts.length - 1);
        }),
      );
      this.root.classList.toggle("fw-no-folders", !listed.length);
    }

    // -- what is in use ----------------------------------------------------------------------------------------------

    mark() {
      const byKey = new Map(this.shown.slice(0, this.drawn).map((card) => [card.key, card]));
      for (const made of this.place.querySelectorAll(".card")) {
        const card = byKey.get(made.dataset.key);
        if (card) this.markOne(made, card);
      }
    }

    markOne(made, card) {
      const isUsed =
        this.page === "checkpoints"
          ? fw.field("setting_sd_model_checkpoint")?.value === card.prompt
          : fw.cardIsUsed(this.tab, card);
      made.classList.toggle("fw-used", isUsed);
      made.querySelector(".fw-card-use").setAttribute("aria-pressed", String(isUsed));
    }

    // -- clicks ------------------------------------------------------------------------------------------------------

    async clicked(event) {
      const button = event.target.closest("[data-do]");
      if (!button) return;
      const made = button.closest(".card");
      const card = made && this.cards.find((other) => other.key === made.dataset.key);
      try {
        await ACTIONS[button.dataset.do](this, card, button);
      } catch (error) {
        this.say(error.message, true);
      }
    }

    async use(card) {
      this.say("");
      if (this.page !== "checkpoints") {
        if (fw.toggleCard(this.tab, card)) this.offerSteps(card);
        this.mark();
        return;
      }
      const reply = await fw.post(`${ROUTE}/checkpoint`, { page: this.page, key: card.key });
      this.say(fw.t`${reply.title} is chosen; it is loaded before the next image.`);
      this.offerSteps(card);
      document.querySelector("#refresh_sd_model_checkpoint")?.click();
      setTimeout(() => this.mark(), 1000);
    }

    takeSteps(card) {
      fw.tab(this.tab).takeSteps(card.few_steps);
      this.say(fw.t`Set ${card.few_steps.values}`);
    }

    // A notice with a button, where the form holds something else than a file for few steps asks for.
    offerSteps(card) {
      const tab = fw.tab(this.tab);
      if (!card.few_steps || tab.hasSteps(card.few_steps)) return;
      const offer = element("button", { type: "button", textContent: fw.t`Set ${card.few_steps.values}` });
      offer.addEventListener("click", () => this.takeSteps(card));
      this.root.querySelector(".fw-networks-status").append(" ", fw.t`${card.name} is made for few steps.`, " ", offer);
    }

    turn() {
      this.descending = !this.descending;
      this.sort();
    }

    toggleFolders() {
      this.folders.hidden = !this.folders.hidden;
      this.root.querySelector("[data-do=folders]").setAttribute("aria-pressed", String(!this.folders.hidden));
    }

    chooseFolder(search) {
      this.search.value = this.search.value === search ? "" : search;
      this.filter();
    }

    toggleOthers() {
      this.showsOthers = !this.showsOthers;
      this.filter();
    }

    async refresh() {
      this.raw = " ";
      await this.load();
      this.say("");
    }

    async copy(card) {
      const details = await fw.get(`${ROUTE}/details?page=${this.page}&key=${encodeURIComponent(card.key)}`);
      await fw.copyText(details.path);
      this.say(fw.t`Copied: ${details.path}`);
    }

    // A card as the server has it after a change.
    replace(fresh) {
      const old = this.cards.find((card) => card.key === fresh.key);
      Object.assign(old, fresh, { haystack: `/${fresh.folder}/${fresh.search}`.toLowerCase() });
      const made = this.made.get(fresh.key);
      this.made.delete(fresh.key);
      made?.replaceWith(this.draw(old));
    }

    say(text, isBad = false) {
      const place = this.root.querySelector(".fw-networks-status");
      place.textContent = text;
      place.classList.toggle("fw-bad", isBad);
    }
  }

  function setLength(style, name, pixels) {
    if (pixels) style.setProperty(name, `${pixels}px`);
    else style.removeProperty(name);
  }

  fw.copyText = async (text) => {
    if (!navigator.clipboard) throw new Error(fw.t`This browser does not let the page copy: ${text}`);
    await navigator.clipboard.writeText(text);
  };

  // -- opening: Gradio shows a tab's contents some time after its button was pressed -----------------------------------

  function openVisible(tries) {
    const root = [...document.querySelectorAll(".fw-networks")].find((panel) => panel.offsetParent !== null);
    if (!root) {
      if (tries > 0) setTimeout(() => openVisible(tries - 1), WAIT_MS);
      return;
    }
    if (!panels.has(root)) panels.set(root, new Panel(root));
    panels.get(root).load();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest(TAB_BUTTONS);
    if (!button) return;
    const page = (button.dataset.tabId || "").match(PAGES)?.[1];
    if (page) {
      const list = read(page);
      list.catch(() => {}); // whoever waits for it says what is wrong
      ahead.set(page, list);
    }
    setTimeout(() => openVisible(TRIES), 0);
  });

  document.addEventListener("input", (event) => {
    if (!event.target.closest || !event.target.closest("[id$=_prompt]")) return;
    for (const [root, panel] of panels) if (root.offsetParent !== null) panel.mark();
  });
})();
