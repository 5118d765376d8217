// What a card does to the prompts: a click adds its tag and words, another click takes them away.
(() => {
  const fw = window.featherweight;
  const lastBox = {}; // by tab: the prompt box that had the cursor last
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  document.addEventListener("focusin", (event) => {
    const box = event.target.closest && event.target.closest("[id$=_prompt]");
    const match = box && box.id.match(/^(\w+?)_(prompt|neg_prompt)$/);
    if (match) lastBox[match[1]] = box.id;
  });

  const textOf = (id) => fw.field(id)?.value || "";

  // The box a card writes into: embeddings go where the cursor was, everything else into the prompt.
  function boxOf(tab, card) {
    return card.tag ? `${tab}_prompt` : lastBox[tab] || `${tab}_prompt`;
  }

  // Matches a card's tag with any strengths, or its word with any weight.
  function pattern(card) {
    if (card.tag) {
      const name = escaped(card.tag.slice(card.tag.indexOf(":"), -1));
      return new RegExp(`<(?:${card.tag_types.join("|")})${name}(?::[^<>]*)?>`);
    }
    const word = escaped(card.prompt);
    return new RegExp(`\\(\\s*${word}\\s*(?::[\\d.]+)?\\s*\\)|(?<![\\p{L}\\p{N}_-])${word}(?![\\p{L}\\p{N}_-])`, "u");
  }

  fw.cardIsUsed = (tab, card) => {
    const boxes = card.tag ? [`${tab}_prompt`] : [`${tab}_prompt`, `${tab}_neg_prompt`];
    return boxes.some((id) => pattern(card).test(textOf(id)));
  };

  fw.toggleCard = (tab, card) => {
    const separator = fw.cardSettings?.extra_networks_add_text_separator ?? " ";
    const negative = `${tab}_neg_prompt`;
    if (fw.cardIsUsed(tab, card)) {
      const id = pattern(card).test(textOf(boxOf(tab, card))) ? boxOf(tab, card) : [`${tab}_prompt`, negative].find((box) => pattern(card).test(textOf(box)));
      fw.setField(id, without(textOf(id), pattern(card), card.activation, separator));
      if (card.negative) fw.setField(negative, withoutText(textOf(negative), card.negative, separator));
      return false;
    }
    const id = boxOf(tab, card);
    fw.setField(id, joined(textOf(id), card.activation ? `${card.prompt} ${card.activation}` : card.prompt, separator));
    if (card.negative) fw.setField(negative, joined(textOf(negative), card.negative, separator));
    return true;
  };

  fw.addToPrompt = (tab, text) => fw.setField(`${tab}_prompt`, joined(textOf(`${tab}_prompt`), text, ", "));

  const joined = (text, added, separator) => (text.trim() ? text + separator + added : added);

  function without(text, tag, activation, separator) {
    const match = text.match(tag);
    let end = match.index + match[0].length;
    if (activation && text.slice(end).startsWith(` ${activation}`)) end += activation.length + 1;
    return cut(text, match.index, end, separator);
  }

  function withoutText(text, removed, separator) {
    const start = text.lastIndexOf(removed);
    return start < 0 ? text : cut(text, start, start + removed.length, separator);
  }

  // The text without [start, end) and without the separator that stood before it (or behind, at the beginning).
  function cut(text, start, end, separator) {
    let before = text.slice(0, start);
    let behind = text.slice(end);
    if (separator && before.endsWith(separator)) before = before.slice(0, -separator.length);
    else if (!before && separator && behind.startsWith(separator)) behind = behind.slice(separator.length);
    return before + behind;
  }
})();
