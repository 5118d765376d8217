// The sub tab Canvas of img2img: its document with undo, what is kept over a reload, and what it has to do with the form.
(() => {
  const fw = window.featherweight;
  const tab = fw.tab("img2img");
  const MODE = "canvas";
  const KEPT = "layers";
  const KEEP_MS = 400; // after the last change
  const MOUNT_MS = 200;
  const MAX_PENDING = 40;
  const SAMPLE_PX = 64; // of the longer side, to see how much of the frame is empty

  if (!tab) return;

  class LayersBoard {
    constructor() {
      this.steps = fw.layers.steps.of(fw.layers.emptyDocument());
      this.live = null; // the document while something is dragged
      this.pending = {}; // frames of jobs, by task
      this.preview = null; // of the running job: {bitmap, frame}
      Object.assign(this, { tool: "brush", brush: 48, color: "#20a0ff", erase: false, grid: 8 });
      this.pictures = new fw.layers.LayerPictures();
      this.listeners = [];
      this.liveListeners = [];
      this.isKept = false;
      this.coming = 0; // additions under way: their pictures are not in the document yet
    }

    get doc() {
      return this.live ?? this.steps.doc;
    }

    get shownVariant() {
      return this.doc.variants[this.doc.shown] ?? null;
    }

    listen(run) {
      this.listeners.push(run);
    }

    listenLive(run) {
      this.liveListeners.push(run);
    }

    told() {
      this.listeners.forEach((run) => run());
      this.view?.draw();
      this.keepSoon();
      tab.describeForm?.();
    }

    // -- changes -------------------------------------------------------------------------------------------------------

    // Another document, as a step of undo.
    change(doc) {
      this.live = null;
      this.steps = fw.layers.steps.add(this.steps, doc);
      this.told();
    }

    // Another document in the place of this one.
    amend(doc) {
      this.steps = { ...this.steps, doc };
      this.told();
    }

    // While something is dragged; `commit` makes it a step, `forget` takes it back.
    show(doc) {
      this.live = doc;
      this.liveListeners.forEach((run) => run());
      this.view.draw();
    }

    commit() {
      if (this.live) this.change(this.live);
    }

    forget() {
      this.live = null;
      this.told();
    }

    undo() {
      this.steps = fw.layers.steps.undo(this.steps);
      this.told();
    }

    redo() {
      this.steps = fw.layers.steps.redo(this.steps);
      this.told();
    }

    // Tool, brush, color, grid.
    set(values) {
      Object.assign(this, values);
      this.told();
    }

    say(text) {
      this.status.textContent = text;
    }

    addStroke(id, stroke) {
      const layer = fw.layers.find(this.doc, id);
      if (layer) this.change(fw.layers.withLayer(this.doc, id, { strokes: [...layer.strokes, stroke] }));
    }

    // The active layer, where it can be painted on.
    layerToPaint() {
      const layer = fw.layers.find(this.doc);
      if (!layer) this.say(fw.t`There is no layer to paint on: add one.`);
      else if (!layer.visible) this.say(fw.t`The active layer is hidden: show it first.`);
      else {
        this.say("");
        return layer;
      }
      return null;
    }

    clear() {
      const layer = fw.layers.find(this.doc);
      if (layer?.strokes.length) this.change(fw.layers.withLayer(this.doc, layer.id, { strokes: [] }));
    }

    duplicate(layer) {
      const { id, name, ...rest } = layer;
      this.change(fw.layers.added(this.doc, fw.layers.layerOf(layer.kind, fw.layers.freeName(this.doc, name), rest)));
    }

    frameAll() {
      const box = this.doc.layers.filter(fw.layers.isPicture).reduce((all, layer) => fw.layers.union(all, fw.layers.boxOf(layer)), null);
      if (box) this.change({ ...this.doc, frame: fw.layers.snapped(box, this.grid) });
      this.view.fit();
    }

    // How much of the frame lies under no image and no paint, in percent; null: all of it.
    outsidePercent() {
      const { frame } = this.doc;
      const scale = SAMPLE_PX / Math.max(frame.width, frame.height);
      const canvas = fw.layers.canvasOf(frame.width * scale, frame.height * scale);
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.scale(scale, scale);
      context.translate(-frame.x, -frame.y);
      for (const layer of this.doc.layers) if (layer.visible && fw.layers.isPicture(layer)) this.pictures.draw(context, layer, 1);
      const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
      let empty = 0;
      for (let at = 3; at < data.length; at += 4) empty += data[at] < 128 ? 1 : 0;
      const share = empty / (data.length / 4);
      return share === 1 ? null : share < 0.005 ? 0 : Math.max(1, Math.round(100 * share));
    }

    async download() {
      const link = fw.element("a", { href: URL.createObjectURL(await fw.layers.blobOf(this.pictures.seen(this.doc, this.doc.frame))), download: "canvas.png" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    }

    // -- images --------------------------------------------------------------------------------------------------------

    // Run what takes in pictures and then puts them into the document. None is dropped meanwhile.
    async adding(run) {
      this.coming += 1;
      try {
        await run();
      } finally {
        this.coming -= 1;
      }
    }

    // Keep a picture here and over a reload: {id, width, height}. Only within `adding`.
    async keepPicture(blob) {
      const made = await this.pictures.add(blob);
      await fw.canvasStore.put(`${KEPT}.${made.id}`, { blob });
      return made;
    }

    // An image as a layer. The first one is the base: the frame goes around it, and a mask lies ready.
    addImage(blob, name = "") {
      return this.adding(() => this.addKept(blob, name));
    }

    async addKept(blob, name) {
      const { id, width, height } = await this.keepPicture(blob);
      const { doc } = this;
      const isFirst = !doc.layers.length;
      const { frame } = doc;
      const place = isFirst ? { x: 0, y: 0 } : { x: frame.x, y: frame.y };
      const layer = fw.layers.layerOf("image", isFirst ? fw.text(fw.t`Base`) : name || fw.layers.freeName(doc, "Image"), { image: id, size: [width, height], ...place });
      let after = fw.layers.added(doc, layer);
      if (isFirst) {
        const cut = (px) => fw.layers.side(Math.floor(px / 8) * 8, 8);
        after = { ...after, frame: { ...place, width: cut(width), height: cut(height) } };
        after = fw.layers.added(after, fw.layers.layerOf("mask", fw.layers.freeName(after, "Mask")));
      }
      this.change(after);
      this.view.fit();
    }

    async takeFiles(files) {
      tab.clearMessages();
      for (const file of files) {
        await this.addImage(file, file.name.replace(/\.\w+$/, "").slice(0, 80)).catch(() => this.say(fw.t`The browser cannot show ${file.name} as an image.`));
      }
    }

    // -- over a reload -------------------------------------------------------------------------------------------------

    keepSoon() {
      if (!this.isKept) return;
      clearTimeout(this.keeping);
      this.keeping = setTimeout(() => this.keep(), KEEP_MS);
    }

    async keep() {
      clearTimeout(this.keeping);
      const { steps, pending, tool, brush, color, grid } = this;
      await fw.canvasStore.put(KEPT, { steps, pending, tools: { tool, brush, color, grid } });
      if (this.coming) return this.keepSoon();
      const left = this.pictures.drop(fw.layers.imagesOf(this.steps));
      for (const id of left) await fw.canvasStore.remove(`${KEPT}.${id}`);
    }

    async restore() {
      const kept = await fw.canvasStore.get(KEPT);
      if (kept?.steps) {
        for (const id of fw.layers.imagesOf(kept.steps)) {
          const picture = await fw.canvasStore.get(`${KEPT}.${id}`);
          if (!picture) continue;
          await this.pictures.add(picture.blob, id);
          await fw.canvasStore.put(`${KEPT}.${id}`, { blob: picture.blob }); // this page keeps its own, and for longer
        }
        Object.assign(this, { steps: kept.steps, pending: kept.pending ?? {} }, kept.tools);
      }
      this.isKept = true;
      this.told();
      this.view.fit();
    }
  }

  const board = new LayersBoard();

  function mount() {
    document.body.classList.toggle("fw-on-canvas", Boolean(board.view?.canvas.offsetParent));
    const place = document.querySelector(".fw-layers-place:not([data-mounted])");
    if (!place) return;
    place.dataset.mounted = "";
    const canvas = fw.element("canvas", { className: "fw-layers-canvas", attributes: { role: "img", "aria-label": fw.t`What the canvas shows` } });
    const stage = fw.element("div", { className: "fw-layers-stage", tabIndex: 0, attributes: { role: "group" } }, canvas);
    stage.setAttribute("aria-label", fw.t`Canvas: arrows move the cross, Enter starts and ends a stroke, tooltips show the keys of the tools`);
    board.status = fw.element("p", { className: "fw-layers-status", attributes: { role: "status" } });
    board.view = new fw.layers.LayersView(board, canvas);
    const tools = new fw.layers.LayersTools(board, board.view, stage);
    board.results = new fw.layers.LayersResults(board);
    const panel = new fw.layers.LayersPanel(board);
    place.replaceChildren(fw.element("div", { className: "fw-layers" },
      tools.bar, board.results.root, stage, board.status, panel.root));
    takesDrops(place);
    document.dispatchEvent(new CustomEvent("fw:canvas"));
    board.ready = board.restore();
  }

  function takesDrops(place) {
    place.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    place.addEventListener("drop", (event) => {
      const files = [...event.dataTransfer.files];
      if (!files.length) return;
      event.preventDefault();
      event.stopPropagation();
      board.takeFiles(files);
    });
    place.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files || [])];
      if (!files.length) return;
      event.preventDefault();
      board.takeFiles(files);
    });
  }

  async function mounted() {
    while (!board.ready) await new Promise((resolve) => setTimeout(resolve, MOUNT_MS));
    await board.ready;
  }

  // -- the form --------------------------------------------------------------------------------------------------------

  const { setImage, getImage, imageSize, pictures, start, showResult, showPreview } = tab;

  tab.layers = board;

  tab.setImage = async (mode, image) => {
    if (mode !== MODE) return setImage(mode, image);
    await fw.showTab("img2img", "img2img_canvas_tab");
    await mounted();
    try {
      if (image === null) return board.change(fw.layers.emptyDocument());
      await board.addImage(typeof image === "string" ? await (await fetch(image)).blob() : image);
    } catch (error) {
      tab.message(error.message, true);
      throw error;
    }
  };

  // What the frame shows, as a Blob.
  tab.getImage = (mode) => {
    if (mode !== MODE) return getImage(mode);
    const isEmpty = board.outsidePercent() === null;
    return isEmpty ? null : fw.layers.blobOf(board.pictures.seen(board.doc, board.doc.frame));
  };

  tab.imageSize = () => {
    if (tab.mode() !== MODE) return imageSize();
    const { width, height } = board.doc.frame;
    return { width, height };
  };

  let begun = ""; // the job whose images are being sent
  tab.start = () => (begun = start());

  tab.pictures = async () => {
    if (tab.mode() !== MODE) return pictures();
    try {
      const id = begun;
      await mounted();
      const frame = board.doc.frame;
      const sent = await fw.layers.sent(board, tab);
      board.pending = Object.fromEntries([...Object.entries(board.pending), [id, frame]].slice(-MAX_PENDING));
      board.keepSoon();
      return JSON.stringify(sent);
    } catch (error) {
      return JSON.stringify({ error: error.message });
    }
  };

  tab.showPreview = (uri) => {
    showPreview(uri);
    const frame = board.pending[tab.task()];
    if (!frame || !board.view) return;
    const bitmap = new Image();
    bitmap.src = uri;
    bitmap.decode().then(() => {
      if (!tab.isRunning()) return;
      board.preview = { bitmap, frame };
      board.view.draw();
    }, () => {}); // a broken preview: the next one comes soon
  };

  tab.showResult = (data) => {
    showResult(data);
    receive(data);
  };

  async function receive(data) {
    await mounted();
    board.preview = null;
    board.view.draw();
    const frame = board.pending[data.task];
    if (!frame) return;
    delete board.pending[data.task];
    await board.results.receive(data.images, frame).catch((error) => tab.message(error.message, true));
    board.keepSoon();
  }

  document.addEventListener("visibilitychange", () => document.hidden && board.isKept && board.keep());
  setInterval(mount, MOUNT_MS);
})();
