// Pixels of layers: their pictures by id, what a layer looks like with its strokes, and the layers drawn together.
(() => {
  const fw = window.featherweight;
  const ROOM_PX = 256; // a layer's pixels grow in steps of this, so that a stroke seldom needs all of them again

  const canvasOf = (width, height) => Object.assign(document.createElement("canvas"), { width: Math.max(1, Math.ceil(width)), height: Math.max(1, Math.ceil(height)) });

  class LayerPictures {
    constructor() {
      this.known = new Map(); // {blob, bitmap} by id
      this.drawn = new Map(); // by layer: {strokes, image, color, box, canvas}
    }

    // Take in a picture; rejects for what the browser cannot show.
    async add(blob, id = Math.random().toString(36).slice(2)) {
      const bitmap = await createImageBitmap(blob);
      this.known.set(id, { blob, bitmap });
      return { id, width: bitmap.width, height: bitmap.height };
    }

    // A layer's pixels in its own place and size: {canvas, x, y}; null where it is empty.
    pixels(layer) {
      const box = fw.layers.ownBox(layer);
      if (!box) return null;
      let kept = this.drawn.get(layer.id);
      const isSameBase = kept && kept.image === layer.image && kept.color === this.tint(layer);
      const grown = isSameBase && kept.strokes.every((stroke, place) => stroke === layer.strokes[place]);
      if (!grown || !holds(kept.box, box)) {
        kept = this.begun(layer, roomy(box, layer.image));
        this.drawn.set(layer.id, kept);
      }
      for (const stroke of layer.strokes.slice(kept.strokes.length)) this.drawOn(kept, stroke, layer);
      kept.strokes = layer.strokes;
      return { canvas: kept.canvas, x: kept.box.x, y: kept.box.y };
    }

    begun(layer, box) {
      const canvas = canvasOf(box.width, box.height);
      const picture = this.known.get(layer.image);
      if (picture) canvas.getContext("2d").drawImage(picture.bitmap, -box.x, -box.y);
      return { canvas, box, image: layer.image, color: this.tint(layer), strokes: [] };
    }

    drawOn(kept, stroke, layer) {
      const context = kept.canvas.getContext("2d");
      if (stroke.clear) {
        context.clearRect(0, 0, kept.canvas.width, kept.canvas.height);
        return;
      }
      context.setTransform(1, 0, 0, 1, -kept.box.x, -kept.box.y);
      fw.strokes.draw(context, stroke, this.tint(layer) ?? stroke.color);
      context.setTransform(1, 0, 0, 1, 0, 0);
    }

    tint(layer) {
      return fw.layers.isOverlay(layer) ? layer.color : undefined;
    }

    // Draw a layer on a context whose pixels are those of the canvas. `live` is a stroke that is being made.
    draw(context, layer, opacity = layer.opacity, live = null) {
      const shown = live ? this.withLive(layer, live) : this.pixels(layer);
      if (!shown) return;
      const [sx, sy] = layer.scale;
      context.save();
      context.globalAlpha = opacity;
      context.imageSmoothingQuality = "high";
      context.drawImage(shown.canvas, layer.x + shown.x * sx, layer.y + shown.y * sy, shown.canvas.width * sx, shown.canvas.height * sy);
      context.restore();
    }

    withLive(layer, live) {
      const box = fw.layers.union(fw.layers.ownBox(layer), live.erase ? null : fw.strokes.boxOf(live));
      if (!box) return null;
      const room = roomy(box, null);
      const canvas = canvasOf(room.width, room.height);
      const kept = { canvas, box: room };
      const before = this.pixels(layer);
      if (before) canvas.getContext("2d").drawImage(before.canvas, before.x - room.x, before.y - room.y);
      this.drawOn(kept, live, layer);
      return { canvas, x: room.x, y: room.y };
    }

    // Layers drawn over each other inside of a box of the canvas, one pixel each.
    flat(layers, { x, y, width, height }, opacity) {
      const canvas = canvasOf(width, height);
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.translate(-x, -y);
      for (const layer of layers) this.draw(context, layer, opacity ?? layer.opacity);
      return canvas;
    }

    // What of the canvas the model sees.
    seen(doc, box) {
      return this.flat(doc.layers.filter((layer) => layer.visible && fw.layers.isPicture(layer)), box);
    }

    // Pictures that nothing shows any more; gives their ids.
    drop(wanted) {
      const left = [...this.known.keys()].filter((id) => !wanted.has(id));
      for (const id of left) {
        this.known.get(id).bitmap.close();
        this.known.delete(id);
      }
      return left;
    }
  }

  const holds = (outer, inner) =>
    outer.x <= inner.x && outer.y <= inner.y && outer.x + outer.width >= inner.x + inner.width && outer.y + outer.height >= inner.y + inner.height;

  // A picture alone has its own size; strokes get room around them.
  function roomy(box, image) {
    const step = image ? 1 : ROOM_PX;
    const [x, y] = [Math.floor(box.x / step) * step, Math.floor(box.y / step) * step];
    return {
      x,
      y,
      width: Math.ceil((box.x + box.width - x) / step) * step,
      height: Math.ceil((box.y + box.height - y) / step) * step,
    };
  }

  const blobOf = (canvas) => new Promise((resolve) => canvas.toBlob(resolve, "image/png"));

  Object.assign(fw.layers, { LayerPictures, canvasOf, blobOf });
})();
