// The canvas's document: layers from bottom to top, the frame that is made, results that wait (`variants`, of which
// number `shown` is seen), and what is undone. Plain data that never
// changes: every function gives a new document, so undo and redo keep documents, and IndexedDB keeps them as they are.
(() => {
  const fw = window.featherweight;
  const MAX_STEPS = 80; // of undo
  const MIN_SIDE_PX = 64;
  const MAX_SIDE_PX = 4096;
  const MASK_COLOR = "#e0245e";

  // A layer. `image` is the id of its picture, `size` that picture's; `strokes` are drawn over it, in the layer's own
  // pixels. `x`, `y`, `scale` put it on the canvas. A mask says what is made anew, a region has a prompt, a control
  // image is shown to a unit of ControlNet; only images and paint are seen by the model.
  const layerOf = (kind, name, more = {}) => ({
    id: Math.random().toString(36).slice(2),
    kind,
    name,
    visible: true,
    opacity: kind === "mask" || kind === "region" ? 0.5 : 1,
    x: 0,
    y: 0,
    scale: [1, 1],
    image: null,
    size: [0, 0],
    strokes: [],
    color: kind === "mask" ? MASK_COLOR : "#000000",
    prompt: "",
    unit: 0, // of ControlNet, with its module, model and weight; empty: as the form says
    module: "",
    model: "",
    weight: 1,
    ...more,
  });

  const emptyDocument = (side = 512) => ({ layers: [], active: null, frame: { x: 0, y: 0, width: side, height: side }, variants: [], shown: 0 });

  const find = (doc, id = doc.active) => doc.layers.find((layer) => layer.id === id) ?? null;
  const isOverlay = (layer) => layer.kind === "mask" || layer.kind === "region";
  const isPicture = (layer) => layer.kind === "image" || layer.kind === "paint";

  const withLayer = (doc, id, changes) => ({
    ...doc,
    layers: doc.layers.map((layer) => (layer.id === id ? { ...layer, ...changes } : layer)),
  });

  // Above the active layer, but pictures below masks and regions, so that those stay in sight.
  function added(doc, layer) {
    let place = doc.layers.findIndex(({ id }) => id === doc.active) + 1 || doc.layers.length;
    const first = doc.layers.findIndex(isOverlay);
    if (!isOverlay(layer) && first >= 0) place = Math.min(place, first);
    if (isOverlay(layer)) place = doc.layers.length;
    return { ...doc, layers: doc.layers.toSpliced(place, 0, layer), active: layer.id };
  }

  function removed(doc, id) {
    const place = doc.layers.findIndex((layer) => layer.id === id);
    const layers = doc.layers.filter((layer) => layer.id !== id);
    const active = doc.active === id ? (layers[Math.min(place, layers.length - 1)]?.id ?? null) : doc.active;
    return { ...doc, layers, active };
  }

  // To another place, counted from the bottom.
  function put(doc, id, place) {
    const from = doc.layers.findIndex((layer) => layer.id === id);
    const to = Math.min(Math.max(place, 0), doc.layers.length - 1);
    if (from < 0 || from === to) return doc;
    return { ...doc, layers: doc.layers.toSpliced(from, 1).toSpliced(to, 0, doc.layers[from]) };
  }

  const moved = (doc, id, by) => put(doc, id, doc.layers.findIndex((layer) => layer.id === id) + by);

  // "Mask 2": a name that no layer has yet, in the page's language.
  function freeName(doc, kind) {
    const word = fw.text(kind);
    for (let number = 1; ; number += 1) {
      if (!doc.layers.some(({ name }) => name === `${word} ${number}`)) return `${word} ${number}`;
    }
  }

  // -- places ----------------------------------------------------------------------------------------------------------

  const union = (one, other) => {
    if (!one || !other) return one || other;
    const [x, y] = [Math.min(one.x, other.x), Math.min(one.y, other.y)];
    return {
      x,
      y,
      width: Math.max(one.x + one.width, other.x + other.width) - x,
      height: Math.max(one.y + one.height, other.y + other.height) - y,
    };
  };

  // What a layer covers in its own pixels; null where it is empty.
  function ownBox(layer) {
    let box = layer.image ? { x: 0, y: 0, width: layer.size[0], height: layer.size[1] } : null;
    for (const stroke of layer.strokes) {
      if (!stroke.erase) box = union(box, fw.strokes.boxOf(stroke));
    }
    return box;
  }

  const toCanvas = (layer, { x, y, width, height }) => ({
    x: layer.x + x * layer.scale[0],
    y: layer.y + y * layer.scale[1],
    width: width * layer.scale[0],
    height: height * layer.scale[1],
  });

  // The same on the canvas.
  const boxOf = (layer) => {
    const own = ownBox(layer);
    return own && toCanvas(layer, own);
  };

  const toOwn = (layer, x, y) => [(x - layer.x) / layer.scale[0], (y - layer.y) / layer.scale[1]];

  // The layer so that its box becomes this one.
  function fitted(layer, box) {
    const own = ownBox(layer);
    if (!own || !own.width || !own.height) return layer;
    const scale = [box.width / own.width, box.height / own.height];
    return { ...layer, scale, x: box.x - own.x * scale[0], y: box.y - own.y * scale[1] };
  }

  // -- the frame -------------------------------------------------------------------------------------------------------

  const side = (px, grid) => Math.min(Math.max(Math.round(px / grid) * grid, Math.max(grid, MIN_SIDE_PX)), MAX_SIDE_PX);

  // On the grid, in sides that an image may have.
  const snapped = ({ x, y, width, height }, grid) => ({
    x: Math.round(x / grid) * grid,
    y: Math.round(y / grid) * grid,
    width: side(width, grid),
    height: side(height, grid),
  });

  // An edge of a frame moved outwards by so many pixels; `edges` are letters of "nesw" (north is the top).
  function stretched(frame, edges, dx, dy, grid) {
    let { x, y, width, height } = frame;
    if (edges.includes("e")) width = side(width + dx, grid);
    if (edges.includes("s")) height = side(height + dy, grid);
    if (edges.includes("w")) {
      width = side(width - dx, grid);
      x = frame.x + frame.width - width;
    }
    if (edges.includes("n")) {
      height = side(height - dy, grid);
      y = frame.y + frame.height - height;
    }
    return { x, y, width, height };
  }

  const expanded = (frame, edge, px, grid) => stretched(frame, edge, edge === "w" ? -px : px, edge === "n" ? -px : px, grid);

  // -- undo ------------------------------------------------------------------------------------------------------------

  const steps = {
    of: (doc) => ({ past: [], doc, future: [] }),
    add: (kept, doc) =>
      doc === kept.doc ? kept : { past: [...kept.past, kept.doc].slice(-MAX_STEPS), doc, future: [] },
    undo: (kept) =>
      kept.past.length ? { past: kept.past.slice(0, -1), doc: kept.past.at(-1), future: [kept.doc, ...kept.future] } : kept,
    redo: (kept) =>
      kept.future.length ? { past: [...kept.past, kept.doc], doc: kept.future[0], future: kept.future.slice(1) } : kept,
  };

  // The pictures that any of these documents shows.
  const imagesOf = ({ past, doc, future }) =>
    new Set([...past, doc, ...future].flatMap(({ layers, variants }) => [...layers, ...variants].map(({ image }) => image).filter(Boolean)));

  // -- regions ---------------------------------------------------------------------------------------------------------

  // The color that Regional Prompter knows a region by, [r, g, b]: hues 0, 1/2, 1/4, 3/4, 1/8 ...
  function regionColor(number) {
    let hue = 0;
    if (number > 0) {
      const parts = 2 ** (Math.floor(Math.log2(number)) + 1);
      hue = (2 * (number - parts / 2) + 1) / parts;
    }
    const channel = (shift) => Math.round(255 * Math.min(Math.max(Math.abs(((hue + shift) % 1) * 6 - 3) - 1, 0), 1));
    return [channel(0), channel(2 / 3), channel(1 / 3)];
  }

  const regionsOf = (doc) => doc.layers.filter((layer) => layer.kind === "region" && layer.visible && layer.prompt.trim());

  fw.layers = {
    layerOf, emptyDocument, find, isOverlay, isPicture, withLayer, added, removed, put, moved, freeName,
    union, ownBox, boxOf, toOwn, toCanvas, fitted, side, snapped, stretched, expanded, steps, imagesOf, regionColor, regionsOf,
  };
})();
