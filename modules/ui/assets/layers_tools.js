// Tools of the canvas: what mouse, pen, fingers and keys do on it, and the bar of buttons above it.
(() => {
  const fw = window.featherweight;
  const ZOOM_STEP = 1.25;
  const [REACH_PX, TOUCH_REACH_PX] = [10, 22]; // how near a handle must be
  const MIN_BOX_PX = 4; // of a layer that is resized
  const [STEP_PX, FINE_PX] = [8, 1]; // of the arrow keys; with Shift
  const TOOLS = [
    { name: "brush", icon: "brush", key: "b", text: fw.t`Brush`, title: fw.t`Paint on the active layer (B)` },
    { name: "lasso", icon: "lasso", key: "l", text: fw.t`Lasso`, title: fw.t`Fill the area inside a line (L)` },
    { name: "rectangle", icon: "rect", key: "m", text: fw.t`Rectangle`, title: fw.t`Fill a rectangle (M)` },
    { name: "fill", icon: "fill", key: "g", text: fw.t`Fill`, title: fw.t`Fill an area of one color (G)` },
    { name: "pick", icon: "pick", key: "i", text: fw.t`Pick color`, title: fw.t`Pick a color from the canvas (I)` },
    { name: "move", icon: "move", key: "v", text: fw.t`Move layer`, title: fw.t`Move and resize the active layer; Shift keeps its proportions (V)` },
    { name: "frame", icon: "frame", key: "c", text: fw.t`Frame`, title: fw.t`Move or resize the frame (C)` },
    { name: "hand", icon: "hand", key: "h", text: fw.t`Hand`, title: fw.t`Move the view (H; F held)` },
  ];
  const PAINTING = ["brush", "lasso", "rectangle", "fill"];
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  class LayersTools {
    constructor(board, view, root) {
      Object.assign(this, { board, view, root, pointers: new Map(), act: null, held: "", keyStroke: false });
      this.bar = fw.element("div", { className: "fw-layers-tools", attributes: { role: "toolbar", "aria-label": fw.t`Tools of the canvas` } });
      this.build();
      this.listen();
      board.listen(() => this.show());
    }

    // -- the bar -------------------------------------------------------------------------------------------------------

    build() {
      this.buttons = new Map(TOOLS.map(({ name, icon, text, title }) => [name, this.button(text, title, () => this.choose(name), icon)]));
      this.eraser = this.button(fw.t`Erase`, fw.t`Erase instead of painting (E)`, () => this.setErase(!this.board.erase), "erase");
      this.undo = this.button("↶", fw.t`Undo (Ctrl+Z)`, () => this.board.undo(), "undo");
      this.redo = this.button("↷", fw.t`Redo (Ctrl+Shift+Z)`, () => this.board.redo(), "redo");
      this.size = fw.element("input", { type: "range", min: 1, max: 256, title: "Brush size ([ and ])" });
      this.size.setAttribute("aria-label", fw.t`Brush size in pixels`);
      this.size.addEventListener("input", () => this.setBrush(Number(this.size.value)));
      this.color = fw.element("input", { type: "color", title: fw.t`Brush color` });
      this.color.setAttribute("aria-label", fw.t`Brush color`);
      this.color.addEventListener("input", () => this.board.set({ color: this.color.value, erase: false }));
      const group = (...children) => fw.element("div", { className: "fw-layers-group" }, ...children);
      this.bar.append(
        group(...this.buttons.values()),
        group(this.eraser, this.color, this.size),
        group(
          this.undo,
          this.redo,
          this.button("−", fw.t`Zoom out (-)`, () => this.view.zoomBy(1 / ZOOM_STEP), "zoom-out"),
          this.button("+", fw.t`Zoom in (+)`, () => this.view.zoomBy(ZOOM_STEP), "zoom-in"),
          this.button("⤢", fw.t`Show everything (R)`, () => this.view.fit(), "measure"),
          this.button("⛶", fw.t`Full screen (S)`, () => this.fullscreen(), "full"),
        ),
      );
    }

    button(text, title, run, icon) {
      const made = fw.element("button", { type: "button", textContent: text, title, className: `fw-icon fw-icon-${icon}` });
      made.setAttribute("aria-label", text.length === 1 ? title : text);
      made.addEventListener("click", run);
      return made;
    }

    show() {
      const { board } = this;
      for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(name === board.tool));
      this.eraser.setAttribute("aria-pressed", String(board.erase));
      this.color.value = board.color;
      this.size.value = String(board.brush);
      fw.layers.showRange(this.size);
      this.size.title = `Brush: ${board.brush} pixels ([ and ])`;
      this.undo.disabled = !board.steps.past.length;
      this.redo.disabled = !board.steps.future.length;
      this.view.canvas.dataset.tool = this.held || board.tool;
    }

    choose(tool) {
      this.endKeyStroke();
      this.view.cursor = null;
      this.board.set({ tool });
    }

    setErase(erase) {
      this.board.set({ erase });
    }

    setBrush(size) {
      this.board.set({ brush: Math.min(Math.max(Math.round(size), 1), 512) });
    }

    // -- pointers ------------------------------------------------------------------------------------------------------

    listen() {
      const { canvas } = this.view;
      canvas.addEventListener("pointerdown", (event) => this.begin(event));
      canvas.addEventListener("pointermove", (event) => this.move(event));
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.end(event));
      canvas.addEventListener("pointerleave", () => this.hover(null));
      canvas.addEventListener("contextmenu", (event) => event.preventDefault());
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.root.addEventListener("keydown", (event) => this.key(event));
      this.root.addEventListener("keyup", (event) => fw.canvas.isMoveKey(event.key, fw.settings) && this.hold(""));
      this.root.addEventListener("focusout", () => this.hold(""));
    }

    hold(tool) {
      if (this.held === tool) return;
      this.held = tool;
      this.show();
    }

    begin(event) {
      event.preventDefault();
      this.root.focus({ preventScroll: true });
      this.endKeyStroke();
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      this.view.canvas.setPointerCapture?.(event.pointerId);
      if (this.pointers.size > 1) {
        // A second finger zooms and moves: what the first began is taken back.
        this.act?.cancel?.();
        this.act = this.pinching();
        return;
      }
      const tool = event.button === 1 || this.held ? "hand" : this.board.tool;
      const isEraser = event.button === 5 || event.buttons === 32; // the other end of a pen
      if (event.button > 0 && event.button !== 1 && !isEraser) return;
      this.act = this.begun(tool, event, isEraser || this.board.erase);
    }

    begun(tool, event, erase) {
      const at = this.at(event);
      const reach = event.pointerType === "touch" ? TOUCH_REACH_PX : REACH_PX;
      if (tool === "hand") return this.panning(event);
      if (tool === "pick") return void this.pick(at);
      if (tool === "fill") return void this.fill(at, erase);
      if (tool === "frame") {
        const edges = this.view.handleNear(this.board.doc.frame, event.clientX, event.clientY, reach);
        return this.framing(at, edges);
      }
      if (tool === "move") {
        const active = fw.layers.find(this.board.doc);
        const box = active && fw.layers.boxOf(active);
        if (!box) return void this.board.say(fw.t`The active layer is empty: there is nothing to move.`);
        return this.dragging(active, box, at, this.view.handleNear(box, event.clientX, event.clientY, reach));
      }
      return this.painting(tool, [...at, fw.strokes.pressureOf(event)], erase);
    }

    move(event) {
      this.hover(event);
      if (!this.pointers.has(event.pointerId)) return;
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      if (!this.act) return;
      const events = this.act.takesAll ? (event.getCoalescedEvents?.() ?? []) : [];
      for (const one of events.length ? events : [event]) this.act.move([...this.at(one), fw.strokes.pressureOf(one)], one);
    }

    end(event) {
      if (!this.pointers.delete(event.pointerId)) return;
      if (this.act?.isPinch && this.pointers.size) {
        this.act = this.pinching();
        return;
      }
      const act = this.act;
      this.act = null;
      if (event.type === "pointercancel") act?.cancel?.();
      else act?.end?.();
    }

    at(event) {
      return this.view.toDocument(event.clientX, event.clientY);
    }

    hover(event) {
      const { board, view } = this;
      const isPainting = event && event.pointerType !== "touch" && board.tool === "brush" && !this.held;
      if (!isPainting && !view.cursor) return;
      if (this.keyStroke && !event) return;
      const [x, y] = isPainting ? this.at(event) : [0, 0];
      view.cursor = isPainting ? { x, y, radius: board.brush / 2 } : null;
      view.draw();
    }

    wheel(event) {
      const does = fw.canvas.wheelDoes(event, fw.settings);
      if (does === "brush") {
        event.preventDefault();
        this.setBrush(fw.canvas.steppedBrush(this.board.brush, (event.deltaY || event.deltaX) < 0 ? 1 : -1));
      } else if (does) {
        event.preventDefault();
        this.view.zoomBy((event.deltaY || event.deltaX) < 0 ? 1.2 : 1 / 1.2, event.clientX, event.clientY);
      }
    }

    // -- what a gesture does: {move(point, event), end(), cancel()} ----------------------------------------------------

    pinching() {
      const grip = () => {
        const points = [...this.pointers.values()];
        const [x, y] = [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis], 0) / points.length);
        return { x, y, spread: Math.hypot(points[0][0] - x, points[0][1] - y) || 1, count: points.length };
      };
      let before = grip();
      const move = () => {
        const now = grip();
        this.view.pan(now.x - before.x, now.y - before.y);
        if (now.count > 1) this.view.zoomBy(now.spread / before.spread, now.x, now.y);
        before = now;
      };
      return { isPinch: true, move };
    }

    panning(event) {
      let [x, y] = [event.clientX, event.clientY];
      return {
        move: (_, { clientX, clientY }) => {
          this.view.pan(clientX - x, clientY - y);
          [x, y] = [clientX, clientY];
        },
      };
    }

    framing([x, y], edges) {
      const { board } = this;
      const before = board.doc.frame;
      return {
        move: ([nowX, nowY]) => {
          const [dx, dy] = [nowX - x, nowY - y];
          const frame = edges
            ? fw.layers.stretched(before, edges, dx, dy, board.grid)
            : fw.layers.snapped({ ...before, x: before.x + dx, y: before.y + dy }, board.grid);
          board.show({ ...board.doc, frame });
        },
        end: () => board.commit(),
        cancel: () => board.forget(),
      };
    }

    dragging(layer, box, [x, y], edges) {
      const { board } = this;
      return {
        move: ([nowX, nowY], event) => {
          const [dx, dy] = [nowX - x, nowY - y];
          const changed = edges
            ? fw.layers.fitted(layer, this.resized(box, edges, dx, dy, event.shiftKey))
            : { ...layer, x: layer.x + Math.round(dx), y: layer.y + Math.round(dy) };
          board.show(fw.layers.withLayer(board.doc, layer.id, changed));
        },
        end: () => board.commit(),
        cancel: () => board.forget(),
      };
    }

    resized({ x, y, width, height }, edges, dx, dy, keepsShape) {
      let wide = Math.max(MIN_BOX_PX, width + (edges.includes("e") ? dx : edges.includes("w") ? -dx : 0));
      let high = Math.max(MIN_BOX_PX, height + (edges.includes("s") ? dy : edges.includes("n") ? -dy : 0));
      if (keepsShape) {
        const factor = edges.length > 1 ? Math.max(wide / width, high / height) : edges === "e" || edges === "w" ? wide / width : high / height;
        [wide, high] = [width * factor, height * factor];
      }
      return { x: edges.includes("w") ? x + width - wide : x, y: edges.includes("n") ? y + height - high : y, width: wide, height: high };
    }

    // A stroke of a painting tool; gestures and keys make it of the same points.
    painting(tool, first, erase) {
      const { board, view } = this;
      const layer = board.layerToPaint();
      if (!layer) return null;
      const own = ([x, y, pressure = 1]) => [...fw.layers.toOwn(layer, x, y).map((value) => Math.round(value * 100) / 100), pressure];
      const points = [first];
      const strokeOf = () => {
        const color = board.color;
        if (tool === "brush") return { points: points.map(own), size: board.brush / Math.abs(layer.scale[0]), color, erase };
        const outline = tool === "rectangle" ? fw.strokes.rectangle(first, points.at(-1)) : points;
        return { isArea: true, points: outline.map((point) => own(point).slice(0, 2)), color, erase };
      };
      const show = () => {
        if (tool === "brush") view.live = { layer: layer.id, stroke: strokeOf() };
        else view.marks = [tool === "rectangle" ? [...fw.strokes.rectangle(first, points.at(-1)), first] : points];
        view.draw();
      };
      const hide = () => {
        [view.live, view.marks] = [null, []];
        view.draw();
      };
      show();
      return {
        takesAll: tool === "brush",
        move: (point) => {
          points.push(point);
          show();
        },
        end: () => {
          hide();
          if (tool === "brush" || points.length > 1) board.addStroke(layer.id, strokeOf());
        },
        cancel: hide,
      };
    }

    fill([x, y], erase) {
      const { board } = this;
      const layer = board.layerToPaint();
      if (!layer) return;
      // What is seen counts for paint and images; for a mask or a region what is painted in it.
      const own = fw.layers.isOverlay(layer);
      const frame = own ? board.doc.frame : fw.layers.union(board.doc.frame, fw.layers.boxOf(layer));
      const box = { x: Math.floor(frame.x), y: Math.floor(frame.y), width: Math.ceil(frame.width), height: Math.ceil(frame.height) };
      const canvas = own ? board.pictures.flat([layer], box, 1) : board.pictures.seen(board.doc, box);
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const found = fw.strokes.flooded(pixels, Math.floor(x - box.x), Math.floor(y - box.y));
      if (!found) return;
      const [left, top] = fw.layers.toOwn(layer, box.x, box.y + found.y);
      const [width, height] = [1 / layer.scale[0], 1 / layer.scale[1]]; // of a pixel of the canvas in the layer
      const rows = found.rows.map((ends) => ends.map((end) => left + end * width));
      board.addStroke(layer.id, { rows, y: top, rowHeight: height, color: board.color, erase });
    }

    pick([x, y]) {
      const canvas = this.board.pictures.seen(this.board.doc, { x: Math.floor(x), y: Math.floor(y), width: 1, height: 1 });
      const [red, green, blue, alpha] = canvas.getContext("2d").getImageData(0, 0, 1, 1).data;
      if (!alpha) return this.board.say(fw.t`There is no color here.`);
      const color = `#${[red, green, blue].map((value) => value.toString(16).padStart(2, "0")).join("")}`;
      this.board.set({ color, erase: false });
    }

    // -- keys ----------------------------------------------------------------------------------------------------------

    key(event) {
      if (event.target !== this.root && event.target !== this.view.canvas) return;
      const control = event.ctrlKey || event.metaKey;
      const key = event.key.toLowerCase();
      const { board, view } = this;
      const plain = {
        "[": () => this.setBrush(fw.canvas.steppedBrush(board.brush, -1)),
        "]": () => this.setBrush(fw.canvas.steppedBrush(board.brush, 1)),
        e: () => this.setErase(!board.erase),
        delete: () => board.clear(),
        "+": () => view.zoomBy(ZOOM_STEP),
        "=": () => view.zoomBy(ZOOM_STEP),
        "-": () => view.zoomBy(1 / ZOOM_STEP),
        r: () => view.fit(),
        0: () => view.fit(),
        f: () => this.hold("hand"),
        ",": () => board.results.step(-1),
        ".": () => board.results.step(1),
        enter: () => this.pressed(event),
        " ": () => this.pressed(event),
        escape: () => this.escape(),
      };
      for (const tool of TOOLS) plain[tool.key] = () => this.choose(tool.name);
      const chosen = { shrink: plain["["], grow: plain["]"], move: plain.f, fullscreen: () => this.fullscreen(), reset: plain[0] };
      const asked = chosen[fw.canvas.actionOfKey(event.key, fw.settings)]; // a key of the settings before that of a tool
      let found = control || event.altKey ? null : asked || plain[key];
      if (control && key === "z") found = () => (event.shiftKey ? board.redo() : board.undo());
      if (control && key === "y") found = () => board.redo();
      if (ARROWS[event.key] && !control && !event.altKey) found = () => this.arrow(ARROWS[event.key], event);
      if (key === "escape" && !this.act && !view.cursor) found = null; // it may interrupt the job
      if (!found || (key === "enter" && control)) return;
      event.preventDefault();
      event.stopPropagation();
      found();
    }

    fullscreen() {
      fw.canvas.toggleFullscreen(this.root.parentElement);
    }

    // Arrows move what the tool moves; with a painting tool the cross, with which Enter begins and ends a stroke.
    arrow([dx, dy], { shiftKey }) {
      const { board, view } = this;
      const step = shiftKey ? FINE_PX : STEP_PX;
      if (board.tool === "frame") {
        const { frame } = board.doc;
        const grid = board.grid;
        const changed = shiftKey
          ? fw.layers.stretched(frame, "es", dx * grid, dy * grid, grid)
          : { ...frame, x: frame.x + dx * grid, y: frame.y + dy * grid };
        return board.change({ ...board.doc, frame: changed });
      }
      if (board.tool === "move") {
        const layer = fw.layers.find(board.doc);
        return layer && board.change(fw.layers.withLayer(board.doc, layer.id, { x: layer.x + dx * step, y: layer.y + dy * step }));
      }
      if (board.tool === "hand") return view.pan(-dx * 40, -dy * 40);
      const { frame } = board.doc;
      const { x, y } = view.cursor ?? { x: frame.x + frame.width / 2, y: frame.y + frame.height / 2 };
      this.keyStroke = true;
      view.cursor = { x: x + dx * step, y: y + dy * step, isCross: true, radius: board.tool === "brush" ? board.brush / 2 : 0 };
      this.act?.move([view.cursor.x, view.cursor.y, 1], {});
      view.draw();
    }

    pressed(event) {
      const { board, view } = this;
      if (event.repeat || (!PAINTING.includes(board.tool) && board.tool !== "pick")) return;
      if (this.act) return this.endKeyStroke();
      if (!view.cursor) return this.arrow([0, 0], event);
      const at = [view.cursor.x, view.cursor.y];
      if (board.tool === "pick") return this.pick(at);
      if (board.tool === "fill") return this.fill(at, board.erase);
      this.keyStroke = true;
      this.act = this.painting(board.tool, [...at, 1], board.erase);
    }

    escape() {
      this.act?.cancel?.();
      this.act = null;
      this.keyStroke = false;
      this.view.cursor = null;
      this.view.draw();
    }

    endKeyStroke() {
      if (!this.keyStroke) return;
      this.act?.end?.();
      this.act = null;
      this.keyStroke = false;
    }
  }

  fw.layers.LayersTools = LayersTools;
})();
