// The prompt boxes: token counters, bracket check, Ctrl+Up/Down weights, Alt+Left/Right, dropping images.
(() => {
  const fw = window.featherweight;
  const BOXES = ["txt2img_prompt", "txt2img_neg_prompt", "hires_prompt", "hires_neg_prompt"];
  const COUNTED = ["txt2img_prompt", "txt2img_neg_prompt"];
  const BRACKETS = "()[]<>";
  const WHITESPACE = { Tab: "\t", "Carriage Return": "\r", "Line Feed": "\n" };
  const timers = {};
  const counted = {}; // what the counters show, by box

  const boxOf = (element) => BOXES.find((id) => element.closest && element.closest(`#${id}`));

  function unbalanced(text) {
    const plain = text.replace(/\\[\s\S]/g, "");
    const pairs = [["(", ")", "round"], ["[", "]", "square"], ["{", "}", "curly"]];
    for (const [open, close, name] of pairs) {
      const opened = plain.split(open).length;
      const closed = plain.split(close).length;
      if (opened !== closed) return `${Math.abs(opened - closed)} ${name} bracket(s) not ${opened > closed ? "closed" : "opened"}`;
    }
    return "";
  }

  function counterOf(id) {
    const holder = document.querySelector(`#${id}`);
    if (!holder) return null;
    let counter = holder.querySelector(".fw-counter");
    if (!counter) {
      counter = document.createElement("span");
      counter.className = "fw-counter";
      counter.textContent = "0/75";
      holder.append(counter);
    }
    return counter;
  }

  const chosenStyles = () => fw.$$("#txt2img_styles .token > span").map((token) => token.textContent);

  async function count(id) {
    const field = fw.field(id);
    const counter = counterOf(id);
    if (!field || !counter || fw.settings.disable_token_counters) return;
    counted[id] = stateOf(id);
    const problem = unbalanced(field.value);
    counter.classList.toggle("fw-bad", problem !== "");
    counter.title = problem || "Tokens used of those in full chunks of 75";
    const steps = Number(fw.field("txt2img_steps")?.value) || 20;
    try {
      const asked = { text: field.value, steps, styles: chosenStyles(), is_negative: id === "txt2img_neg_prompt" };
      const reply = await fw.post("internal/token-count", asked);
      counter.textContent = reply.text;
    } catch {
      counter.textContent = "?";
    }
  }

  const stateOf = (id) => JSON.stringify([fw.field(id)?.value, fw.field("txt2img_steps")?.value, chosenStyles()]);

  // Also what was filled in without a key press: pasted parameters, examples, chosen styles.
  fw.countTokens = () => COUNTED.filter((id) => counted[id] !== stateOf(id)).forEach(count);

  document.addEventListener("input", (event) => {
    const id = boxOf(event.target);
    if (COUNTED.includes(id)) {
      clearTimeout(timers[id]);
      timers[id] = setTimeout(() => count(id), 250);
    }
    if (event.target.closest && event.target.closest("#txt2img_settings")) describeHires();
  });

  // -- weights -------------------------------------------------------------------------------------------------------

  document.addEventListener("keydown", (event) => {
    const area = event.target;
    if (area.tagName !== "TEXTAREA" || !boxOf(area)) return;
    const withControl = event.ctrlKey || event.metaKey;
    if (withControl && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      changeWeight(area, event.key === "ArrowUp" ? 1 : -1);
    } else if (event.altKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      if (fw.settings.keyedit_move === false) return;
      event.preventDefault();
      moveElement(area, event.key === "ArrowRight" ? 1 : -1);
    }
  });

  // The block (x:1.2), ((x)), [x] or <x:1.2> around the cursor, with the weight it has; null where there is none.
  function blockAround(text, start, end, precision) {
    for (const [open, close, perBracket] of [["<", ">", null], ["(", ")", 1.1], ["[", "]", 1 / 1.1]]) {
      const from = start > 0 ? text.lastIndexOf(open, start - 1) : -1;
      const to = text.indexOf(close, end);
      if (from < 0 || to < 0) continue;
      const inside = text.slice(from + 1, to);
      if (inside.includes(open) || inside.includes(close)) continue;
      const match = open !== "[" && inside.match(/^([\s\S]*):\s*(-?[\d.]+)\s*$/);
      const isNetwork = open === "<";
      if (match) return { from, to: to + 1, body: match[1], weight: Number(match[2]), isNetwork };
      if (isNetwork || /[:|]/.test(inside)) continue; // [a:b:3] and [a|b] have no weight
      let depth = 1;
      while (text[from - depth] === open && text[to + depth] === close) depth += 1;
      const weight = Math.round(perBracket ** depth / precision) * precision;
      return { from: from - depth + 1, to: to + depth, body: inside, weight, isNetwork };
    }
    return null;
  }

  function delimiters() {
    const white = fw.settings.keyedit_delimiters_whitespace || Object.keys(WHITESPACE);
    const named = fw.settings.keyedit_delimiters ?? ".,\\/!?%^*;:{}=`~() ";
    return named + BRACKETS + white.map((name) => WHITESPACE[name]).join("");
  }

  function wordAround(text, position) {
    const ends = delimiters();
    let start = position;
    let end = position;
    while (start > 0 && !ends.includes(text[start - 1])) start -= 1;
    while (end < text.length && !ends.includes(text[end])) end += 1;
    return [start, end];
  }

  function changeWeight(area, direction) {
    const text = area.value;
    let start = area.selectionStart;
    let end = area.selectionEnd;
    const { keyedit_precision_extra: extra = 0.05, keyedit_precision_attention: attention = 0.1 } = fw.settings;
    let block = blockAround(text, start, end, attention);
    if (!block) {
      if (start === end) [start, end] = wordAround(text, start);
      while (end > start && text[end - 1] === " ") end -= 1;
      if (start === end) return;
      block = { from: start, to: end, body: text.slice(start, end), weight: 1, isNetwork: false };
    }
    const step = block.isNetwork ? extra : attention;
    const weight = Number((block.weight + direction * step).toFixed(4));
    let replacement;
    if (block.isNetwork) replacement = `<${block.body}:${weight}>`;
    else replacement = weight === 1 ? block.body : `(${block.body}:${weight})`;
    const offset = block.isNetwork || weight !== 1 ? 1 : 0;
    write(area, text.slice(0, block.from) + replacement + text.slice(block.to), block.from + offset, block.from + offset + block.body.length);
  }

  function moveElement(area, direction) {
    const parts = area.value.split(",");
    let position = 0;
    let index = 0;
    while (index < parts.length - 1 && position + parts[index].length < area.selectionStart) {
      position += parts[index].length + 1;
      index += 1;
    }
    const target = index + direction;
    if (target < 0 || target >= parts.length) return;
    const inside = area.selectionStart - position;
    const trimmed = parts.map((part) => part.trim());
    const [moved] = trimmed.splice(index, 1);
    trimmed.splice(target, 0, moved);
    const before = trimmed.slice(0, target).join(", ").length + (target > 0 ? 2 : 0);
    const cursor = before + Math.max(0, Math.min(inside - (parts[index].length - parts[index].trimStart().length), moved.length));
    write(area, trimmed.join(", "), cursor, cursor);
  }

  function write(area, text, start, end) {
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, text);
    area.dispatchEvent(new Event("input", { bubbles: true }));
    area.focus();
    area.setSelectionRange(start, end);
    requestAnimationFrame(() => {
      // Gradio writes the value once more, which sets the cursor behind it; any other selection is the user's.
      const isBehindText = area.value === text && area.selectionStart === text.length;
      if (isBehindText) area.setSelectionRange(start, end);
    });
  }

  // -- dropped images ----------------------------------------------------------------------------------------------

  document.addEventListener("dragover", (event) => {
    if (event.target.closest && event.target.closest("#txt2img_prompt, #txt2img_neg_prompt")) event.preventDefault();
  });

  document.addEventListener("drop", (event) => {
    const file = event.dataTransfer && event.dataTransfer.files[0];
    if (!file || !event.target.closest || !event.target.closest("#txt2img_prompt, #txt2img_neg_prompt")) return;
    event.preventDefault();
    const reader = new FileReader();
    reader.onload = async () => {
      try {
        const reply = await fw.post("sdapi/v1/png-info", { image: reader.result });
        if (!reply.info) throw new Error("This image holds no parameters.");
        fw.setField("txt2img_prompt", reply.info);
        setTimeout(() => document.querySelector("#paste")?.click(), 100);
      } catch (error) {
        fw.clearMessages();
        fw.message(error.message, true);
      }
    };
    reader.readAsDataURL(file);
  });

  // -- hires size ----------------------------------------------------------------------------------------------------

  function describeHires() {
    const place = document.querySelector("#txt2img_hr_size");
    if (!place) return;
    const number = (id) => Number(fw.field(id)?.value) || 0;
    const [width, height] = [number("txt2img_width"), number("txt2img_height")];
    const [wantWidth, wantHeight, scale] = [number("txt2img_hr_resize_x"), number("txt2img_hr_resize_y"), number("txt2img_hr_scale")];
    let [toWidth, toHeight] = [Math.floor(width * scale), Math.floor(height * scale)];
    if (wantWidth && wantHeight) [toWidth, toHeight] = [wantWidth, wantHeight];
    else if (wantWidth) [toWidth, toHeight] = [wantWidth, Math.floor((wantWidth * height) / width)];
    else if (wantHeight) [toWidth, toHeight] = [Math.floor((wantHeight * width) / height), wantHeight];
    place.textContent = `from ${width}x${height} to ${toWidth}x${toHeight}`;
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest("#txt2img_hr")) setTimeout(describeHires, 200);
  });
})();
