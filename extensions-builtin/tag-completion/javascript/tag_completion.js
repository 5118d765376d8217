// Completes what stands before the cursor of a prompt box: arrows choose, Tab or Enter takes, Escape closes.
(() => {
  const fw = window.featherweight;
  const WAIT_MS = 70; // after the last key press
  const LEAST = 2; // characters of a word; after "<" and "__" none are needed
  const ENDS = ",\n\r{}|[]()<>"; // what a tag cannot hold
  const LIST = "tag_completion";
  let area = null; // the box that the list belongs to
  let part = null; // {start, end, text}: what a completion replaces
  let results = [];
  let comma = true;
  let chosen = -1;
  let asked = 0; // counts questions, so that a late answer does not replace a newer one
  let timer = null;

  // The part of the text before the cursor that can be completed; null where there is none.
  fw.partToComplete = (text, cursor) => {
    const before = text.slice(0, cursor);
    const angle = before.lastIndexOf("<");
    if (angle >= 0 && !/[>\n]/.test(before.slice(angle))) return { start: angle, end: cursor, text: before.slice(angle) };
    const marks = before.split("__");
    const name = marks.at(-1);
    if (marks.length % 2 === 0 && /^[\w/*. -]*$/.test(name)) {
      return { start: cursor - name.length - 2, end: cursor, text: `__${name}` };
    }
    let start = cursor;
    while (start > 0 && !ENDS.includes(before[start - 1])) start -= 1;
    const colon = before.indexOf(":", start);
    if (colon >= 0) return null; // a weight, or a tag such as artist:name, is typed
    while (start < cursor && /\s/.test(before[start])) start += 1;
    const word = before.slice(start);
    return word.trim().length < LEAST ? null : { start, end: cursor, text: word };
  };

  // The text with a completion instead of a part, and the cursor behind it.
  fw.withCompletion = (text, { start, end }, insert, withComma) => {
    const rest = text.slice(end);
    const separator = withComma && !/^\s*[,:)\]|}]/.test(rest) ? ", " : "";
    const written = text.slice(0, start) + insert + separator;
    return { text: written + rest.replace(/^ +/, separator ? "" : "$&"), start: written.length, end: written.length };
  };

  const count = (number) => {
    if (number >= 1e6) return `${(number / 1e6).toFixed(1)}M`;
    return number >= 1e3 ? `${Math.round(number / 1e3)}k` : String(number);
  };

  function list() {
    let found = document.querySelector(`#${LIST}`);
    if (found) return found;
    found = document.createElement("ul");
    found.id = LIST;
    found.hidden = true;
    found.setAttribute("role", "listbox");
    found.setAttribute("aria-label", fw.t`Completions`);
    // The page's root: Gradio scopes style sheets to it.
    (document.querySelector(".gradio-container") || document.body).append(found);
    found.addEventListener("mousedown", (event) => {
      event.preventDefault(); // the box keeps the focus
      const item = event.target.closest("li");
      if (item) take(Number(item.dataset.place));
    });
    return found;
  }

  const isOpen = () => area !== null && results.length > 0;

  function close() {
    clearTimeout(timer);
    asked += 1;
    if (area) {
      area.removeAttribute("aria-activedescendant");
      area.setAttribute("aria-expanded", "false");
    }
    [area, part, results, chosen] = [null, null, [], -1];
    const found = document.querySelector(`#${LIST}`);
    if (found) found.hidden = true;
  }

  async function ask(box) {
    const wanted = box.selectionStart === box.selectionEnd ? fw.partToComplete(box.value, box.selectionStart) : null;
    if (!wanted) return close();
    const turn = ++asked;
    const reply = await fw.get(`tag-completion/search?q=${encodeURIComponent(wanted.text)}`).catch(() => null);
    if (turn !== asked || document.activeElement !== box) return;
    const found = (reply?.results || []).filter((result) => result.insert !== wanted.text);
    if (!found.length) return close();
    [area, part, results, comma, chosen] = [box, wanted, found, reply.comma, -1];
    show();
  }

  function show() {
    const box = list();
    box.replaceChildren(...results.map(item));
    const place = area.getBoundingClientRect();
    const width = Math.min(460, window.innerWidth - 16);
    box.style.width = `${width}px`;
    box.style.left = `${Math.max(8, Math.min(place.left, window.innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(8, Math.min(place.bottom + 4, window.innerHeight - 140))}px`;
    box.hidden = false;
    area.setAttribute("aria-autocomplete", "list");
    area.setAttribute("aria-controls", LIST);
    area.setAttribute("aria-expanded", "true");
  }

  function item(result, place) {
    const made = document.createElement("li");
    made.id = `${LIST}_${place}`;
    made.dataset.place = String(place);
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", "false");
    const name = document.createElement("span");
    name.textContent = result.alias ? `${result.alias} → ${result.text}` : result.text;
    const facts = document.createElement("span");
    facts.textContent = result.kind === "tag" ? (result.count ? count(result.count) : "") : result.kind;
    made.append(name, facts);
    return made;
  }

  function choose(place) {
    chosen = (place + results.length) % results.length;
    list().querySelectorAll("li").forEach((element, index) => {
      element.setAttribute("aria-selected", String(index === chosen));
      if (index === chosen) element.scrollIntoView({ block: "nearest" });
    });
    area.setAttribute("aria-activedescendant", `${LIST}_${chosen}`);
  }

  function take(place) {
    const [box, replaced, result] = [area, part, results[place]];
    close();
    const isWord = ["tag", "embedding", "style"].includes(result.kind);
    fw.writePrompt(box, fw.withCompletion(box.value, replaced, result.insert, comma && isWord));
  }

  document.addEventListener("input", (event) => {
    if (!fw.isPromptBox(event.target)) return;
    // What is pasted or filled in by the page is no typing.
    if (event.isTrusted === false || ["insertFromPaste", "historyUndo"].includes(event.inputType)) return close();
    clearTimeout(timer);
    timer = setTimeout(() => ask(event.target), WAIT_MS);
  });

  // Before all others that listen to keys: Escape would interrupt a job, Enter begin a line.
  window.addEventListener("keydown", (event) => {
    if (!isOpen() || event.target !== area || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "ArrowDown" || key === "ArrowUp") choose(key === "ArrowDown" ? chosen + 1 : chosen < 0 ? -1 : chosen - 1);
    else if (key === "Tab" && !event.shiftKey) take(Math.max(chosen, 0));
    else if (key === "Enter" && chosen >= 0) take(chosen);
    else if (key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);

  document.addEventListener("focusout", (event) => event.target === area && close());
  document.addEventListener("scroll", (event) => isOpen() && event.target.id !== LIST && close(), true);
  document.addEventListener("click", (event) => isOpen() && event.target === area && close());
})();
