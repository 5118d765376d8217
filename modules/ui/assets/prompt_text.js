// Editing of prompts as text: brackets, weights, order. No element of the page is touched in here.
(() => {
  const fw = window.featherweight;
  const BRACKETS = "()[]<>";
  const WHITESPACE = { Tab: "\t", "Carriage Return": "\r", "Line Feed": "\n" };

  // What is wrong with the brackets, or "".
  fw.unbalanced = (text) => {
    const plain = text.replace(/\\[\s\S]/g, "");
    const pairs = [["(", ")", "round"], ["[", "]", "square"], ["{", "}", "curly"]];
    for (const [open, close, name] of pairs) {
      const opened = plain.split(open).length;
      const closed = plain.split(close).length;
      if (opened !== closed) return fw.t`${Math.abs(opened - closed)} ${name} bracket(s) not ${opened > closed ? "closed" : "opened"}`;
    }
    return "";
  };

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

  function delimiters(settings) {
    const white = settings.keyedit_delimiters_whitespace || Object.keys(WHITESPACE);
    const named = settings.keyedit_delimiters ?? ".,\\/!?%^*;:{}=`~() ";
    return named + BRACKETS + white.map((name) => WHITESPACE[name]).join("");
  }

  function wordAround(text, position, settings) {
    const ends = delimiters(settings);
    let start = position;
    let end = position;
    while (start > 0 && !ends.includes(text[start - 1])) start -= 1;
    while (end < text.length && !ends.includes(text[end])) end += 1;
    return [start, end];
  }

  // The text with the weight at the selection one step higher (direction 1) or lower (-1), and the selection then; null
  // where there is nothing to weigh.
  fw.reweighted = (text, start, end, direction, settings) => {
    const { keyedit_precision_extra: extra = 0.05, keyedit_precision_attention: attention = 0.1 } = settings;
    let block = blockAround(text, start, end, attention);
    if (!block) {
      if (start === end) [start, end] = wordAround(text, start, settings);
      while (end > start && text[end - 1] === " ") end -= 1;
      if (start === end) return null;
      block = { from: start, to: end, body: text.slice(start, end), weight: 1, isNetwork: false };
    }
    const step = block.isNetwork ? extra : attention;
    const weight = Number((block.weight + direction * step).toFixed(4));
    let replacement;
    if (block.isNetwork) replacement = `<${block.body}:${weight}>`;
    else replacement = weight === 1 ? block.body : `(${block.body}:${weight})`;
    const first = block.from + (block.isNetwork || weight !== 1 ? 1 : 0);
    return {
      text: text.slice(0, block.from) + replacement + text.slice(block.to),
      start: first,
      end: first + block.body.length,
    };
  };

  // The text with the element at the cursor moved behind the next (direction 1) or before the last (-1) comma.
  fw.withElementMoved = (text, cursor, direction) => {
    const parts = text.split(",");
    let position = 0;
    let index = 0;
    while (index < parts.length - 1 && position + parts[index].length < cursor) {
      position += parts[index].length + 1;
      index += 1;
    }
    const target = index + direction;
    if (target < 0 || target >= parts.length) return null;
    const trimmed = parts.map((part) => part.trim());
    const [moved] = trimmed.splice(index, 1);
    trimmed.splice(target, 0, moved);
    const before = trimmed.slice(0, target).join(", ").length + (target > 0 ? 2 : 0);
    const inside = cursor - position - (parts[index].length - parts[index].trimStart().length);
    const start = before + Math.max(0, Math.min(inside, moved.length));
    return { text: trimmed.join(", "), start, end: start };
  };

  // What turns one text into another: [start, end) of the first, and what stands there instead.
  fw.difference = (before, after) => {
    let start = 0;
    while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
    let tail = 0;
    const most = Math.min(before.length, after.length) - start;
    while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
    return { start, end: before.length - tail, inserted: after.slice(start, after.length - tail) };
  };
})();
