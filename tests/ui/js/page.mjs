// The page's scripts in a bare context, over a small DOM: `featherweight` as a page has it that no server has built.
import { readFileSync } from "node:fs";
import vm from "node:vm";
import { Document, Element, HTMLInputElement, HTMLTextAreaElement } from "./dom.mjs";

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

// All that has been put off to the next turn is done.
export const turn = () => new Promise((resolve) => setImmediate(resolve));

// Values of a page's context as this one's: arrays and objects of another realm are never equal to ours.
export const plain = (value) => JSON.parse(JSON.stringify(value));

// `featherweight` with these scripts loaded, for tabs with these prefixes and what else
// `tab` says of each; `paths` are elements that the page has. `replies` by path: what the server answers, or
// a function of what it is sent, or an error; a path without a reply is not there (404).
export function load(names, { prefixes = ["one"], fields = [], tab = {}, replies = {}, stores = {}, globals = {}, paths = [] } = {}) {
  const timers = []; // [run, milliseconds] of what goes on for ever
  const sent = []; // [path, body] of what was asked
  const document = new Document();
  const window = new Element("window", document);
  document.parentElement = window;
  Object.assign(window, {
    sessionStorage: stores.session || new Storage(), localStorage: stores.local || new Storage(), confirm: () => true, innerWidth: 1440, innerHeight: 900,
    featherweightPage: { tabs: prefixes.map((prefix) => ({ prefix, fields, ...tab })), cards: ["lora"], theme: "" },
  });
  for (const path of paths) document.make(path);
  const fetch = async (path, { body } = {}) => {
    sent.push([path, body && JSON.parse(body)]);
    const known = replies[path.split("?")[0]];
    const reply = typeof known === "function" ? await known(body && JSON.parse(body), path) : known;
    if (reply instanceof Error) throw reply;
    const text = JSON.stringify(reply ?? {});
    return { ok: reply !== undefined, status: reply === undefined ? 404 : 200, json: async () => JSON.parse(text), text: async () => text };
  };
  function Image(width, height) {
    return Object.assign(document.createElement("img"), { width, height, naturalWidth: 8, naturalHeight: 8, decode: async () => {} });
  }
  const context = {
    window, document, fetch, console, Date, Math, URL, JSON, Intl, Image, HTMLInputElement, HTMLTextAreaElement, CSS: { escape: String }, navigator: {},
    location: { hostname: "localhost", search: "" }, localStorage: window.localStorage, IntersectionObserver: class { observe() {} },
    Event: class { constructor(type) { this.type = type; } }, CustomEvent: class { constructor(type) { this.type = type; } },
    setInterval: (run, ms) => timers.push([run, ms]), clearInterval: (number) => { timers[number - 1] = [() => {}, 0]; },
    setTimeout, clearTimeout, requestAnimationFrame: setImmediate, encodeURIComponent, decodeURIComponent,
    ...globals,
  };
  Object.assign(window, globals);
  vm.createContext(context);
  for (const name of new Set(["core.js", "plot.js", ...names])) {
    vm.runInContext(readFileSync(new URL(name, name === "plot.js" ? PLOTS : ASSETS), "utf8"), context, { filename: name });
  }
  const fw = window.featherweight;
  for (const name of ["keepAwake", "letSleep", "chime", "showRetention", "showTimeline", "offerRealModel", "describeGroups", "drawPresets", "hideUnused"]) {
    fw[name] ??= () => {};
    for (const tab of fw.tabs) if (name.startsWith("show")) tab[name] ??= () => {};
  }
  return {
    fw, document, window, sent,
    make: (path) => document.make(path),
    find: (selector) => document.querySelector(selector),
    fire: (type, event = {}) => document.dispatchEvent({ type, target: document, ...event }),
    tick: () => Promise.all(timers.map(([run]) => run())),
  };
}
