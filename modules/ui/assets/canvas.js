// A canvas to paint on an image: a mask (inpaint) or colors (sketch), or only to hold an image. Mouse, pen and touch;
// undo, redo, zoom.
//
// Strokes are kept as points in image pixels and drawn again for undo and after a reload, so what is sent is what was
// painted, at the size of the image, whatever the zoom. Pure functions stand first; tests/ui/js calls them.
(() => {
  const fw = window.featherweight;
  const MIN_BRUSH_PX = 1;
  const MAX_BRUSH_PX = 512;
  const MAX_ZOOM = 16;
  const BRUSH_SHARE = 1 / 16; // of the longer side: the brush that a new image begins with
  const ZOOM_STEP = 1.25;

  const between = (low, value, high) => Math.min(high, Math.max(low, value));

  // The next brush size: about a tenth more or less, at least one pixel.
  const steppedBrush = (size, direction) =>
    between(MIN_BRUSH_PX, size + direction * Math.max(1, Math.round(size / 10)), MAX_BRUSH_PX);

  // What a turn of the wheel does with the keys that are held, by the settings: "zoom", "brush" or "". Shift zooms where
  // it is not the key of something else.
  function wheelDoes(event, settings) {
    const isHeld = (key) => event[{ Shift: "shiftKey", Ctrl: "ctrlKey", Alt: "altKey" }[key]];
    const zoom = isOff("Zoom", settings) ? "" : "zoom";
    if (isHeld(settings.canvas_hotkey_zoom || "Alt")) return zoom;
    if (isHeld(settings.canvas_hotkey_adjust || "Ctrl")) return isOff("Adjust brush size", settings) ? "" : "brush";
    return event.shiftKey ? zoom : "";
  }

  // Whether the settings switch off a function, by the reference UI's name for it.
  const isOff = (name, settings) => Boolean(settings.canvas_disabled_functions?.includes(name));
  const FUNCTIONS = {
    shrink: fw.t`Hotkey shrink brush`, grow: fw.t`Hotkey enlarge brush`, move: fw.t`Moving canvas`, fullscreen: fw.t`Fullscreen`, reset: fw.t`Reset Zoom`,
    overlap: fw.t`Overlap`,
  };

  // The keys of the settings, by what they do.
  function keysOf(settings) {
    const keys = {
      shrink: settings.canvas_hotkey_shrink_brush ?? "Q",
      grow: settings.canvas_hotkey_grow_brush ?? "W",
      move: settings.canvas_hotkey_move ?? "F",
      fullscreen: settings.canvas_hotkey_fullscreen ?? "S",
      reset: settings.canvas_hotkey_reset ?? "R",
      overlap: settings.canvas_hotkey_overlap ?? "O",
    };
    return Object.fromEntries(Object.entries(keys).filter(([name, key]) => key && !isOff(FUNCTIONS[name], settings)));
  }

  // What the settings call a key: "shrink", "grow", "move", "fullscreen", "reset", "overlap"; null for any other.
  function actionOfKey(key, settings) {
    const isMeant = ([, one]) => one.toLowerCase() === key.toLowerCase();
    return Object.entries(keysOf(settings)).find(isMeant)?.[0] ?? null;
  }

  // What the keys do, in the words of the settings, and what the wheel does with a key held.
  const WORDS = {
    shrink: fw.t`Make the brush smaller`, grow: fw.t`Make the brush larger`, move: fw.t`Move the canvas while this key is held`,
    fullscreen: fw.t`Canvas on the full screen, and back`, reset: fw.t`Show the whole canvas`, overlap: fw.t`Canvas over the whole page, and back`,
  };

  function keyHelp(settings) {
    const wheel = [
      !isOff("Zoom", settings) && [settings.canvas_hotkey_zoom || "Alt", fw.t`Zoom the canvas: the wheel with this key`],
      !isOff("Adjust brush size", settings) && [settings.canvas_hotkey_adjust || "Ctrl", fw.t`Brush size: the wheel with this key`],
    ];
    return [
      ...wheel.filter(Boolean),
      ...Object.entries(keysOf(settings)).map(([name, key]) => [key, WORDS[name]]),
    ];
  }

  const isMoveKey = (key, settings) => key.toLowerCase() === "f" || actionOfKey(key, settings) === "move";

  // An element on the full screen, and back.
  function toggleFullscreen(element) {
    if (document.fullscreenElement) document.exitFullscreen();
    else element.requestFullscreen?.().catch(() => {}); // the browser refuses: it stays as it is
  }

  // A point of the screen in image pixels, to a hundredth; `box` is the canvas element's rectangle.
  const toImage = (box, size, clientX, clientY) => [
    Math.round(((clientX - box.left) * size.width * 100) / box.width) / 100,
    Math.round(((clientY - box.top) * size.height * 100) / box.height) / 100,
  ];

  // What is drawn and what can be drawn again; every change gives a new object.
  const history = {
    empty: () => ({ done: [], undone: [] }),
    add: (h, stroke) => ({ done: [...h.done, stroke], undone: [] }),
    undo: (h) => (h.done.length ? { done: h.done.slice(0, -1), undone: [h.done.at(-1), ...h.undone] } : h),
    redo: (h) => (h.undone.length ? { done: [...h.done, h.undone[0]], undone: h.undone.slice(1) } : h),
    // Clearing is a stroke too, so it can be undone.
    clear: (h) => (history.isEmpty(h) ? h : history.add(h, { clear: true })),
    isEmpty: (h) => !h.done.length || h.done.at(-1).clear === true,
  };

  // Draw one stroke on a 2D context in image pixels.
  const draw = (context, stroke) => {
    if (stroke.clear) {
      context.clearRect(0, 0, context.canvas.width, context.canvas.height);
      return;
    }
    if (stroke.rows) {
      fw.strokes.draw(context, stroke); // what a script has filled, as runs of pixels
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

  const element = (tag, properties = {}, ...children) => fw.element(tag, properties, ...children);

  class PaintCanvas {
    // `root` is the element to fill, `label` its name for people. `layer` says what is painted: "mask", "color", or ""
    // for nothing. `onFiles(files)` is called with what is dropped, pasted or chosen, `onChange()` after each change.
    // `color()` gives the color that a new page paints with.
    constructor(root, { label, layer = "", color = () => "#ffffff", onFiles = () => {}, onChange = () => {} }) {
      Object.assign(this, { root, label, layer, startColor: color, onFiles, onChange });
      root.paintCanvas = this; // for scripts of extensions, which hear of it when it is built
      this.history = history.empty();
      this.version = 0; // counts changes of what is painted
      this.brush = 0; // 0: as suits the image
      this.color = null; // null: the one of the settings
      this.zoom = 1;
      this.erase = false;
      this.width = this.height = 0;
      this.pointers = new Map();
      this.isMoving = false; // the key for moving is held
      this.base = document.createElement("canvas"); // the strokes that are done
      this.build();
      this.listen();
      this.show();
      document.dispatchEvent(new CustomEvent("fw:canvas"));
    }

    get image() {
      return this.width ? { width: this.width, height: this.height } : null;
    }

    get isPainted() {
      return Boolean(this.image) && !history.isEmpty(this.history);
    }

    // -- elements ----------------------------------------------------------------------------------------------------

    build() {
      const paints = this.layer !== "";
      const help = paints
        ? "paint with the pointer; [ and ] change the brush, E erases, Ctrl+Z undoes, + and - zoom, F with the pointer moves"
        : fw.t`holds an image`;
      this.root.classList.add("fw-canvas");
      this.root.tabIndex = 0;
      this.root.setAttribute("role", "group");
      this.root.setAttribute("aria-label", `${this.label}: ${help}`);
      this.bar = element("div", { className: "fw-canvas-bar" });
      if (paints) this.buildBrush();
      this.bar.append(
        this.button(fw.t`Zoom out (-)`, "−", () => this.zoomBy(1 / ZOOM_STEP)),
        this.button(fw.t`Zoom in (+)`, "+", () => this.zoomBy(ZOOM_STEP)),
        this.button(fw.t`Show the whole image (R)`, "⤢", () => this.zoomBy(0)),
        this.button(fw.t`Remove the image`, fw.t`✕ Image`, () => this.onFiles([]), "close"),
      );
      if (paints) this.bar.append(this.buildHelp());
      this.picture = element("img", { alt: fw.t`${this.label}: the image to start from`, draggable: false });
      this.paint = element("canvas", { className: `fw-canvas-paint fw-canvas-${this.layer || "none"}` });
      this.circle = element("div", { className: "fw-canvas-brush", hidden: true });
      this.stage = element("div", { className: "fw-canvas-stage" }, this.picture, this.paint, this.circle);
      this.scroll = element("div", { className: "fw-canvas-scroll" }, this.stage);
      this.file = element("input", { type: "file", accept: "image/*,.avif,.tif,.tiff" });
      this.file.setAttribute("aria-label", fw.t`${this.label}: choose an image file`);
      this.drop = element("label", { className: "fw-canvas-drop" }, fw.t`Drop an image here, paste one, or click to choose`, this.file);
      this.root.replaceChildren(this.bar, this.scroll, this.drop);
    }

    buildBrush() {
      this.size = element("input", { type: "range", min: MIN_BRUSH_PX, max: 100, value: 10, title: "Brush size ([ and ])" });
      this.size.setAttribute("aria-label", fw.t`${this.label}: brush size in pixels`);
      this.size.addEventListener("input", () => this.setBrush(Number(this.size.value)));
      this.eraser = this.button(fw.t`Erase instead of painting (E)`, fw.t`Erase`, () => this.setErase(!this.erase), "erase");
      this.eraser.setAttribute("aria-pressed", "false");
      this.undoButton = this.button(fw.t`Undo (Ctrl+Z)`, "↶", () => this.change(history.undo));
      this.redoButton = this.button(fw.t`Redo (Ctrl+Shift+Z)`, "↷", () => this.change(history.redo));
      this.bar.append(
        this.undoButton,
        this.redoButton,
        this.eraser,
        this.button(fw.t`Clear what is painted (Delete)`, fw.t`Clear`, () => this.change(history.clear), "delete"),
        this.size,
      );
      if (this.layer !== "color") return;
      this.palette = element("input", { type: "color", title: fw.t`Brush color` });
      this.palette.setAttribute("aria-label", fw.t`${this.label}: brush color`);
      this.palette.addEventListener("input", () => {
        this.color = this.palette.value;
        this.setErase(false);
        this.onChange();
      });
      this.bar.append(this.palette);
    }

    // The keys, listed when opened: they follow the settings.
    buildHelp() {
      const list = element("dl");
      this.help = element("details", { className: "fw-canvas-help" }, element("summary", { title: fw.t`Keys of the canvas`, textContent: "?" }), list);
      this.help.querySelector("summary").setAttribute("aria-label", fw.t`${this.label}: Keys of the canvas`);
      this.help.addEventListener("toggle", () => {
        const rows = this.help.open ? keyHelp(fw.settings) : [];
        list.replaceChildren(...rows.flatMap(([key, text]) => [element("dt", { textContent: key }), element("dd", { textContent: text })]));
      });
      return this.help;
    }

    button(title, text, action, icon = "") {
      const made = element("button", { type: "button", title, textContent: text, className: icon && `fw-icon fw-icon-${icon}` });
      made.setAttribute("aria-label", `${this.label}: ${title}`);
      made.addEventListener("click", action);
      return made;
    }

    // -- what the user does --------------------------------------------------------------------------------------------

    listen() {
      if (this.layer) {
        this.paint.addEventListener("pointerdown", (event) => this.begin(event));
        this.paint.addEventListener("pointermove", (event) => this.move(event));
        for (const event_name of ["pointerup", "pointercancel"]) this.paint.addEventListener(event_name, (event) => this.end(event));
        this.paint.addEventListener("pointerleave", () => { this.circle.hidden = true; });
        this.paint.addEventListener("contextmenu", (event) => event.preventDefault());
      }
      this.root.addEventListener("keydown", (event) => this.key(event));
      this.root.addEventListener("keyup", (event) => isMoveKey(event.key, fw.settings) && this.setMoving(false));
      this.root.addEventListener("blur", () => this.setMoving(false));
      this.root.addEventListener("pointerenter", () => {
        if (fw.settings.canvas_blur_prompt && document.activeElement?.matches("textarea")) this.root.focus({ preventScroll: true });
      });
      this.scroll.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.file.addEventListener("change", () => {
        if (this.file.files.length) this.onFiles([...this.file.files]);
        this.file.value = "";
      });
      this.root.addEventListener("dragover", (event) => event.preventDefault());
      this.root.addEventListener("drop", (event) => {
        const files = [...event.dataTransfer.files];
        if (!files.length) return;
        event.preventDefault();
        event.stopPropagation();
        this.onFiles(files);
      });
      this.root.addEventListener("paste", (event) => {
        const files = [...(event.clipboardData?.files || [])];
        if (!files.length) return;
        event.preventDefault();
        this.onFiles(files);
      });
    }

    wheel(event) {
      const does = wheelDoes(event, fw.settings);
      if (does === "brush" && this.layer) {
        event.preventDefault();
        this.setBrush(steppedBrush(this.brushPx, (event.deltaY || event.deltaX) < 0 ? 1 : -1));
      } else if (does) {
        event.preventDefault();
        this.zoomBy((event.deltaY || event.deltaX) < 0 ? 1.2 : 1 / 1.2, [event.clientX, event.clientY]);
      }
    }

    key(event) {
      if (!this.image || (event.target.tagName === "INPUT" && !["range", "color"].includes(event.target.type))) return;
      const control = event.ctrlKey || event.metaKey;
      const key = event.key.toLowerCase();
      const painting = {
        "[": () => this.setBrush(steppedBrush(this.brushPx, -1)),
        "]": () => this.setBrush(steppedBrush(this.brushPx, 1)),
        e: () => this.setErase(!this.erase),
        delete: () => this.change(history.clear),
      };
      const looking = {
        "+": () => this.zoomBy(ZOOM_STEP),
        "=": () => this.zoomBy(ZOOM_STEP),
        "-": () => this.zoomBy(1 / ZOOM_STEP),
        r: () => this.zoomBy(0),
        0: () => this.zoomBy(0),
        f: () => this.setMoving(true),
      };
      const chosen = {
        shrink: this.layer && painting["["],
        grow: this.layer && painting["]"],
        move: looking.f,
        fullscreen: () => toggleFullscreen(this.root),
        reset: looking[0],
        overlap: () => this.root.classList.toggle("fw-canvas-over"),
      };
      const asked = chosen[actionOfKey(event.key, fw.settings)];
      let found = control || event.altKey ? null : asked || (this.layer && painting[key]) || looking[key];
      if (this.layer && control && key === "z") found = () => this.change(event.shiftKey ? history.redo : history.undo);
      if (this.layer && control && key === "y") found = () => this.change(history.redo);
      if (!found) return;
      event.preventDefault();
      event.stopPropagation();
      found();
    }

    begin(event) {
      const moves = event.button === 1 || this.isMoving;
      if (!this.image || (event.button > 0 && event.button !== 5 && !moves)) return;
      event.preventDefault();
      this.root.focus({ preventScroll: true });
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      this.paint.setPointerCapture?.(event.pointerId);
      if (this.pointers.size > 1 || moves) {
        // A second finger zooms and moves: what the first began is no stroke.
        this.stroke = null;
        this.grip = this.gripOf();
        this.draw();
        return;
      }
      const erase = this.erase || event.button === 5 || event.buttons === 32; // the eraser of a pen
      this.stroke = { points: [this.at(event)], size: this.brushPx, color: this.paintColor, erase };
      this.draw();
    }

    move(event) {
      this.drawCircle(event);
      if (!this.pointers.has(event.pointerId)) return;
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (this.grip) {
        const now = this.gripOf();
        this.scroll.scrollBy(this.grip.x - now.x, this.grip.y - now.y);
        if (this.pointers.size > 1) this.zoomBy(now.spread / this.grip.spread, [now.x, now.y]);
        this.grip = now;
      } else if (this.stroke) {
        const events = event.getCoalescedEvents?.() ?? [];
        for (const point of events.length ? events : [event]) this.stroke.points.push(this.at(point));
        this.drawSoon();
      }
    }

    end(event) {
      if (!this.pointers.delete(event.pointerId)) return;
      if (this.grip) {
        this.grip = this.pointers.size ? this.gripOf() : null;
        return;
      }
      const stroke = this.stroke;
      this.stroke = null;
      if (stroke && event.type !== "pointercancel") this.change((kept) => history.add(kept, stroke));
      else this.draw();
    }

    at(event) {
      return toImage(this.paint.getBoundingClientRect(), this.image, event.clientX, event.clientY);
    }

    // Where the fingers are: their middle, and how far they are from it.
    gripOf() {
      const points = [...this.pointers.values()];
      const [x, y] = [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
      return { x, y, spread: Math.hypot(points[0][0] - x, points[0][1] - y) || 1 };
    }

    // -- image, brush, zoom --------------------------------------------------------------------------------------------

    // Show an image by its address; "" takes it away. What was painted stays with an image of the same size.
    async setImage(url) {
      const before = [this.width, this.height];
      if (url) {
        const loaded = new Image();
        loaded.src = url;
        await loaded.decode();
        this.picture.src = url;
        [this.width, this.height] = [loaded.naturalWidth, loaded.naturalHeight];
      } else {
        this.picture.removeAttribute("src");
        this.width = this.height = 0;
      }
      const isSame = before[0] === this.width && before[1] === this.height;
      if (!isSame) {
        this.history = history.empty();
        this.version += 1;
      }
      this.show();
    }

    // The strokes of an earlier page; without those of an image of another size.
    restore({ width, height, done, undone, brush, color }) {
      if (brush) this.brush = brush;
      if (color) this.color = color;
      if (width === this.width && height === this.height) this.history = { done, undone };
      this.version += 1;
      this.show();
    }

    // What a reload needs to go on painting.
    state() {
      const { width, height, brush, color } = this;
      return { width, height, brush, color, ...this.history };
    }

    show() {
      const { width, height } = this;
      for (const canvas of [this.paint, this.base]) Object.assign(canvas, { width, height });
      this.scroll.hidden = this.bar.hidden = !width;
      this.drop.hidden = Boolean(width);
      this.root.classList.toggle("fw-canvas-filled", Boolean(width));
      if (this.size) this.size.max = String(between(32, Math.round(Math.max(width, height) / 2), MAX_BRUSH_PX));
      this.zoom = 1;
      this.layOut();
      this.showBrush();
      this.rebuild();
    }

    get brushPx() {
      return this.brush || Math.max(4, Math.round(Math.max(this.width, this.height) * BRUSH_SHARE));
    }

    get paintColor() {
      return this.color || this.startColor();
    }

    setBrush(size) {
      this.brush = between(MIN_BRUSH_PX, size, MAX_BRUSH_PX);
      this.showBrush();
      this.onChange();
    }

    setErase(erase) {
      this.erase = erase;
      this.eraser.setAttribute("aria-pressed", String(erase));
    }

    setMoving(isMoving) {
      this.isMoving = isMoving;
      this.scroll.classList.toggle("fw-canvas-moving", isMoving);
    }

    showBrush() {
      if (this.size) {
        this.size.value = String(this.brushPx);
        this.size.title = `Brush: ${this.brushPx} pixels ([ and ])`;
        this.undoButton.disabled = !this.history.done.length;
        this.redoButton.disabled = !this.history.undone.length;
      }
      if (this.palette) this.palette.value = this.paintColor;
      this.circle.style.width = `${(100 * this.brushPx) / (this.width || 1)}%`;
    }

    drawCircle(event) {
      if (!this.image) return;
      const [x, y] = this.at(event);
      this.circle.hidden = event.pointerType === "touch";
      this.circle.style.left = `${(100 * x) / this.width}%`;
      this.circle.style.top = `${(100 * y) / this.height}%`;
    }

    // 0: the whole image. `point` on the screen stays where it is.
    zoomBy(factor, point = null) {
      const box = this.scroll.getBoundingClientRect();
      const [clientX, clientY] = point || [box.left + box.width / 2, box.top + box.height / 2];
      const before = this.stage.getBoundingClientRect();
      const share = [(clientX - before.left) / (before.width || 1), (clientY - before.top) / (before.height || 1)];
      this.zoom = factor ? between(1, this.zoom * factor, MAX_ZOOM) : 1;
      this.layOut();
      const after = this.stage.getBoundingClientRect();
      this.scroll.scrollBy(
        after.left + share[0] * after.width - clientX,
        after.top + share[1] * after.height - clientY,
      );
    }

    layOut() {
      const ratio = this.height ? this.width / this.height : 1;
      const whole = `calc(${this.zoom} * min(100%, var(--fw-editor-height, 60vh) * ${ratio}))`;
      this.stage.style.width = fw.settings.canvas_auto_expand === false ? `${100 * this.zoom}%` : whole;
      this.stage.style.aspectRatio = `${this.width || 1} / ${this.height || 1}`;
      this.scroll.classList.toggle("fw-canvas-zoomed", this.zoom > 1);
    }

    // -- drawing -------------------------------------------------------------------------------------------------------

    change(step) {
      const after = step(this.history);
      if (after === this.history) return;
      const isOneMore = after.done.length === this.history.done.length + 1 && !after.undone.length;
      this.history = after;
      this.version += 1;
      if (isOneMore) draw(this.base.getContext("2d"), after.done.at(-1));
      else this.redoBase();
      this.draw();
      this.showBrush();
      this.onChange();
    }

    rebuild() {
      this.redoBase();
      this.draw();
    }

    redoBase() {
      const context = this.base.getContext("2d");
      context.clearRect(0, 0, this.width, this.height);
      this.history.done.slice(this.history.done.findLastIndex((stroke) => stroke.clear) + 1).forEach((stroke) => draw(context, stroke));
    }

    drawSoon() {
      this.awaited = this.awaited || requestAnimationFrame(() => {
        this.awaited = 0;
        this.draw();
      });
    }

    draw() {
      if (!this.width) return;
      const context = this.paint.getContext("2d");
      context.clearRect(0, 0, this.width, this.height);
      context.drawImage(this.base, 0, 0);
      if (this.stroke) draw(context, this.stroke);
    }

    // What is painted as PNG, transparent where nothing is, in the size of the image; null where nothing is painted.
    paintBlob() {
      if (!this.isPainted) return Promise.resolve(null);
      return new Promise((resolve) => this.base.toBlob(resolve, "image/png"));
    }
  }

  fw.canvas = { PaintCanvas, history, steppedBrush, toImage, draw, wheelDoes, actionOfKey, keyHelp, isMoveKey, toggleFullscreen };
})();
