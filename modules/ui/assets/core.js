// Small helpers that the other scripts share, and the tabs that make images. `featherweight` is the page's only global.
window.featherweight = (() => {
  const page = window.featherweightPage || { tabs: [], cards: [], theme: "" };

  // A form with its Generate button and its images. Its elements are named by its prefix, a few by `ids`.
  class Tab {
    constructor({ prefix, ids = {}, fields = [], takes = {}, switches = [] }) {
      this.prefix = prefix;
      this.ids = ids;
      this.fields = fields; // names of the form's fields, in the order in which their values arrive
      this.switches = switches; // of scripts: number of the section, place among their values, what its head says
      this.takes = takes; // labels of the buttons that send an image to it, by name
      this.form = {}; // what the form holds, also in fields that were never shown
    }

    id(name) {
      return this.ids[name] || `${this.prefix}_${name}`;
    }

    // An element by the tab's name for it, or something inside of it.
    find(name, inside = "") {
      return document.querySelector(`#${this.id(name)} ${inside}`.trim());
    }

    // Whether an element lies in one of those with these names.
    holds(element, ...names) {
      return Boolean(element?.closest?.(names.map((name) => `#${this.id(name)}`).join(", ")));
    }

    field(name) {
      return fw.field(this.id(name));
    }

    set(name, value) {
      fw.setField(this.id(name), value);
    }

    press(name) {
      this.find(name)?.click();
    }

    // What goes with the form when it is sent, as text: the images of tabs that start from some.
    pictures() {
      return "";
    }

    // The size of the image that the form starts from; null without one.
    imageSize() {
      return null;
    }

    get isShown() {
      const box = this.find("generate_box");
      return Boolean(box?.checkVisibility ? box.checkVisibility() : box?.offsetParent); // one that is fixed has no parent
    }

    message(text, isError = false) {
      const box = document.createElement("div");
      box.className = `fw-message ${isError ? "fw-error" : "fw-note"}`;
      if (isError) box.setAttribute("role", "alert");
      box.textContent = text;
      this.find("messages")?.append(box);
      if (isError) box.scrollIntoView?.({ block: "nearest" });
    }

    clearMessages() {
      this.find("messages")?.replaceChildren();
    }

    // Put an infotext into the form, as if it were pasted into the prompt.
    take(infotext) {
      this.set("prompt", infotext);
      setTimeout(() => this.press("paste"), 100);
    }
  }

  const TAB_BUTTONS = "button[role=tab], .overflow-dropdown button";
  const [SHOWN_MS, SHOWN_TRIES] = [50, 200];

  const fw = {
    Tab,
    tabs: page.tabs.map((tab) => new Tab(tab)),
    cardPages: page.cards,
    forcedTheme: page.theme,
    tabRoles: page.tabRoles || {}, // the least role of each tab of an extension
    pageFaults: page.faults || [], // what was left out when the page was built
    help: window.featherweightHelp || {}, // what is said of controls, by the ids of their elements
    settings: {}, // as the server has them; see page_settings.py

    // The mark of a text that is shown: what stands in its places is {0}, {1} ... for a translation. Returns the text.
    t: (pieces, ...values) => String.raw({ raw: pieces }, ...values),
    text: (text) => text, // in the page's language; localization.js replaces all three
    sourceText: (element) => element.textContent,

    // The seed that an infotext names, as text: a number would be rounded above 2^53.
    seedOf: (infotext) => /\bSeed: (\d+)/.exec((infotext || "").split("\n").pop())?.[1] ?? "-1",

    tab: (prefix) => fw.tabs.find((tab) => tab.prefix === prefix),
    shownTab: () => fw.tabs.find((tab) => tab.isShown) || fw.tabs[0],
    tabAround: (element, ...names) => fw.tabs.find((tab) => tab.holds(element, ...names)),
    isRunning: () => fw.tabs.some((tab) => tab.isRunning()),

    // A file or blob as a data URL.
    dataUri: (blob) =>
      new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
      }),

    post: (path, body) =>
      answer(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
    get: (path) => answer(path),

    // Set a Gradio field as if it were typed.
    setField(id, value) {
      const field = fw.field(id);
      if (!field) return;
      const proto = field.tagName === "TEXTAREA" ? HTMLTextAreaElement.prototype : HTMLInputElement.prototype;
      Object.getOwnPropertyDescriptor(proto, "value").set.call(field, value);
      for (const type of ["input", "change", "blur"]) field.dispatchEvent(new Event(type, { bubbles: true }));
    },

    // Call `run` whenever a click on a tab, or on its entry in the menu of a narrow page, brings into sight what `selector`
    // finds, however long its mounting takes.
    whenShown(selector, run) {
      let clicks = 0;
      document.addEventListener("click", async (event) => {
        if (!event.target.closest?.(TAB_BUTTONS)) return;
        const mine = (clicks += 1);
        for (let tries = 0; tries < SHOWN_TRIES && mine === clicks; tries += 1) {
          await new Promise((resolve) => setTimeout(resolve, SHOWN_MS));
          if (document.querySelector(selector)?.offsetParent) return run();
        }
      });
    },

    field: (id) => document.querySelector(`#${id} textarea, #${id} input[type=number], #${id} input`),

    // What this page kept over a reload; where it kept nothing, what another page of this browser kept last.
    kept(key) {
      for (const store of stores()) {
        const text = store.getItem(`featherweight.${key}`);
        if (text !== null) return text;
      }
      return null;
    },

    keep(key, text) {
      for (const store of stores()) {
        try {
          store.setItem(`featherweight.${key}`, text);
        } catch (error) {
          console.warn(fw.t`The browser cannot keep the form over a reload: ${error.message}`); // full, or switched off
        }
      }
    },
  };

  function stores() {
    try {
      return [window.sessionStorage, window.localStorage];
    } catch {
      return []; // switched off by the user: nothing is kept
    }
  }

  async function answer(path, options) {
    const reply = await fetch(path, options);
    if (reply.status === 401) fw.loggedOut?.();
    else fw.answered?.();
    const data = await reply.json().catch(() => ({}));
    if (!reply.ok) throw Object.assign(new Error(data.errors || fw.t`The server answered ${reply.status}.`), { status: reply.status });
    return data;
  }

  return fw;
})();
