// The dialog of one card: what the file says of itself, what the user notes about it, and its preview.
(() => {
  const fw = window.featherweight;
  const { element } = fw;
  const ROUTE = "internal/extra-networks";
  const TAGS_SHOWN = 80;
  const LABELS = {
    description: fw.t`Description`,
    "sd version": fw.t`Stable Diffusion version`,
    "activation text": fw.t`Activation text`,
    "preferred weight": fw.t`Preferred weight (0: the default)`,
    "negative text": fw.t`Negative prompt`,
    vae: fw.t`Preferred VAE`,
    notes: fw.t`Notes`,
  };
  const LONG = ["description", "activation text", "negative text", "notes"];

  fw.openCard = async (panel, card, showsMetadata) => {
    const address = `${ROUTE}/details?page=${panel.page}&key=${encodeURIComponent(card.key)}`;
    const details = await fw.get(address);
    const dialog = dialogOf();
    const form = element("form", { method: "dialog" });
    const status = element("p", { className: "fw-networks-status", attributes: { role: "status" } });
    const metadata = metadataOf(details, showsMetadata);
    form.append(
      headOf(details),
      element("div", { className: "fw-card-columns" }, previewOf(panel, card, status), fieldsOf(details)),
      ...tagsOf(panel, details, form),
      metadata,
      status,
      buttonsOf(dialog),
    );
    dialog.replaceChildren(form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save(panel, card, details, form).then(() => dialog.close(), (error) => warn(status, error.message));
    });
    dialog.showModal();
    if (showsMetadata) metadata.querySelector("summary").focus();
    else form.querySelector("[data-note]")?.focus();
  };

  function dialogOf() {
    const known = document.querySelector("#fw_card_dialog");
    if (known) return known;
    const made = element("dialog", { id: "fw_card_dialog", attributes: { "aria-labelledby": "fw_card_title" } });
    document.body.append(made);
    return made;
  }

  function headOf(details) {
    const facts = element("dl", { className: "fw-card-facts" });
    for (const [name, value] of Object.entries(details.facts)) {
      facts.append(element("dt", { textContent: name }), element("dd", { textContent: value }));
    }
    return element("header", {}, element("h2", { id: "fw_card_title", textContent: details.name }), facts);
  }

  function previewOf(panel, card, status) {
    const box = element("div", { className: "fw-card-preview" }, panel.image(card));
    const button = element("button", { type: "button", textContent: fw.t`Use the selected image as preview` });
    button.disabled = !fw.tab(panel.tab).selectedImage();
    if (button.disabled) button.title = fw.t`Make an image first: the one that is selected in Generation becomes the preview.`;
    button.addEventListener("click", async () => {
      try {
        const asked = new URL(fw.tab(panel.tab).selectedImage().url, location.href).searchParams;
        const body = { page: panel.page, key: card.key, id_task: asked.get("id_task"), index: Number(asked.get("index")) };
        panel.replace(await fw.post(`${ROUTE}/preview`, body));
        box.firstChild.replaceWith(panel.image(card));
      } catch (error) {
        warn(status, error.message);
      }
    });
    box.append(button);
    return box;
  }

  function fieldsOf(details) {
    const fields = details.fields.map((name) => {
      const value = details.notes[name] ?? "";
      const field = fieldOf(name, value, details);
      field.dataset.note = name;
      return element("label", {}, LABELS[name], field);
    });
    return element("div", { className: "fw-card-fields" }, ...fields);
  }

  function fieldOf(name, value, details) {
    const choices = { vae: details.vaes, "sd version": details.versions }[name];
    if (choices) {
      const listed = value && !choices.includes(value) ? [...choices, value] : choices;
      const select = element("select", {}, ...listed.map((text) => element("option", { textContent: text })));
      select.value = value || listed[0];
      return select;
    }
    if (name === "preferred weight") {
      return element("input", { type: "number", min: "0", max: "2", step: "0.01", value: String(value || 0) });
    }
    return LONG.includes(name) ? element("textarea", { rows: 2, value }) : element("input", { type: "text", value });
  }

  function tagsOf(panel, details, form) {
    if (!details.tags.length) return [];
    const words = details.tags.slice(0, TAGS_SHOWN).map(([tag, count]) => {
      const button = element("button", { type: "button", textContent: tag }, element("small", { textContent: ` ${count}` }));
      button.title = fw.t`Add to the activation text`;
      button.addEventListener("click", () => addWord(form, tag));
      return button;
    });
    const random = element("input", { type: "text", readOnly: true, attributes: { "aria-label": fw.t`Random prompt` } });
    const draw = element("button", { type: "button", textContent: fw.t`Random prompt` });
    draw.addEventListener("click", () => { random.value = randomPrompt(details.tags); });
    const add = element("button", { type: "button", textContent: fw.t`Add to the prompt` });
    add.addEventListener("click", () => random.value && fw.addToPrompt(panel.tab, random.value));
    const hasActivation = details.fields.includes("activation text");
    return [
      element("h3", { textContent: fw.t`Words it was trained on` }),
      element("div", { className: "fw-card-words" }, ...words),
      ...(hasActivation ? [element("div", { className: "fw-card-random" }, draw, random, add)] : []),
    ];
  }

  function addWord(form, tag) {
    const field = form.querySelector("[data-note='activation text']");
    if (!field) return;
    const parts = field.value.split(",").map((part) => part.trim()).filter(Boolean);
    const kept = parts.includes(tag) ? parts.filter((part) => part !== tag) : [...parts, tag];
    field.value = kept.join(", ");
  }

  // Each word as often as it stood in the captions, the most frequent one always.
  function randomPrompt(tags) {
    const most = Math.max(...tags.map(([, count]) => count));
    return tags.filter(([, count]) => Math.random() * most < count).map(([tag]) => tag).join(", ");
  }

  function metadataOf(details, isOpen) {
    const text = Object.keys(details.metadata).length
      ? JSON.stringify(details.metadata, null, 2)
      : fw.t`This file has no metadata.`;
    return element(
      "details",
      { open: isOpen },
      element("summary", { textContent: fw.t`Metadata of the file` }),
      element("p", { className: "fw-card-path", textContent: details.path }),
      element("pre", { textContent: text, tabIndex: 0 }),
    );
  }

  function buttonsOf(dialog) {
    const cancel = element("button", { type: "button", textContent: fw.t`Cancel` });
    cancel.addEventListener("click", () => dialog.close());
    const save = element("button", { type: "submit", className: "fw-primary", textContent: fw.t`Save notes` });
    return element("footer", {}, cancel, save);
  }

  async function save(panel, card, details, form) {
    const changes = {};
    for (const field of form.querySelectorAll("[data-note]")) {
      const name = field.dataset.note;
      const value = name === "preferred weight" ? Number(field.value) : field.value;
      const plain = name === "preferred weight" ? 0 : { "sd version": "Unknown", vae: "Automatic" }[name] || "";
      const before = details.notes[name] ?? plain;
      if (value !== before) changes[name] = value === plain ? null : value;
    }
    if (!Object.keys(changes).length) return;
    panel.replace(await fw.post(`${ROUTE}/notes`, { page: panel.page, key: card.key, changes }));
  }

  function warn(status, text) {
    status.textContent = text;
    status.classList.add("fw-bad");
  }
})();
