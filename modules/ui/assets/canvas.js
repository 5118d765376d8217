// A canvas to paint on an image: masks (inpaint) and colors (sketch). Mouse, pen and touch; undo, redo, zoom.
//
// Strokes are kept as points in image pixels and drawn again for undo, so what is sent is what was painted, at the
// size of the image, whatever the zoom. Pure functions stand first; tests/ui/js reads them.
(() => {
  const MIN_BRUSH_PX = 1;
  const MAX_BRUSH_PX = 512;
  const MAX_ZOOM = 16;
  const MAX_KEPT_CHARS = 1_500_000; // of strokes in sessionStorage; beyond that a reload keeps the image of them only

  // The next brush size: about a tenth more or less, at least one pixel.
  const steppedBrush = (size, direction) =>
    Math.min(MAX_BRUSH_PX, Math.max(MIN_BRUSH_PX, size + direction * Math.max(1, Math.round(size / 10))));

  // A point of the screen in image pixels; `box` is the canvas element's rectangle.
  const toImage = (box, imageSize, clientX, clientY) => [
    ((clientX - box.left) * imageSize.width) / box.width,
    ((clientY - box.top) * imageSize.height) / box.height,
  ];

  // What is drawn and what can be drawn again; every change gives a new object.
  const history = {
    empty: () => ({ done: [], undone: [] }),
    add: (h, stroke) => ({ done: [...h.done, stroke], undone: [] }),
    undo: (h) => (h.done.length ? { done: h.done.slice(0, -1), undone: [h.done.at(-1), ...h.undone] } : h),
    redo: (h) => (h.undone.length ? { done: [...h.done, h.undone[0]], undone: h.undone.slice(1) } : h),
    // Clearing is a stroke too, so it can be undone.
    clear: (h) => (h.done.length && h.done.at(-1).clear !== true ? history.add(h, { clear: true }) : h),
    isEmpty: (h) => !h.done.length || h.done.at(-1).clear === true,
  };

  // Draw one stroke on a 2D context in image pixels.
  const draw = (context, stroke) => {
    if (stroke.clear) {
      context.clearRect(0, 0, context.canvas.width, context.canvas.height);
      return;
    }
    if (stroke.image) {
      context.drawImage(stroke.image, 0, 0);
      return;
    }
    context.save();
    context.globalCompositeOperation = stroke.erase ? "destination-out" : "source-over";
    context.strokeStyle = context.fillStyle = stroke.color;
    context.lineWidth = stroke.size;
    context.lineCap = context.lineJoin = "round";
    const [first, ...rest] = stroke.points;
    context.beginPath();
    if (rest.length === 0) {
      context.arc(first[0], first[1], stroke.size / 2, 0, 2 * Math.PI);
      context.fill();
    } else {
      context.moveTo(first[0], first[1]);
      rest.forEach(([x, y]) => context.lineTo(x, y));
      context.stroke();
    }
    context.restore();
  };

  class PaintCanvas {
    // `root` is the element to fill; `color` the brush's; `isMask` sends white on black instead of the painted colors.
    // `onPainted(blob | null)` is called with a PNG of the image's size after each change, null where nothing is painted.
    constructor(root, { name, color = "#ffffff", isMask = true, onPainted = () => {}, onImage = () => {} }) {
      Object.assign(this, { root, name, color, isMask, onPainted, onImage });
      this.history = history.empty();
      this.brush = 24;
      this.zoom = 1;
      this.erase = false;
      this.pointers = new Map();
      this.build();
    }

    build() {
      const button = (label, text, action) => {
        const element = document.createElement("button");
        element.type = "button";
        element.className = "fw-canvas-button";
        element.textContent = text;
        element.title = label;
        element.setAttribute("aria-label", label);
        element.addEventListener("click", action);
        return element;
      };
      this.root.classList.add("fw-canvas");
      this.root.tabIndex = 0;
      this.root.setAttribute("role", "group");
      this.root.setAttribute("aria-label", `${this.name}: paint with the pointer; [ and ] change the brush, Ctrl+Z undoes`);
      this.bar = document.createElement("div");
      this.bar.className = "fw-canvas-bar";
      this.size = document.createElement("input");
      Object.assign(this.size, { type: "range", min: MIN_BRUSH_PX, max: 256, value: this.brush, title: "Brush size" });
      this.size.setAttribute("aria-label", `${this.name}: brush size in pixels`);
      this.size.addEventListener("input", () => this.setBrush(Number(this.size.value)));
      this.eraser = button("Erase instead of painting (e)", "⌫", () => this.setErase(!this.erase));
      this.bar.append(
        button("Undo (Ctrl+Z)", "↶", () => this.change(history.undo)),
        button("Redo (Ctrl+Shift+Z)", "↷", () => this.change(history.redo)),
        this.eraser,
        button("Clear what is painted (Delete)", "✕", () => this.change(history.clear)),
        button("Zoom out (-)", "−", () => this.setZoom(this.zoom / 1.5)),
        button("Zoom in (+)", "+", () => this.setZoom(this.zoom * 1.5)),
        button("Whole image (0)", "⤢", () => this.setZoom(1)),
        this.size,
      );
      if (!this.isMask) {
        this.palette = document.createElement("input");
        Object.assign(this.palette, { type: "color", value: this.color, title: "Brush color" });
        this.palette.setAttribute("aria-label", `${this.name}: brush color`);
        this.palette.addEventListener("input", () => (this.color = this.palette.value));
        this.bar.append(this.palette);
      }
      this.bar.append(button("Remove the image", "🗑", () => this.setImage(null)));
      this.scroll = document.createElement("div");
      this.scroll.className = "fw-canvas-scroll";
      this.stage = document.createElement("div");
      this.stage.className = "fw-canvas-stage";
      this.picture = document.createElement("img");
      this.picture.alt = `${this.name}: the image to start from`;
      this.picture.draggable = false;
      this.paint = document.createElement("canvas");
      this.paint.className = this.isMask ? "fw-canvas-mask" : "";
      this.stage.append(this.picture, this.paint);
      this.scroll.append(this.stage);
      this.drop = document.createElement("label");
      this.drop.className = "fw-canvas-drop";
      this.drop.textContent = "Drop an image here, paste one, or click to choose";
      this.file = document.createElement("input");
      Object.assign(this.file, { type: "file", accept: "image/*" });
      this.file.setAttribute("aria-label", `${this.name}: choose an image file`);
      this.file.addEventListener("change", () => this.file.files[0] && this.onImage(this.file.files[0]));
      this.drop.append(this.file);
      this.root.replaceChildren(this.bar, this.scroll, this.drop);
      this.listen();
      this.setImage(null);
    }

    listen() {
      this.paint.addEventListener("pointerdown", (event) => this.begin(event));
      this.paint.addEventListener("pointermove", (event) => this.move(event));
      for (const kind of ["pointerup", "pointercancel"]) this.paint.addEventListener(kind, (event) => this.end(event));
      this.root.addEventListener("keydown", (event) => this.key(event));
      this.scroll.addEventListener(
        "wheel",
        (event) => {
          if (!event.ctrlKey) return;
          event.preventDefault();
          this.setZoom(this.zoom * (event.deltaY < 0 ? 1.2 : 1 / 1.2));
        },
        { passive: false },
      );
      this.root.addEventListener("dragover", (event) => event.preventDefault());
      this.root.addEventListener("drop", (event) => {
        const file = [...event.dataTransfer.files].find((item) => item.type.startsWith("image/"));
        if (!file) return;
        event.preventDefault();
        event.stopPropagation();
        this.onImage(file);
      });
      this.root.addEventListener("paste", (event) => {
        const file = [...(event.clipboardData?.files || [])].find((item) => item.type.startsWith("image/"));
        if (file) this.onImage(file);
      });
    }

    // Show an image by its address; null takes it away. What was painted stays with an image of the same size.
    async setImage(url) {
      const had = this.width ? `${this.width}x${this.height}` : "";
      if (url) {
        this.picture.src = url;
        await this.picture.decode();
      } else {
        this.picture.removeAttribute("src");
      }
      this.width = url ? this.picture.naturalWidth : 0;
      this.height = url ? this.picture.naturalHeight : 0;
      if (!url || had !== `${this.width}x${this.height}`) this.history = history.empty();
      this.paint.width = this.width;
      this.paint.height = this.height;
      this.scroll.hidden = this.bar.hidden = !url;
      this.drop.hidden = Boolean(url);
      this.setZoom(1);
      this.redraw();
    }

    get image() {
      return this.width ? { width: this.width, height: this.height } : null;
    }

    setBrush(size) {
      this.brush = Math.min(MAX_BRUSH_PX, Math.max(MIN_BRUSH_PX, size));
      this.size.value = this.brush;
    }

    setErase(erase) {
      this.erase = erase;
      this.eraser.setAttribute("aria-pressed", String(erase));
    }

    setZoom(zoom) {
      this.zoom = Math.min(MAX_ZOOM, Math.max(1, zoom));
      this.stage.style.width = `${this.zoom * 100}%`;
      this.scroll.classList.toggle("fw-zoomed", this.zoom > 1);
    }

    key(event) {
      if (event.target.tagName === "INPUT" && event.target.type !== "range") return;
      const control = event.ctrlKey || event.metaKey;
      const key = event.key.toLowerCase();
      const action = {
        "[": () => this.setBrush(steppedBrush(this.brush, -1)),
        "]": () => this.setBrush(steppedBrush(this.brush, 1)),
        e: () => this.setErase(!this.erase),
        delete: () => this.change(history.clear),
        "+": () => this.setZoom(this.zoom * 1.5),
        "-": () => this.setZoom(this.zoom / 1.5),
        0: () => this.setZoom(1),
      };
      let found = control ? null : action[key];
      if (control && key === "z") found = () => this.change(event.shiftKey ? history.redo : history.undo);
      if (control && key === "y") found = () => this.change(history.redo);
      if (!found) return;
      event.preventDefault();
      event.stopPropagation();
      found();
    }

    begin(event) {
      if (event.button > 0) return;
      event.preventDefault();
      this.root.focus({ preventScroll: true });
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (this.pointers.size === 2) {
        // A second finger zooms and moves: what the first began is no stroke.
        this.stroke = null;
        this.pinch = this.spread();
        this.redraw();
        return;
      }
      if (this.pointers.size > 2) return;
      this.paint.setPointerCapture(event.pointerId);
      const erase = this.erase || event.buttons === 32; // a pen's eraser
      this.stroke = { points: [this.at(event)], size: this.brush, color: this.color, erase };
      draw(this.paint.getContext("2d"), this.stroke);
    }

    move(event) {
      if (!this.pointers.has(event.pointerId)) return;
      const before = this.pointers.get(event.pointerId);
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (this.pointers.size === 2 && this.pinch) {
        const spread = this.spread();
        this.setZoom((this.zoom * spread) / this.pinch);
        this.pinch = spread;
        this.scroll.scrollBy((before[0] - event.clientX) / 2, (before[1] - event.clientY) / 2);
        return;
      }
      if (!this.stroke) return;
      const events = event.getCoalescedEvents?.() ?? [];
      for (const point of events.length ? events : [event]) this.stroke.points.push(this.at(point));
      this.redraw();
      draw(this.paint.getContext("2d"), this.stroke);
    }

    end(event) {
      if (!this.pointers.delete(event.pointerId)) return;
      if (this.pointers.size < 2) this.pinch = null;
      if (!this.stroke) return;
      const stroke = this.stroke;
      this.stroke = null;
      if (event.type === "pointercancel") this.redraw();
      else this.change((kept) => history.add(kept, stroke));
    }

    at(event) {
      return toImage(this.paint.getBoundingClientRect(), this.image, event.clientX, event.clientY);
    }

    spread() {
      const [a, b] = [...this.pointers.values()];
      return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
    }

    redraw() {
      if (!this.width) return;
      const context = this.paint.getContext("2d");
      context.clearRect(0, 0, this.width, this.height);
      this.history.done.forEach((stroke) => draw(context, stroke));
    }

    async change(step) {
      const after = step(this.history);
      if (after === this.history) return;
      this.history = after;
      this.redraw();
      this.onPainted(await this.png());
    }

    // A PNG of what is painted: white on black for a mask, else the image under the colors; null where nothing is.
    png() {
      if (!this.width || history.isEmpty(this.history)) return Promise.resolve(null);
      const sent = document.createElement("canvas");
      sent.width = this.width;
      sent.height = this.height;
      const context = sent.getContext("2d");
      if (this.isMask) {
        context.fillStyle = "#000000";
        context.fillRect(0, 0, this.width, this.height);
      } else {
        context.drawImage(this.picture, 0, 0);
      }
      context.drawImage(this.paint, 0, 0);
      return new Promise((resolve) => sent.toBlob(resolve, "image/png"));
    }

    // What a reload needs to go on painting: the strokes, where they are not too many.
    state() {
      const text = JSON.stringify({ size: [this.width, this.height], done: this.history.done.filter((s) => !s.image) });
      return text.length <= MAX_KEPT_CHARS ? text : null;
    }

    restore(text) {
      const kept = JSON.parse(text);
      if (kept.size[0] !== this.width || kept.size[1] !== this.height) return;
      this.history = { done: kept.done, undone: [] };
      this.redraw();
    }
  }

  featherweight.canvas = { PaintCanvas, history, steppedBrush, toImage };
})();
