// The panel beside the canvas: the list of layers, what the active one is, and the frame.
(() => {
  const fw = window.featherweight;
  const THUMB_PX = 32;
  const EXPAND_PX = 64;
  const KINDS = [["image", fw.t`Image`], ["paint", fw.t`Paint`], ["mask", fw.t`Mask`], ["region", fw.t`Region`], ["control", fw.t`Control image`]];
  const NEW = [
    ["paint", fw.t`+ Paint`, fw.t`A layer to paint on`, fw.t`Paint`],
    ["mask", fw.t`+ Mask`, fw.t`Inpaints what is painted here`, fw.t`Mask`],
    ["region", fw.t`+ Region`, fw.t`What is painted here has a prompt of its own`, fw.t`Region`],
  ];
  const EDGES = [["w", "←", fw.t`Expand to the left`], ["n", "↑", fw.t`Expand at the top`], ["s", "↓", fw.t`Expand at the bottom`], ["e", "→", fw.t`Expand to the right`]];
  const UNITS = 3;

  const button = (text, title, run, more = {}) => {
    const made = fw.element("button", { type: "button", textContent: text, title, ...more });
    made.addEventListener("click", run);
    return made;
  };
  const named = (made, label) => {
    made.setAttribute("aria-label", label);
    return made;
  };
  const labelled = (text, field) => fw.element("label", { className: "fw-layers-field" }, fw.element("span", { textContent: text }), field);
  const select = (choices, value) => {
    const made = fw.element("select", {}, ...choices.map(([name, text]) => fw.element("option", { value: name, textContent: text })));
    made.value = value;
    return made;
  };
  // How far the track of a slider is filled (looks.css says the rest).
  const showRange = (range) => range.style.setProperty("--range_progress", `${(100 * (range.value - range.min)) / (range.max - range.min)}%`);
  const own = (element) => Object.assign(element, { translate: false }); // a name that the user gave

  class LayersPanel {
    constructor(board) {
      this.board = board;
      this.list = fw.element("ul", { className: "fw-layers-list", attributes: { "aria-label": fw.t`Layers` } });
      this.facts = fw.element("div", { className: "fw-layers-facts" });
      this.frame = fw.element("div", { className: "fw-layers-frame" });
      this.root = fw.element("section", { className: "fw-layers-panel", attributes: { "aria-label": fw.t`Layers and frame` } });
      this.build();
      board.listen(() => this.draw());
      board.listenLive(() => this.drawFrame());
    }

    build() {
      const { board } = this;
      this.file = fw.element("input", { type: "file", accept: "image/*,.avif", hidden: true, multiple: true });
      this.file.addEventListener("change", async () => {
        await board.takeFiles([...this.file.files]);
        this.file.value = "";
      });
      const add = NEW.map(([kind, text, title, word]) =>
        button(text, title, () => board.change(fw.layers.added(board.doc, fw.layers.layerOf(kind, fw.layers.freeName(board.doc, word), this.tinted(kind))))),
      );
      const image = button(fw.t`+ Image`, fw.t`An image file as a layer; dropping and pasting work too`, () => this.file.click());
      this.root.append(
        fw.element("h3", { textContent: fw.t`Layers` }),
        fw.element("div", { className: "fw-layers-row" }, image, ...add, this.file),
        this.list,
        this.facts,
        this.frame,
      );
      this.buildFrame();
    }

    // Regions are told apart by their colors.
    tinted(kind) {
      if (kind !== "region") return {};
      const count = this.board.doc.layers.filter((layer) => layer.kind === "region").length;
      return { color: `rgb(${fw.layers.regionColor(count).join(" ")})` };
    }

    draw() {
      const { doc } = this.board;
      const focused = document.activeElement?.dataset?.key;
      this.list.replaceChildren(...doc.layers.toReversed().map((layer) => this.row(layer, doc)));
      if (!doc.layers.length) this.list.append(fw.element("li", { className: "fw-empty", textContent: fw.t`No layer yet: drop an image on the canvas, or add one.` }));
      this.drawFacts(fw.layers.find(doc));
      this.drawFrame();
      if (focused) this.root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }

    // -- the list ------------------------------------------------------------------------------------------------------

    row(layer, doc) {
      const { board } = this;
      const { id, name } = layer;
      const isActive = doc.active === id;
      const key = (element, what) => Object.assign(element, { tabIndex: 0 }).setAttribute("data-key", `${id} ${what}`) ?? element;
      const eye = named(button("", layer.visible ? fw.t`Hide this layer` : fw.t`Show this layer`, () => board.change(fw.layers.withLayer(board.doc, id, { visible: !layer.visible }))), fw.t`${name}: visible`);
      eye.className = "fw-layers-eye fw-icon fw-icon-eye";
      eye.setAttribute("aria-pressed", String(layer.visible));
      const choose = own(button(name, "", () => board.change({ ...board.doc, active: id })));
      choose.className = "fw-layers-name";
      choose.setAttribute("aria-pressed", String(isActive));
      const kind = fw.element("span", { className: "fw-layers-kind", textContent: KINDS.find(([one]) => one === layer.kind)[1] });
      const up = named(button("↑", fw.t`Further up (Alt+Up)`, () => board.change(fw.layers.moved(board.doc, id, 1))), fw.t`${name}: further up`);
      const down = named(button("↓", fw.t`Further down (Alt+Down)`, () => board.change(fw.layers.moved(board.doc, id, -1))), fw.t`${name}: further down`);
      up.classList.add("fw-icon", "fw-icon-up");
      down.classList.add("fw-icon", "fw-icon-down");
      up.disabled = doc.layers.at(-1).id === id;
      down.disabled = doc.layers[0].id === id;
      const remove = named(button("✕", fw.t`Delete this layer (can be undone)`, () => board.change(fw.layers.removed(board.doc, id))), fw.t`${name}: delete`);
      remove.classList.add("fw-icon", "fw-icon-close");
      key(eye, "eye");
      key(choose, "name");
      key(up, "up");
      key(down, "down");
      const made = fw.element("li", { draggable: true }, eye, this.thumb(layer), fw.element("div", {}, choose, kind), up, down, remove);
      made.dataset.layer = id;
      made.classList.toggle("fw-layers-active", isActive);
      made.addEventListener("keydown", (event) => {
        const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
        if (!event.altKey || !by) return;
        event.preventDefault();
        event.stopPropagation();
        board.change(fw.layers.moved(board.doc, id, by));
      });
      this.makeDraggable(made, id);
      return made;
    }

    makeDraggable(made, id) {
      const { board } = this;
      made.addEventListener("dragstart", (event) => {
        event.dataTransfer.setData("text/x-fw-layer", id);
        made.classList.add("fw-dragged");
      });
      made.addEventListener("dragend", () => made.classList.remove("fw-dragged"));
      made.addEventListener("dragover", (event) => event.dataTransfer.types.includes("text/x-fw-layer") && event.preventDefault());
      made.addEventListener("drop", (event) => {
        const other = event.dataTransfer.getData("text/x-fw-layer");
        if (!other) return;
        event.preventDefault();
        event.stopPropagation();
        board.change(fw.layers.put(board.doc, other, board.doc.layers.findIndex((layer) => layer.id === id)));
      });
    }

    thumb(layer) {
      const canvas = fw.element("canvas", { className: "fw-layers-thumb", width: THUMB_PX, height: THUMB_PX });
      canvas.setAttribute("aria-hidden", "true");
      const shown = this.board.pictures.pixels(layer);
      const box = fw.layers.ownBox(layer);
      if (shown && box?.width && box.height) {
        const scale = THUMB_PX / Math.max(box.width, box.height);
        canvas.getContext("2d").drawImage(shown.canvas, box.x - shown.x, box.y - shown.y, box.width, box.height, (THUMB_PX - box.width * scale) / 2, (THUMB_PX - box.height * scale) / 2, box.width * scale, box.height * scale);
      }
      return canvas;
    }

    // -- the active layer ----------------------------------------------------------------------------------------------

    drawFacts(layer) {
      if (!layer) {
        this.facts.replaceChildren();
        return;
      }
      if (this.facts.contains(document.activeElement) && this.factsOf === layer.id && ["INPUT", "TEXTAREA"].includes(document.activeElement.tagName)) return; // while it is typed in
      this.factsOf = layer.id;
      const { board } = this;
      const set = (changes) => board.change(fw.layers.withLayer(board.doc, layer.id, changes));
      const name = own(fw.element("input", { type: "text", value: layer.name, maxLength: 80 }));
      name.addEventListener("change", () => set({ name: name.value.trim() || layer.name }));
      const opacity = fw.element("input", { type: "range", min: 0, max: 1, step: 0.01, value: layer.opacity });
      fw.layers.showRange(opacity);
      opacity.addEventListener("input", () => {
        fw.layers.showRange(opacity);
        board.show(fw.layers.withLayer(board.doc, layer.id, { opacity: Number(opacity.value) }));
      });
      opacity.addEventListener("change", () => board.commit());
      const kind = select(this.kindsFor(layer), layer.kind);
      kind.addEventListener("change", () => set({ kind: kind.value, ...(kind.value === "region" || kind.value === "mask" ? { opacity: 0.5, ...this.tinted(kind.value) } : { opacity: 1 }) }));
      const tools = fw.element("div", { className: "fw-layers-row" },
        button(fw.t`Duplicate`, fw.t`A copy of this layer above it`, () => board.duplicate(layer)),
        button(fw.t`Clear`, fw.t`Clear what is painted on it (Delete)`, () => board.clear()),
        ...fw.layers.actions.filter((one) => one.fits(layer)).map((one) => button(one.text, one.title, () => one.run(board, layer))));
      this.facts.replaceChildren(
        labelled(fw.t`Name`, name),
        labelled(fw.t`Opacity`, opacity),
        labelled(fw.t`Use as`, kind),
        ...(layer.kind === "region" ? [this.promptField(layer, set)] : []),
        ...(layer.kind === "control" ? this.controlFields(layer, set) : []),
        tools,
      );
    }

    // A layer with a picture is an image or a control image; strokes alone are paint, mask or region.
    kindsFor(layer) {
      return KINDS.filter(([kind]) => kind === layer.kind || kind === "control" || (layer.image ? kind === "image" : kind !== "image"));
    }

    promptField(layer, set) {
      const prompt = fw.element("textarea", { rows: 2, value: layer.prompt, placeholder: fw.t`What should be in this region` });
      prompt.addEventListener("change", () => set({ prompt: prompt.value }));
      return labelled(fw.t`Prompt of this region`, prompt);
    }

    controlFields(layer, set) {
      const unit = select(Array.from({ length: UNITS }, (_, number) => [String(number), fw.t`Unit ${number}`]), String(layer.unit));
      unit.addEventListener("change", () => set({ unit: Number(unit.value) }));
      const asForm = ["", fw.t`As the form says`];
      const choice = (field, value) => {
        const made = select([asForm, ...(value ? [[value, value]] : [])], value);
        made.addEventListener("change", () => set({ [field]: made.value }));
        return made;
      };
      const [module, model] = [choice("module", layer.module), choice("model", layer.model)];
      this.fillLists(layer, module, model);
      const weight = fw.element("input", { type: "number", min: 0, max: 2, step: 0.05, value: layer.weight });
      weight.addEventListener("change", () => set({ weight: Number(weight.value) }));
      return [labelled(fw.t`Unit of ControlNet`, unit), labelled(fw.t`Preprocessor`, module), labelled(fw.t`Control model`, model), labelled(fw.t`Control weight`, weight)];
    }

    // Which preprocessors and models there are is asked once.
    async fillLists(layer, module, model) {
      const get = async (path) => (await fetch(path)).json();
      try {
        this.lists ??= Promise.all([get("controlnet/module_list?alias_names=true"), get("controlnet/model_list?shipped=true")]);
        const [modules, models] = await this.lists;
        const fill = (made, names, value) => {
          made.append(...names.filter((name) => name !== value).map((name) => own(fw.element("option", { value: name, textContent: name }))));
          made.value = value;
        };
        fill(module, modules.module_list, layer.module);
        fill(model, models.model_list, layer.model);
      } catch (error) {
        this.lists = null;
        this.board.say(fw.t`The models of ControlNet could not be listed: ${error.message}`);
      }
    }

    // -- the frame -----------------------------------------------------------------------------------------------------

    buildFrame() {
      const { board } = this;
      const change = (frame) => {
        board.change({ ...board.doc, frame });
        if (!board.view.isChosen) board.view.fit(); // what was added is in sight
      };
      const side = (name) => {
        const made = fw.element("input", { type: "number", min: 64, max: 4096, step: 8 });
        made.addEventListener("change", () => change({ ...board.doc.frame, [name]: fw.layers.side(Number(made.value) || board.doc.frame[name], board.grid) }));
        return made;
      };
      this.sides = { width: side("width"), height: side("height") };
      this.grid = select([["8", "8"], ["64", "64"]], String(board.grid));
      this.grid.addEventListener("change", () => board.set({ grid: Number(this.grid.value) }));
      this.outside = fw.element("p", { className: "fw-layers-outside", attributes: { role: "status" } });
      const edges = EDGES.map(([edge, text, title]) => named(button(text, title, () => change(fw.layers.expanded(board.doc.frame, edge, EXPAND_PX, board.grid))), title));
      this.frame.append(
        fw.element("h3", { textContent: fw.t`Frame` }),
        fw.element("div", { className: "fw-layers-row" }, labelled(fw.t`Width`, this.sides.width), labelled(fw.t`Height`, this.sides.height), labelled(fw.t`Grid`, this.grid)),
        fw.element("div", { className: "fw-layers-row", attributes: { role: "group", "aria-label": fw.t`Expand by 64 pixels` } },
          fw.element("span", { textContent: fw.t`Expand` }), ...edges,
          button(fw.t`Fit all`, fw.t`Fit the frame around all images and paint`, () => board.frameAll())),
        this.outside,
        fw.element("div", { className: "fw-layers-row" },
          button(fw.t`Download`, fw.t`Save the frame as a PNG file`, () => board.download()),
          button(fw.t`New canvas`, fw.t`Remove all layers (can be undone)`, () => board.change(fw.layers.emptyDocument()))),
      );
    }

    drawFrame() {
      const { frame } = this.board.doc;
      for (const name of ["width", "height"]) {
        if (document.activeElement !== this.sides[name]) this.sides[name].value = String(frame[name]);
      }
      this.grid.value = String(this.board.grid);
      const share = this.board.outsidePercent();
      this.outside.textContent = share === 0 ? "" : share === null ? fw.t`The frame is empty: it starts from noise.` : fw.t`${share} % of the frame is empty and will be outpainted.`;
    }
  }

  // What extensions do with a layer: {text, title, fits(layer), run(board, layer)}.
  const actions = [];

  Object.assign(fw.layers, { LayersPanel, showRange, actions });
})();
