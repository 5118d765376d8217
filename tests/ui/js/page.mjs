// The page's scripts in a bare context: window and document are stubs that answer what the scripts ask while they load.
import { readFileSync } from "node:fs";
import vm from "node:vm";

const ASSETS = new URL("../../../modules/ui/assets/", import.meta.url);

const PLOTS = new URL("../../../modules/plots/", import.meta.url);

export class Storage {
  constructor() {
    this.items = new Map();
  }

  getItem(key) {
    return this.items.has(key) ? this.items.get(key) : null;
  }

  setItem(key, text) {
    this.items.set(key, text);
  }
}

// An element that keeps what is done to it; `find` answers its querySelector.
export function element(find = () => null) {
  const made = {
    dataset: {}, style: {}, attributes: {}, hidden: true, textContent: "", clicks: 0, children: [],
    classes: new Set(),
    querySelector: find,
    querySelectorAll: () => [],
    setAttribute: (name, value) => { made.attributes[name] = value; },
    append: (...children) => made.children.push(...children),
    replaceChildren: (...children) => { made.children = children; },
    focus: () => {},
    listeners: {},
    addEventListener: (kind, run) => { made.listeners[kind] = run; },
    contains: () => false,
    click: () => { made.clicks += 1; },
  };
  made.classList = { add: (name) => made.classes.add(name), remove: (name) => made.classes.delete(name), toggle: () => {} };
  return made;
}

class StubImage {
  decode = async () => {};
}

// `featherweight` with these scripts loaded, for tabs with these prefixes; `elements` by selector, `replies` by path.
export function load(names, { prefixes = ["one"], fields = [], elements = {}, replies = {}, stores = {}, globals = {} } = {}) {
  const timers = [];
  const heard = [];
  const document = {
    title: "",
    activeElement: null,
    documentElement: {},
    body: {},
    addEventListener: (kind, run) => heard.push([kind, run]),
    querySelector: (selector) => elements[selector] || null,
    querySelectorAll: () => [],
    createElement: (tagName) => Object.assign(element(), { tagName }),
    createElementNS: (_, tagName) => Object.assign(element(), { tagName }),
  };
  const window = {
    addEventListener: () => {},
    sessionStorage: stores.session || new Storage(),
    localStorage: stores.local || new Storage(),
  };
  window.featherweightPage = { tabs: prefixes.map((prefix) => ({ prefix, fields })), cards: [], theme: "" };
  const fetch = async (path) => {
    const reply = replies[path.split("?")[0]];
    if (reply instanceof Error) throw reply;
    return { ok: reply !== undefined, status: reply === undefined ? 404 : 200, json: async () => reply ?? {} };
  };
  const context = {
    window, document, fetch, console, Date, Math, URL, JSON,
    setInterval: (run) => timers.push(run) && timers.length,
    clearInterval: (number) => { timers[number - 1] = null; },
    setTimeout, clearTimeout, encodeURIComponent, Image: StubImage,
    ...globals,
  };
  vm.createContext(context);
  for (const name of ["core.js", ...names]) {
    vm.runInContext(readFileSync(new URL(name, name === "plot.js" ? PLOTS : ASSETS), "utf8"), context, { filename: name });
  }
  const fw = window.featherweight;
  Object.assign(fw, { keepAwake: () => {}, letSleep: () => {}, chime: () => {} });
  // All that listen to events of this kind hear one.
  const fire = (kind, event) => Promise.all(heard.filter(([of]) => of === kind).map(([, run]) => run(event)));
  return { fw, document, window, fire, tick: () => Promise.all(timers.map((run) => run && run())) };
}
