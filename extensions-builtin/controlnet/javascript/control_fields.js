// Fields of a unit of ControlNet: selects, numbers with sliders, and the field for its images.
(() => {
  const fw = window.featherweight;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key in made) made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };

  const labelled = (text, field) => element("label", { className: "controlnet-field" }, element("span", { textContent: text }), field);

  const options = (names, value) =>
    names.map((name) => {
      const [own, shown] = Array.isArray(name) ? name : [name, name];
      return element("option", { value: own, textContent: shown, selected: own === value });
    });

  const select = (names, value) => element("select", {}, ...options(names, value));

  // A number with its slider; `field` is the number, and `field.show()` moves the slider to it.
  const slider = (text, { min, max, step, value }) => {
    const field = element("input", { type: "number", min, max, step, value });
    const range = element("input", { type: "range", min, max, step, value, tabIndex: -1, "aria-hidden": "true" });
    field.show = () => (range.value = field.value);
    field.addEventListener("input", field.show);
    for (const type of ["input", "change"]) {
      range.addEventListener(type, () => {
        field.value = range.value;
        field.dispatchEvent(new Event(type, { bubbles: true }));
      });
    }
    const head = element("span", { className: "controlnet-head" }, element("span", { textContent: text }), field);
    return { field, root: element("label", { className: "controlnet-field controlnet-slider" }, head, range) };
  };

  const asText = (file) =>
    new Promise((done, failed) => {
      const reader = new FileReader();
      reader.onload = () => done(String(reader.result));
      reader.onerror = () => failed(new Error(fw.t`${file.name} could not be read.`));
      reader.readAsDataURL(file);
    });

  // An image of this page, by its address, as a data URL; of a thumbnail its whole image.
  const imageAt = async (url) => {
    const address = new URL(url.replace("/thumbnail?", "/image?"), document.baseURI);
    if (address.protocol.startsWith("http") && address.origin !== location.origin) throw new Error(fw.t`Only images of this page can be dropped here; save the image and drop the file.`);
    const reply = await fetch(address);
    const blob = await reply.blob();
    if (!reply.ok || !blob.type.startsWith("image/")) throw new Error(fw.t`There is no image to take.`);
    return asText(blob);
  };

  // Files and addresses that a drop or a clipboard holds, as images.
  const imagesOf = async (data) => {
    const files = [...data.files].filter((file) => file.type.startsWith("image/"));
    const url = data.getData("text/uri-list").split("\n")[0].trim();
    if (!files.length && url) return [await imageAt(url)];
    if (!files.length) throw new Error(fw.t`There is no image to take.`);
    return Promise.all(files.map(asText));
  };

  // The field for images: dropped, pasted while the pointer or the focus is in `root`, or chosen. `act` runs what may
  // fail; `took` is called with data URLs.
  const imageField = (root, act, took) => {
    const input = element("input", { type: "file", accept: "image/*", ariaLabel: fw.t`Image` });
    const hint = element("span");
    const image = element("img", { alt: fw.t`Image of the unit`, className: "controlnet-image", hidden: true });
    const drop = element("label", { className: "fw-canvas-drop" }, hint, image, input);
    const others = element("span", { className: "controlnet-others" });
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = "";
      if (files.length) act(async () => took(await Promise.all(files.map(asText))));
    });
    drop.addEventListener("dragover", (event) => event.preventDefault());
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      const { dataTransfer } = event;
      act(async () => took(await imagesOf(dataTransfer)));
    });
    document.addEventListener("paste", (event) => {
      const isHere = root.offsetParent && (root.contains(document.activeElement) || root.matches(":hover"));
      const { clipboardData } = event;
      if (!isHere || ![...(clipboardData?.files ?? [])].some((file) => file.type.startsWith("image/"))) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      act(async () => took(await imagesOf(clipboardData)));
    }, true);

    const show = (images, several) => {
      input.multiple = several;
      hint.textContent = several ? fw.t`Drop images here, or click to choose several` : fw.t`Drop an image here, paste one, or click to choose`;
      hint.hidden = images.length > 0;
      image.hidden = !images.length;
      if (images.length) image.src = images[0];
      const rest = several ? images.slice(1) : [];
      others.replaceChildren(...rest.map((src, place) => element("img", { src, alt: fw.t`Image ${place + 2} of the unit`, className: "controlnet-image" })));
    };
    show([], false);
    return { drop, image, others, show };
  };

  fw.control = { element, labelled, options, select, slider, asText, imageAt, imageField };
})();
