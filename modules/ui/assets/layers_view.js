// What is seen of the canvas: layers, frame, hatching where nothing lies, handles; and from the screen to the canvas.
(() => {
  const fw = window.featherweight;
  const [MIN_ZOOM, MAX_ZOOM] = [0.05, 32];
  const MARGIN = 0.08; // around everything when all of it is shown
  const SQUARE_PX = 12; // of the checkered ground
  const HANDLE_PX = 9;
  const EDGES = ["nw", "n", "ne", "e", "se", "s", "sw", "w"];

  // The point of a box where a handle is: "n" is the middle of its top.
  const handleAt = ({ x, y, width, height }, edges) => [
    x + (edges.includes("e") ? width : edges.includes("w") ? 0 : width / 2),
    y + (edges.includes("s") ? height : edges.includes("n") ? 0 : height / 2),
  ];

  class LayersView {
    // `board` is what is shown (layers_tab.js), `canvas` where.
    constructor(board, canvas) {
      Object.assign(this, { board, canvas, zoom: 1, x: 0, y: 0, isChosen: false, live: null, cursor: null, marks: [] });
      this.hatch = new Map();
      new ResizeObserver(() => this.resized()).observe(canvas);
    }

    resized() {
      const { clientWidth, clientHeight } = this.canvas;
      if (!clientWidth || !clientHeight) return;
      const [width, height] = [clientWidth, clientHeight].map((px) => Math.round(px * this.ratio));
      if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
      if (this.isChosen) this.draw();
      else this.fit();
    }

    get ratio() {
      return window.devicePixelRatio || 1;
    }

    // -- places --------------------------------------------------------------------------------------------------------

    toDocument(clientX, clientY) {
      const box = this.canvas.getBoundingClientRect();
      return [(clientX - box.left) / this.zoom + this.x, (clientY - box.top) / this.zoom + this.y];
    }

    toScreen(x, y) {
      return [(x - this.x) * this.zoom, (y - this.y) * this.zoom];
    }

    // Show the frame and all layers; again whenever the size of the place changes, until the user zooms or moves
    // (`isChosen`).
    fit() {
      const { clientWidth, clientHeight } = this.canvas;
      if (!clientWidth) return;
      const { frame, layers } = this.board.doc;
      const all = layers.filter(({ visible }) => visible).reduce((box, layer) => fw.layers.union(box, fw.layers.boxOf(layer)), frame);
      this.zoom = Math.min(clientWidth / all.width, clientHeight / all.height) * (1 - 2 * MARGIN);
      this.x = all.x + all.width / 2 - clientWidth / 2 / this.zoom;
      this.y = all.y + all.height / 2 - clientHeight / 2 / this.zoom;
      this.isChosen = false;
      this.draw();
    }

    zoomBy(factor, clientX, clientY) {
      const box = this.canvas.getBoundingClientRect();
      const [left, top] = [(clientX ?? box.left + box.width / 2) - box.left, (clientY ?? box.top + box.height / 2) - box.top];
      const zoom = Math.min(Math.max(this.zoom * factor, MIN_ZOOM), MAX_ZOOM);
      this.x += left / this.zoom - left / zoom;
      this.y += top / this.zoom - top / zoom;
      this.zoom = zoom;
      this.isChosen = true;
      this.draw();
    }

    pan(dx, dy) {
      this.x -= dx / this.zoom;
      this.y -= dy / this.zoom;
      this.isChosen = true;
      this.draw();
    }

    // Which handle of a box is near a point of the screen; "" for none.
    handleNear(box, clientX, clientY, reach) {
      const place = this.canvas.getBoundingClientRect();
      const near = EDGES.find((edges) => {
        const [x, y] = this.toScreen(...handleAt(box, edges));
        return Math.hypot(x - (clientX - place.left), y - (clientY - place.top)) <= reach;
      });
      return near ?? "";
    }

    // -- drawing -------------------------------------------------------------------------------------------------------

    draw() {
      this.awaited = this.awaited || requestAnimationFrame(() => {
        this.awaited = 0;
        this.drawNow();
      });
    }

    drawNow() {
      const { canvas, zoom, ratio } = this;
      if (!canvas.width) return;
      const context = canvas.getContext("2d");
      const { doc, pictures, shownVariant, preview } = this.board;
      const style = getComputedStyle(canvas);
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = style.getPropertyValue("--fw-ground") || "#888";
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.setTransform(zoom * ratio, 0, 0, zoom * ratio, -this.x * zoom * ratio, -this.y * zoom * ratio);
      context.imageSmoothingEnabled = zoom < 4;
      this.drawHatched(context, doc.frame, style);
      const shown = doc.layers.filter(({ visible }) => visible);
      const draw = (layer) => pictures.draw(context, layer, layer.opacity, this.live?.layer === layer.id ? this.live.stroke : null);
      shown.filter((layer) => !fw.layers.isOverlay(layer)).forEach(draw);
      if (shownVariant) drawInto(context, pictures.known.get(shownVariant.image)?.bitmap, shownVariant.frame);
      if (preview) drawInto(context, preview.bitmap, preview.frame);
      if (!shownVariant && !preview) shown.filter(fw.layers.isOverlay).forEach(draw);
      this.drawFrame(context, doc.frame, style);
      for (const mark of this.marks) this.drawMark(context, mark);
      const active = fw.layers.find(doc);
      const box = this.board.tool === "move" && active && fw.layers.boxOf(active);
      if (box) this.drawHandles(context, box, "#2f7bff");
      if (this.board.tool === "frame") this.drawHandles(context, doc.frame, style.getPropertyValue("--fw-accent") || "#0a7");
      if (this.cursor) this.drawCursor(context);
    }

    // Checkered and hatched: what lies under no layer is made anew.
    drawHatched(context, { x, y, width, height }, style) {
      const names = ["--fw-square", "--fw-square-other", "--fw-hatch"].map((name) => style.getPropertyValue(name).trim());
      const key = names.join();
      if (!this.hatch.has(key)) this.hatch.set(key, hatchOf(...names));
      const pattern = context.createPattern(this.hatch.get(key), "repeat");
      pattern.setTransform(new DOMMatrix().translate(x, y).scale(1 / this.zoom));
      context.fillStyle = pattern;
      context.fillRect(x, y, width, height);
    }

    drawFrame(context, { x, y, width, height }, style) {
      context.save();
      context.lineWidth = 2 / this.zoom;
      context.strokeStyle = "#fff";
      context.strokeRect(x, y, width, height);
      context.setLineDash([7 / this.zoom, 5 / this.zoom]);
      context.strokeStyle = style.getPropertyValue("--fw-accent") || "#0a7";
      context.strokeRect(x, y, width, height);
      context.restore();
    }

    drawHandles(context, box, color) {
      const size = HANDLE_PX / this.zoom;
      context.save();
      context.lineWidth = 1.5 / this.zoom;
      context.strokeStyle = color;
      context.fillStyle = "#fff";
      context.strokeRect(box.x, box.y, box.width, box.height);
      for (const edges of EDGES) {
        const [x, y] = handleAt(box, edges);
        context.fillRect(x - size / 2, y - size / 2, size, size);
        context.strokeRect(x - size / 2, y - size / 2, size, size);
      }
      context.restore();
    }

    // The line of a lasso or rectangle while it is drawn.
    drawMark(context, points) {
      context.save();
      context.beginPath();
      points.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.lineWidth = 2 / this.zoom;
      context.strokeStyle = "#000";
      context.stroke();
      context.setLineDash([5 / this.zoom, 5 / this.zoom]);
      context.strokeStyle = "#fff";
      context.stroke();
      context.restore();
    }

    // Where the pointer or the keyboard paints.
    drawCursor(context) {
      const { x, y, radius, isCross } = this.cursor;
      context.save();
      for (const [color, width] of [["#000", 3], ["#fff", 1.2]]) {
        context.strokeStyle = color;
        context.lineWidth = width / this.zoom;
        context.beginPath();
        if (radius) context.arc(x, y, radius, 0, 2 * Math.PI);
        if (isCross) {
          const arm = 10 / this.zoom;
          context.moveTo(x - arm, y);
          context.lineTo(x + arm, y);
          context.moveTo(x, y - arm);
          context.lineTo(x, y + arm);
        }
        context.stroke();
      }
      context.restore();
    }
  }

  const drawInto = (context, picture, { x, y, width, height }) => picture && context.drawImage(picture, x, y, width, height);

  function hatchOf(square, other, line) {
    const side = 2 * SQUARE_PX;
    const canvas = fw.layers.canvasOf(side, side);
    const context = canvas.getContext("2d");
    context.fillStyle = square || "#fff";
    context.fillRect(0, 0, side, side);
    context.fillStyle = other || "#ddd";
    context.fillRect(0, 0, SQUARE_PX, SQUARE_PX);
    context.fillRect(SQUARE_PX, SQUARE_PX, SQUARE_PX, SQUARE_PX);
    context.strokeStyle = line || "#0a7";
    context.lineWidth = 1.5;
    for (const shift of [-side, 0, side]) {
      context.beginPath();
      context.moveTo(shift, side);
      context.lineTo(shift + side, 0);
      context.stroke();
    }
    return canvas;
  }

  fw.layers.LayersView = LayersView;
  fw.layers.handleAt = handleAt;
})();
