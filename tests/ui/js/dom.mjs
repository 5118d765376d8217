// A small DOM for page scripts: elements with children, classes, attributes and events. What lays out is missing: an
// element is visible unless it or one around it is hidden, and its rectangle is what a test puts into `box`.
const TOKEN = /^(?:([\w*]+)|#([\w-]+)|\.([\w-]+)|\[([\w-]+)(?:([$^*]?)=["']?([^"'\]]*)["']?)?\]|:not\(([^)]*)\)|:has\(([^)]*)\)|:(scope|checked|focus-visible))/;
const HOLDS = { "": (a, b) => a === b, $: (a, b) => a.endsWith(b), "^": (a, b) => a.startsWith(b), "*": (a, b) => a.includes(b) };
const dataName = (name) => name.slice(5).replace(/-(\w)/g, (_, letter) => letter.toUpperCase());

// A selector as a list of alternatives, each a list of [combinator, compound].
const parsed = (selector) => selector.split(/,(?![^([]*[)\]])/).map((one) => {
  const parts = one.trim().split(/\s*(>)\s*|\s+(?![^([]*[)\]])/).filter(Boolean);
  return parts.filter((part) => part !== ">").map((part) => [parts[parts.indexOf(part) - 1] === ">" ? ">" : " ", part]);
});

function isCompound(element, compound, scope) {
  for (let rest = compound, match; rest; rest = rest.slice(match[0].length)) {
    match = TOKEN.exec(rest);
    if (!match) throw new Error(`This DOM knows no selector ${compound}`);
    const [, tag, id, name, attribute, way, wanted, not, has, state] = match;
    const found = attribute === undefined ? null : element.getAttribute(attribute);
    const holds = tag ? tag === "*" || element.tagName === tag.toUpperCase()
      : id ? element.id === id
        : name ? element.classList.contains(name)
          : attribute ? found !== null && (wanted === undefined || HOLDS[way](found, wanted))
            : not ? !element.matches(not)
              : has ? element.querySelector(has.replace(/^>/, ":scope >")) !== null
                : state === "scope" ? element === scope : state === "checked" ? Boolean(element.checked) : true;
    if (!holds) return false;
  }
  return true;
}

function isMatch(element, steps, scope) {
  const [combinator, compound] = steps.at(-1);
  if (!isCompound(element, compound, scope)) return false;
  const before = steps.slice(0, -1);
  if (!before.length) return combinator !== ">" || element.parentElement === scope;
  let around = element.parentElement;
  for (; around; around = around.parentElement) {
    if (isMatch(around, before, scope)) return true;
    if (combinator === ">") return false;
  }
  return false;
}

export class Element {
  constructor(tagName, document) {
    Object.assign(this, { tagName: tagName.toUpperCase(), ownerDocument: document, parentElement: null, nodes: [], listeners: [] });
    Object.assign(this, { id: "", className: "", hidden: false, disabled: false, inert: false, attributes: new Map(), dataset: {}, scrollTop: 0 });
    this.style = { setProperty: (name, value) => (this.style[name] = value), removeProperty: (name) => delete this.style[name] };
  }

  // -- tree --
  get children() { return this.nodes.filter((node) => node instanceof Element); }
  get childElementCount() { return this.children.length; }
  get firstChild() { return this.nodes[0] ?? null; }
  get isConnected() { return this === this.ownerDocument || Boolean(this.parentElement?.isConnected); }
  get nextElementSibling() { return this.parentElement?.children[this.parentElement.children.indexOf(this) + 1] ?? null; }
  get previousElementSibling() { return this.parentElement?.children[this.parentElement.children.indexOf(this) - 1] ?? null; }
  get textContent() { return this.nodes.map((node) => (node instanceof Element ? node.textContent : node)).join(""); }
  set textContent(text) { this.replaceChildren(...(text === "" || text == null ? [] : [String(text)])); }
  put(at, nodes) {
    for (const node of nodes) if (node instanceof Element) { node.remove(); node.parentElement = this; }
    this.nodes.splice(at, 0, ...nodes.map((node) => (node instanceof Element ? node : String(node))));
  }
  append(...nodes) { this.put(this.nodes.length, nodes); }
  prepend(...nodes) { this.put(0, nodes); }
  before(...nodes) { this.parentElement.put(this.parentElement.nodes.indexOf(this), nodes); }
  replaceChildren(...nodes) {
    for (const child of this.children) child.parentElement = null;
    this.nodes = [];
    this.append(...nodes);
  }
  replaceWith(...nodes) { this.before(...nodes); this.remove(); }
  remove() {
    const around = this.parentElement;
    if (around) around.nodes = around.nodes.filter((node) => node !== this);
    this.parentElement = null;
  }
  contains(other) { return other === this || Boolean(other?.parentElement && this.contains(other.parentElement)); }

  // -- selectors --
  get all() { return this.children.flatMap((child) => [child, ...child.all]); }
  matches(selector, scope = this) { return parsed(selector).some((steps) => isMatch(this, steps, scope)); }
  closest(selector) { return this.matches(selector) ? this : this.parentElement?.closest(selector) ?? null; }
  querySelectorAll(selector) { return this.all.filter((one) => one.matches(selector, this)); }
  querySelector(selector) { return this.all.find((one) => one.matches(selector, this)) ?? null; }

  // -- attributes --
  get classList() {
    const names = () => this.className.split(" ").filter(Boolean);
    const set = (all) => (this.className = [...new Set(all)].join(" "));
    const contains = (name) => names().includes(name);
    return {
      contains,
      add: (...added) => set([...names(), ...added]),
      remove: (...gone) => set(names().filter((name) => !gone.includes(name))),
      toggle: (name, isOn = !contains(name)) => { set(isOn ? [...names(), name] : names().filter((one) => one !== name)); return isOn; },
    };
  }
  getAttribute(name) {
    const value = name.startsWith("data-") ? this.dataset[dataName(name)] : this.attributes.get(name) ?? (name === "class" ? this.className : this[name]);
    return value === undefined || value === null || value === false || value === "" && name === "id" ? null : String(value);
  }
  setAttribute(name, value) {
    if (name.startsWith("data-")) this.dataset[dataName(name)] = String(value);
    else this.attributes.set(name, String(value));
  }
  hasAttribute(name) { return this.getAttribute(name) !== null; }
  removeAttribute(name) { this.attributes.delete(name); }

  // -- what is seen --
  checkVisibility() { return this.isConnected && !this.hidden && this.style.display !== "none" && (!this.parentElement || this.parentElement === this.ownerDocument || this.parentElement.checkVisibility()); }
  get offsetParent() { return this.checkVisibility() ? this.parentElement : null; }
  getBoundingClientRect() { return this.box ?? { left: 0, top: 0, width: 0, height: 0, right: 0, bottom: 0 }; }
  scrollIntoView() {}
  showModal() { this.open = true; }
  close() { this.open = false; }

  // -- events --
  addEventListener(type, run, options) { this.listeners.push({ type, run, isCapture: options === true || Boolean(options?.capture) }); }
  // All that hear an event, from the document down and up again; gives what they return, as a promise of a list.
  dispatchEvent(event) {
    const target = event.target ?? this;
    let isOver = false;
    Object.assign(event, { target, defaultPrevented: false, preventDefault: () => { event.defaultPrevented = true; } });
    event.stopPropagation = event.stopImmediatePropagation = () => { isOver = true; };
    const around = [];
    for (let one = target instanceof Element ? target : this.ownerDocument; one; one = one.parentElement) around.push(one);
    const heard = [];
    const tell = (element, isCapture) => {
      for (const { type, run, isCapture: own } of element.listeners) {
        if (!isOver && type === event.type && own === isCapture) heard.push(run.call(element, event));
      }
    };
    for (const element of [...around].reverse()) tell(element, true);
    for (const element of around) tell(element, false);
    return Promise.all(heard);
  }
  click() { return this.disabled ? undefined : this.dispatchEvent({ type: "click" }); }
  focus() { this.ownerDocument.activeElement = this; }
  blur() { this.ownerDocument.activeElement = null; }
}

export class HTMLInputElement extends Element {
  written = "";
  selectionStart = 0;
  selectionEnd = 0;
  get value() { return this.written; }
  set value(value) {
    this.written = String(value);
    this.setSelectionRange(this.written.length, this.written.length);
  }
  get valueAsNumber() { return Number.parseFloat(this.written); }
  setSelectionRange(start, end) { Object.assign(this, { selectionStart: start, selectionEnd: end }); }
}

export class HTMLTextAreaElement extends HTMLInputElement {
  get value() { return super.value; }
  set value(value) { super.value = value; }
}

export class Document extends Element {
  constructor() {
    super("#document", null);
    Object.assign(this, { ownerDocument: this, title: "", activeElement: null });
    [this.documentElement, this.head, this.body] = ["html", "head", "body"].map((tag) => this.createElement(tag));
    this.documentElement.append(this.head, this.body);
    this.append(this.documentElement);
  }
  createElement(tag) {
    const kind = { input: HTMLInputElement, textarea: HTMLTextAreaElement, select: HTMLInputElement }[tag] ?? Element;
    return new kind(tag, this);
  }
  createElementNS(_, tag) { return this.createElement(tag); }
  getElementById(id) { return this.querySelector(`#${id}`); }
  checkVisibility() { return true; }
  // What is typed goes where the selection is, as a browser's own command does it.
  execCommand(name, _, text = "") {
    const field = this.activeElement;
    const { selectionStart: start, selectionEnd: end } = field;
    field.value = field.value.slice(0, start) + (name === "insertText" ? text : "") + field.value.slice(end);
    field.setSelectionRange(start + text.length, start + text.length);
  }
  // Make elements inside of each other, as "#one_hr > button.label-wrap > span" says, below what is there already;
  // gives the innermost.
  make(path) {
    return path.split(/\s*>\s*|\s+/).reduce((around, part) => {
      const found = around.children.find((child) => child.matches(part));
      if (found) return found;
      const made = this.createElement(/^\w+/.exec(part)?.[0] ?? "div");
      made.id = /#([\w-]+)/.exec(part)?.[1] ?? "";
      made.className = [...part.matchAll(/\.([\w-]+)/g)].map(([, name]) => name).join(" ");
      for (const [, name, value] of part.matchAll(/\[([\w-]+)(?:=([^\]]*))?\]/g)) made.setAttribute(name, value ?? "");
      around.append(made);
      return made;
    }, this.body);
  }
}
