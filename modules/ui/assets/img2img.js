// The img2img tab: its canvases, what is sent of them with the form, and the buttons that concern the image.
(() => {
  const fw = window.featherweight;
  const tab = fw.tab("img2img");
  const MODES = {
    img2img: { label: "img2img", tabId: "img2img_img2img_tab" },
    sketch: { label: fw.t`Sketch`, tabId: "img2img_img2img_sketch_tab" },
    inpaint: { label: fw.t`Inpaint`, tabId: "img2img_inpaint_tab" },
    inpaint_sketch: { label: fw.t`Inpaint sketch`, tabId: "img2img_inpaint_sketch_tab" },
    inpaint_upload: { label: fw.t`Inpaint upload`, tabId: "img2img_inpaint_upload_tab" },
    mask_upload: { label: fw.t`Mask`, tabId: "img2img_inpaint_upload_tab" },
  };
  const COLORS = {
    sketch: "img2img_sketch_default_brush_color",
    inpaint: "img2img_inpaint_mask_brush_color",
    inpaint_sketch: "img2img_inpaint_sketch_default_brush_color",
  };
  const DESCRIBERS = { "#interrogate": "clip", "#deepbooru": "deepdanbooru", "#describe": "describe" };
  const COPIED_TO = ["img2img", "sketch", "inpaint", "inpaint_sketch"];
  const FRESH_MS = 3600 * 1000; // after that an image is sent again, since the server keeps it for some time only
  const MOUNT_MS = 200;
  const slots = new Map(); // by name: the canvas, its file, and what the server calls it

  if (!tab) return;

  // A mask is painted in the page's accent, unless the settings name a color: only where it lies counts.
  function colorOf(name) {
    const color = fw.settings[COLORS[name]] || "#ffffff";
    const accent = getComputedStyle(document.body).getPropertyValue("--fw-accent").trim();
    return name === "inpaint" && color.toLowerCase() === "#ffffff" && accent ? accent : color;
  }

  // What a factor makes of a size: "from 512x512 to 768x768". The server cuts to multiples of 8 as here.
  fw.scaledLine = (size, factor) => {
    if (!size) return fw.t`There is no image yet.`;
    const side = (px) => Math.floor(Math.floor(px * factor) / 8) * 8;
    return fw.t`from ${size.width}x${size.height} to ${side(size.width)}x${side(size.height)}`;
  };

  tab.mode = () => tab.form.mode || "img2img";

  // The size of the image of the sub tab that is shown; null where there is none.
  tab.imageSize = () => slots.get(tab.mode())?.canvas.image ?? null;

  // Put an image (Blob, data URI or address of this server) into a sub tab and show it; null takes the image away.
  tab.setImage = async (mode, image) => {
    await fw.showTab("img2img", MODES[mode].tabId);
    const slot = await mounted(mode);
    try {
      const blob = typeof image === "string" ? await (await fetch(image)).blob() : image;
      await put(slot, blob);
    } catch (error) {
      tab.message(error.message, true);
      throw error;
    }
  };

  // The image of a sub tab as it was given, as a Blob; null where there is none.
  tab.getImage = (mode) => slots.get(mode)?.file ?? null;

  // What the form is sent with: the keys of the images, as JSON text.
  tab.pictures = async () => {
    try {
      const references = tab.referenceKeys();
      const sent = references.length ? { references } : {};
      if (tab.mode() === "batch") return JSON.stringify({ ...sent, files: tab.batchFiles() });
      const slot = slots.get(tab.mode());
      if (slot) {
        sent.image = await keyOf(slot);
        sent.paint = await paintKeyOf(slot);
      }
      if (tab.mode() === "inpaint_upload") sent.mask = await keyOf(slots.get("mask_upload"));
      return JSON.stringify(sent);
    } catch (error) {
      return JSON.stringify({ error: error.message });
    }
  };

  // -- canvases ------------------------------------------------------------------------------------------------------

  function mount() {
    const height = fw.settings.img2img_editor_height;
    if (height) document.body.style.setProperty("--fw-editor-height", `${height}px`);
    for (const place of document.querySelectorAll(".fw-canvas-place:not([data-mounted])")) {
      place.dataset.mounted = "";
      const name = place.dataset.canvas;
      const slot = { name, file: null, key: "", sentAt: 0, paintKey: "", paintVersion: -1, paintSentAt: 0 };
      slot.canvas = new fw.canvas.PaintCanvas(place, {
        label: MODES[name].label,
        layer: place.dataset.layer,
        color: () => colorOf(name),
        onFiles: (files) => take(slot, files),
        onChange: () => keep(slot),
      });
      if (COPIED_TO.includes(name)) slot.canvas.root.append(copyRow(slot));
      slots.set(name, slot);
      slot.restored = restore(slot);
    }
  }

  async function mounted(name) {
    while (!slots.has(name)) await new Promise((resolve) => setTimeout(resolve, MOUNT_MS));
    await slots.get(name).restored;
    return slots.get(name);
  }

  async function restore(slot) {
    const kept = await fw.canvasStore.get(slot.name);
    if (!kept) return;
    Object.assign(slot, { file: kept.file, key: kept.key });
    try {
      if (kept.file) {
        const isThere = await slot.canvas.setImage(address(kept.key)).then(() => true, () => false);
        if (!isThere) await send(slot); // the server does not keep it any more
      }
      slot.canvas.restore(kept);
    } catch (error) {
      Object.assign(slot, { file: null, key: "" });
      console.warn(fw.t`The image of ${slot.name} could not be shown again: ${error.message}`);
    }
    described();
  }

  const keep = (slot) => fw.canvasStore.put(slot.name, { file: slot.file, key: slot.key, ...slot.canvas.state() });

  const address = (key) => `internal/upload/${key}`;

  async function take(slot, files) {
    tab.clearMessages();
    await put(slot, files[0] ?? null).catch((error) => tab.message(error.message, true));
  }

  async function put(slot, file) {
    if (file) {
      const reply = await fw.upload(file);
      await slot.canvas.setImage(address(reply.key));
      Object.assign(slot, { file, key: reply.key, sentAt: Date.now() });
    } else {
      await slot.canvas.setImage("");
      Object.assign(slot, { file: null, key: "" });
    }
    await keep(slot);
    described();
  }

  async function send(slot) {
    const reply = await fw.upload(slot.file);
    Object.assign(slot, { key: reply.key, sentAt: Date.now() });
    await slot.canvas.setImage(address(reply.key));
  }

  async function keyOf(slot) {
    if (!slot?.file) return "";
    if (Date.now() - slot.sentAt > FRESH_MS) {
      const reply = await fw.upload(slot.file);
      Object.assign(slot, { key: reply.key, sentAt: Date.now() });
    }
    return slot.key;
  }

  async function paintKeyOf(slot) {
    const { canvas } = slot;
    if (!canvas.isPainted) return "";
    if (slot.paintVersion !== canvas.version || Date.now() - slot.paintSentAt > FRESH_MS) {
      const version = canvas.version;
      const reply = await fw.upload(await canvas.paintBlob());
      Object.assign(slot, { paintKey: reply.key, paintVersion: version, paintSentAt: Date.now() });
    }
    return slot.paintKey;
  }

  function copyRow(slot) {
    const row = fw.element("div", { className: "fw-canvas-copy" }, fw.element("span", { textContent: fw.t`Copy image to:` }));
    for (const name of COPIED_TO.filter((other) => other !== slot.name)) {
      const button = fw.element("button", { type: "button", textContent: MODES[name].label, id: `img2img_copy_${slot.name}_to_${name}` });
      button.addEventListener("click", () => slot.file && tab.setImage(name, slot.file).catch(() => {}));
      row.append(button);
    }
    return row;
  }

  // -- the form ------------------------------------------------------------------------------------------------------

  const describeForm = tab.describeForm;
  tab.describeForm = () => {
    describeForm();
    described();
  };

  function described() {
    const box = tab.find("settings");
    if (box) box.dataset.mode = tab.mode();
    const line = tab.find("scale_resolution_preview");
    if (line) line.textContent = fw.scaledLine(tab.imageSize(), Number(tab.form.scale_by) || 1);
  }

  async function interrogate(model) {
    tab.clearMessages();
    const file = await tab.getImage(tab.mode());
    if (!file) {
      tab.message(fw.t`There is no image to describe: put one into the field first.`, true);
      return;
    }
    const button = document.querySelector(Object.keys(DESCRIBERS).find((name) => DESCRIBERS[name] === model));
    button.setAttribute("aria-busy", "true");
    try {
      const data = await fw.post("sdapi/v1/interrogate", { image: await fw.dataUri(file), model });
      const prompt = tab.field("prompt").value;
      tab.set("prompt", prompt ? `${prompt}, ${data.caption}` : data.caption);
    } catch (error) {
      tab.message(fw.t`The image could not be described: ${error.message}`, true);
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  document.addEventListener("click", (event) => {
    const [, model] = Object.entries(DESCRIBERS).find(([name]) => event.target.closest?.(name)) ?? [];
    if (model) interrogate(model);
    if (tab.holds(event.target, "detect_image_size_btn") && tab.imageSize()) {
      for (const side of ["width", "height"]) tab.set(side, String(Math.floor(tab.imageSize()[side] / 8) * 8));
    }
  });

  setInterval(mount, MOUNT_MS);
  fw.canvasStore.sweep();
})();
