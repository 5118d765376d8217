// The page in another language: texts, placeholders and titles pass through one table, also those that come later.
(() => {
  const fw = window.featherweight;
  const KEY = "featherweight.language";
  const ATTRIBUTES = ["placeholder", "title", "aria-label", "alt"];
  const LEFT_ALONE = "script, style, textarea, pre, code, svg, [translate=no], .fw-infotext, .fw-example";
  const CHOICE = "input[role=combobox], input[role=listbox]"; // the field of a list of Gradio's
  const LONGEST = 600; // characters of a text in which parts may change
  const SHORT = 8; // letters; a pattern of fewer takes numbers only, or it would fit everybody's words
  const MAX_CACHED = 4000;
  const BETWEEN = [/( · )/, /(?<=[.!?])( )(?=\p{Lu})/u, /( \([^()]*\)$)/]; // what a text is put together with
  const PLACE = /\{(\d)(?::([^}]*))?\}/g; // "{0}", or "{0:one=...;other=...}": the word that goes with the number
  let rules = null; // of plurals
  let texts = null;
  let patterns = [];
  let cached = new Map();
  const originals = new WeakMap(); // of text nodes and elements: what was there, and what is shown instead

  // What a text of ours is called in the chosen language; others stay as they are.
  fw.text = (text) => {
    if (!texts || !text) return text;
    const source = text.trim().replace(/\s+/g, " ");
    if (!source) return text;
    let found = cached.get(source);
    if (found === undefined) {
      found = translated(source);
      if (cached.size > MAX_CACHED) cached.clear();
      cached.set(source, found);
    }
    if (found === source) return text;
    const start = text.match(/^\s*/)[0];
    return start + found + text.slice(start.length).match(/\s*$/)[0];
  };

  // A text of a script with parts is looked up whole: of a short one, such as "Saved as {0}", no pattern could tell it.
  const plain = fw.t;
  fw.t = (pieces, ...values) => {
    const source = pieces.reduce((text, piece, place) => `${text}{${place - 1}}${piece}`);
    const isKnown = values.length && texts && Object.hasOwn(texts, source);
    return isKnown ? filled(texts[source], (place) => String(values[place])) : plain(pieces, ...values);
  };

  // The text as the scripts and the server wrote it.
  fw.sourceText = (element) => {
    const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let text = "";
    while (nodes.nextNode()) {
      const kept = originals.get(nodes.currentNode);
      text += kept?.shown === nodes.currentNode.data ? kept.source : nodes.currentNode.data;
    }
    return text;
  };

  function translated(source) {
    if (Object.hasOwn(texts, source)) return texts[source];
    if (source.length > LONGEST) return source;
    const sentences = source.split(/(?<=[.!?]) /);
    const said = sentences.length > 1 ? sentences.map(translated) : [];
    if (said.length && said.every((text, place) => text !== sentences[place])) return said.join(" ");
    for (const pattern of patterns) {
      if (!source.includes(pattern.piece)) continue;
      const parts = pattern.regex.exec(source);
      if (!parts) continue;
      return filled(pattern.shown, (place) => parts[pattern.places.indexOf(place) + 1]);
    }
    for (const between of BETWEEN) {
      const pieces = source.split(between);
      if (pieces.length > 1) return pieces.map((piece, place) => (place % 2 ? piece : translated(piece))).join("");
    }
    return source;
  }

  const filled = (shown, put) =>
    shown.replace(PLACE, (_, place, forms) => (forms ? counted(put(place), forms) : translated(put(place))));

  // The form of a word that goes with a number, by the language's rules (CLDR): "one=Bild;other=Bilder".
  function counted(number, forms) {
    const byName = Object.fromEntries(forms.split(";").map((form) => form.split("=")));
    const value = Number(number.replace(/[\s,](?=\d{3})/g, ""));
    return byName[rules?.select(value)] ?? byName.other ?? "";
  }

  function pattern([source, shown]) {
    const pieces = source.split(/\{\d\}/);
    const letters = pieces.join("").replace(/[^\p{L}]/gu, "").length;
    const part = letters < SHORT ? "([\\d.,/]+\\S*)" : "(.+?)";
    const escaped = pieces.map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(part);
    return {
      places: [...source.matchAll(/\{(\d)\}/g)].map((match) => match[1]),
      piece: pieces.reduce((longest, piece) => (piece.length > longest.length ? piece : longest), ""),
      regex: new RegExp(`^${escaped}$`, "s"),
      shown,
      letters,
    };
  }

  // A list's field shows what its value is called; who asks it for the value gets what the server wrote.
  function showChoice(input) {
    if (input.fwShowsChoice || input.closest(`[translate=no]`)) return;
    input.fwShowsChoice = true;
    const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value");
    let source = get.call(input);
    const draw = () => set.call(input, document.activeElement === input ? source : fw.text(source));
    Object.defineProperty(input, "value", {
      configurable: true,
      get: () => source,
      set: (value) => {
        source = String(value ?? "");
        draw();
      },
    });
    input.addEventListener("input", () => (source = get.call(input)), true);
    input.addEventListener("focus", draw, true);
    input.addEventListener("blur", () => setTimeout(draw));
    draw();
  }

  function show(node) {
    const kept = originals.get(node);
    if (kept?.shown === node.data || node.parentElement?.closest(LEFT_ALONE)) return;
    const shown = fw.text(node.data);
    if (shown === node.data) return;
    originals.set(node, { source: node.data, shown });
    node.data = shown;
  }

  function showAttribute(element, name) {
    const value = element.getAttribute(name);
    const kept = originals.get(element) || {};
    if (!value || kept[name] === value || element.closest("[translate=no]")) return;
    const shown = fw.text(value);
    if (shown === value) return;
    originals.set(element, { ...kept, [name]: shown });
    element.setAttribute(name, shown);
  }

  function showAll(root) {
    if (root.nodeType === Node.TEXT_NODE) return show(root);
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) show(nodes.currentNode);
    for (const input of root.querySelectorAll(CHOICE)) showChoice(input);
    const selector = ATTRIBUTES.map((name) => `[${name}]`).join(", ");
    for (const element of [root, ...root.querySelectorAll(selector)]) {
      for (const name of ATTRIBUTES) if (element.hasAttribute(name)) showAttribute(element, name);
    }
  }

  function follow() {
    new MutationObserver((changes) => {
      for (const change of changes) {
        if (change.type === "characterData") show(change.target);
        else if (change.type === "attributes") showAttribute(change.target, change.attributeName);
        else change.addedNodes.forEach(showAll);
      }
    }).observe(document.body, {
      subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES,
    });
  }

  // Gradio writes its own language there when it begins, which may be later.
  function keepLanguage(name) {
    const root = document.documentElement;
    const write = () => root.lang !== name && (root.lang = name);
    write();
    new MutationObserver(write).observe(root, { attributeFilter: ["lang"] });
  }

  function use(reply) {
    keepLanguage(reply.name === "None" ? "en" : reply.name);
    document.documentElement.dir = reply.is_rtl ? "rtl" : "ltr";
    fw.languageFaults = reply.faults;
    if (reply.faults.length) fw.showNotices();
    if (!Object.keys(reply.texts).length) return;
    texts = reply.texts;
    rules = pluralRules(reply.name);
    patterns = Object.entries(texts).filter(([source]) => /\{\d\}/.test(source)).map(pattern);
    patterns.sort((one, other) => other.letters - one.letters); // the one that says most first
    showAll(document.body);
    follow();
  }

  function pluralRules(name) {
    try {
      return new Intl.PluralRules(name);
    } catch {
      return null; // a translation of the user's own, with a name that is no language's
    }
  }

  function offer(reply) {
    const place = document.querySelector("#fw_language");
    if (!place) return setTimeout(() => offer(reply), 200);
    place.setAttribute("translate", "no"); // languages are called as they call themselves
    place.replaceChildren(...reply.available.map(([name, label]) => new Option(label, name, false, name === reply.name)));
    place.hidden = false;
    place.addEventListener("change", () => {
      localStorage.setItem(KEY, place.value);
      location.reload(); // the form is kept
    });
  }

  async function start() {
    const choice = localStorage.getItem(KEY) || "";
    const query = new URLSearchParams({ choice, languages: navigator.languages.join(",") });
    try {
      const reply = await fw.get(`internal/localization?${query}`);
      use(reply);
      offer(reply);
    } catch (error) {
      console.warn(fw.t`The page stays in English: ${error.message}`);
    }
  }

  fw.useLocalization = use;
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
