// Select: masks what is clicked, boxed or named, on the canvas of Inpaint and on the active layer of the canvas with layers.
// What is found is outlined until it is added to the mask, or taken from it, as one stroke. Pure functions stand first;
// tests/ui/js calls them.
(() => {
  const fw = window.featherweight;
  const DRAG_PX = 6; // on the screen: a pointer that moves so far draws a box
  const [INCLUDED, EXCLUDED, DARK] = ["#2fbf5b", "#e5484d", "#000000"];

  // The pixels of a mask (an ImageData, white where something is) as runs: {y, rows}, each row the ends of its runs; null
  // for an empty one.
  function runsOf({ data, width, height }) {
    const rows = [];
    for (let y = 0; y < height; y += 1) {
      const ends = [];
      for (let x = 0, isOn = false; x <= width; x += 1) {
        const isWhite = x < width && data[4 * (y * width + x)] > 127;
        if (isWhite !== isOn) ends.push(x);
        isOn = isWhite;
      }
      rows.push(ends);
    }
    const first = rows.findIndex((ends) => ends.length);
    if (first < 0) return null;
    return { y: first, rows: rows.slice(first, rows.findLastIndex((ends) => ends.length) + 1) };
  }

  // The borders of runs as closed lines of points, without those between two pixels of one side.
  function outlinesOf({ y: top, rows }) {
    const edges = new Map(); // by the point that they begin at; what is inside lies to the right of an edge
    const add = (from, to) => edges.set(String(from), [...(edges.get(String(from)) ?? []), to]);
    const isIn = (ends, x) => ends.some((end, at) => at % 2 === 0 && end <= x && x < ends[at + 1]);
    for (let row = 0; row <= rows.length; row += 1) {
      const [above, here] = [rows[row - 1] ?? [], rows[row] ?? []];
      const y = top + row;
      const cuts = [...new Set([...above, ...here])].sort((a, b) => a - b);
      for (let at = 1; at < cuts.length; at += 1) {
        const [left, right] = [cuts[at - 1], cuts[at]];
        if (isIn(here, left) && !isIn(above, left)) add([left, y], [right, y]);
        if (!isIn(here, left) && isIn(above, left)) add([right, y], [left, y]);
      }
      here.forEach((x, at) => (at % 2 ? add([x, y], [x, y + 1]) : add([x, y + 1], [x, y])));
    }
    const lines = [];
    while (edges.size) {
      const line = [[...edges.keys()][0].split(",").map(Number)];
      for (let key = String(line[0]); edges.has(key); key = String(line.at(-1))) {
        const next = edges.get(key);
        const to = next.pop();
        if (!next.length) edges.delete(key);
        const [before, last] = line.slice(-2);
        if (last && ((before[0] === last[0] && last[0] === to[0]) || (before[1] === last[1] && last[1] === to[1]))) line.pop();
        line.push(to);
      }
      lines.push(line);
    }
    return lines;
  }

  // What the server is asked for: words or points and a box, never both.
  function bodyOf({ words, points, box, grow }) {
    if (words) return { words, grow };
    return { points: points.map(({ x, y, included }) => [x, y, included ? 1 : 0]), ...(box && { box }), grow };
  }

  // What a pointer asks for that went down at one point of the image and up at another.
  function gesture(from, to, isDrag, included) {
    if (!isDrag) return { point: { x: to[0], y: to[1], included } };
    return { box: [Math.min(from[0], to[0]), Math.min(from[1], to[1]), Math.max(from[0], to[0]), Math.max(from[1], to[1])] };
  }

  // A stroke of the canvas that fills runs.
  const strokeOf = (runs, color, erase) => ({ ...runs, color, erase, size: 0, points: [] });

  const nothing = () => ({ words: "", points: [], box: null, runs: null });

  // `surface` is a canvas: {name, root, target, place(row), at(event), isMoving(), image(), key(), show(found, box),
  // commit(runs, erase)}; points are pixels of its image.
  function select(surface, tab) {
    let found = nothing();
    let known = null; // the image that was sent last
    let uri = "";
    let isOn = false;
    let isAsking = false;
    let isStale = false; // asked for something else meanwhile
    let down = null;

    const button = (text, title, run, name) => {
      const made = fw.element("button", { type: "button", textContent: text, title, id: `img2img_${surface.name}_${name}` });
      made.addEventListener("click", run);
      return made;
    };
    const switchButton = button(fw.t`Select`, fw.t`Select a thing: click it, right-click what is no part of it, or drag a box`, () => turn(!isOn), "select");
    switchButton.setAttribute("aria-pressed", "false");
    const words = fw.element("input", { type: "text", placeholder: fw.t`Name a thing`, id: `img2img_${surface.name}_words` });
    words.setAttribute("aria-label", fw.t`Name a thing`);
    const exclude = button(fw.t`Exclude`, fw.t`The next click is no part of the thing`, () => setExcluding(exclude.getAttribute("aria-pressed") !== "true"), "exclude");
    const grow = fw.element("input", { type: "number", min: -128, max: 128, value: 0, id: `img2img_${surface.name}_grow`, title: fw.t`Grow by so many pixels; less than 0 shrinks` });
    grow.setAttribute("aria-label", grow.title);
    const add = button(fw.t`Add to mask`, fw.t`Add what is outlined to the mask (Enter)`, () => commit(false), "add");
    const take = button(fw.t`Take from mask`, fw.t`Take what is outlined from the mask`, () => commit(true), "take");
    const discard = button(fw.t`Discard`, fw.t`Discard what is outlined (Escape)`, () => reset(), "discard");
    const find = button(fw.t`Find`, fw.t`Find what is named`, () => name(), "find");
    const tools = [words, find, exclude, fw.element("label", {}, "± px", grow), add, take, discard];
    surface.place(fw.element("div", { className: "fw-segment-row" }, switchButton, ...tools));
    words.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key !== "Enter") return;
      event.preventDefault();
      name();
    });
    grow.addEventListener("change", () => (found.words || found.points.length || found.box) && ask());
    surface.root.addEventListener("keydown", (event) => {
      if (!isOn || event.target.closest("input, button")) return;
      if (event.key === "Enter") commit(false);
      else if (event.key === "Escape") reset();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }, true);
    // Before the canvas itself sees them.
    for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) surface.target.addEventListener(kind, pointer, true);

    function turn(on) {
      isOn = on;
      switchButton.setAttribute("aria-pressed", String(on));
      for (const tool of tools) tool.hidden = !on;
      surface.root.classList.toggle("fw-segmenting", on);
      reset();
    }

    function setExcluding(on) {
      exclude.setAttribute("aria-pressed", String(on));
    }

    function reset() {
      found = nothing();
      setExcluding(false);
      show();
    }

    function pointer(event) {
      const isBegin = event.type === "pointerdown";
      if (!isOn || surface.isMoving() || (isBegin ? ![0, 2].includes(event.button) : !down)) return;
      event.preventDefault();
      event.stopPropagation();
      const at = surface.at(event);
      if (isBegin) {
        down = { at, screen: [event.clientX, event.clientY], isExcluded: event.button === 2 || event.altKey || exclude.getAttribute("aria-pressed") === "true" };
        event.target.setPointerCapture?.(event.pointerId);
        surface.root.focus({ preventScroll: true });
        return;
      }
      const isDrag = Math.hypot(event.clientX - down.screen[0], event.clientY - down.screen[1]) > DRAG_PX;
      const { point, box } = gesture(down.at, at, isDrag, !down.isExcluded);
      if (event.type === "pointermove") {
        show(box);
        return;
      }
      down = null;
      if (event.type === "pointercancel") {
        show();
        return;
      }
      found = { ...found, words: "", ...(box ? { box, points: [] } : { points: [...found.points, point] }) };
      setExcluding(false);
      ask();
    }

    function name() {
      if (!words.value.trim()) return;
      found = { ...nothing(), words: words.value.trim() };
      ask();
    }

    async function ask() {
      isStale = isAsking;
      if (isAsking) return;
      const given = await surface.image();
      if (!given) return;
      tab.clearMessages();
      isAsking = true;
      switchButton.setAttribute("aria-busy", "true");
      show();
      try {
        if (surface.key() !== known) [uri, known] = [await fw.dataUri(given), surface.key()];
        do {
          isStale = false;
          const wanted = found;
          const reply = await fw.post("featherweight/v1/segment", { image: uri, ...bodyOf({ ...wanted, grow: Number(grow.value) || 0 }) });
          const runs = runsOf(await pixelsOf(reply.mask));
          if (found === wanted) found = { ...wanted, runs };
        } while (isStale);
      } catch (error) {
        tab.message(fw.t`Nothing was selected: ${error.message}`, true);
        reset();
      } finally {
        isAsking = false;
        switchButton.removeAttribute("aria-busy");
        show();
      }
    }

    function commit(erase) {
      if (!found.runs) return;
      surface.commit(found.runs, erase);
      reset();
    }

    function show(box = found.box) {
      for (const one of [add, take, discard]) one.disabled = !found.runs;
      surface.show(found, box);
    }

    turn(false);
  }

  // The canvas of Inpaint, with a preview over it.
  function maskSurface(canvas, tab) {
    const preview = fw.element("canvas", { className: "fw-segment-preview" });
    canvas.stage.append(preview);

    function show({ runs, points }, box) {
      Object.assign(preview, { width: canvas.width, height: canvas.height });
      if (!canvas.width) return;
      const context = preview.getContext("2d");
      const line = Math.max(1, (1.5 * canvas.width) / (canvas.stage.clientWidth || canvas.width));
      if (runs) {
        context.globalAlpha = 0.25;
        fw.strokes.draw(context, strokeOf(runs, INCLUDED, false));
        context.globalAlpha = 1;
      }
      const lines = [...(runs ? outlinesOf(runs) : []), ...(box ? [cornersOf(box)] : [])];
      for (const [color, width] of [[DARK, 3 * line], [INCLUDED, 1.5 * line]]) {
        Object.assign(context, { strokeStyle: color, lineWidth: width });
        context.beginPath();
        for (const points of lines) points.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
        context.stroke();
      }
      for (const { x, y, included } of points) {
        context.beginPath();
        context.arc(x, y, 4 * line, 0, 2 * Math.PI);
        Object.assign(context, { fillStyle: included ? INCLUDED : EXCLUDED, strokeStyle: DARK, lineWidth: line });
        context.fill();
        context.stroke();
      }
    }

    const image = () => tab.getImage(canvas.root.dataset.canvas);
    return {
      name: "segment", root: canvas.root, target: canvas.stage, image, key: image, show,
      place: (row) => canvas.bar.after(row),
      at: (event) => canvas.at(event),
      isMoving: () => canvas.isMoving,
      commit: (runs, erase) => canvas.change((kept) => fw.canvas.history.add(kept, strokeOf(runs, canvas.paintColor, erase))),
    };
  }

  // The canvas with layers: what its frame shows is looked at, and the active layer is painted on.
  function layersSurface(board, tab) {
    const { view } = board;
    const stage = view.canvas.parentElement;
    let given = null; // the frame that is asked about

    function show({ runs, points }, box) {
      const { x: left, y: top } = board.doc.frame;
      const marks = [...(runs ? outlinesOf(runs) : []), ...(box ? [cornersOf(box)] : []), ...points.flatMap(markOf)];
      view.marks = marks.map((line) => line.map(([x, y]) => [x + left, y + top]));
      view.draw();
    }

    // A cross for what is included, a bar for what is not.
    function markOf({ x, y, included }) {
      const arm = 7 / view.zoom;
      return [[[x - arm, y], [x + arm, y]], ...(included ? [[[x, y - arm], [x, y + arm]]] : [])];
    }

    function commit(runs, erase) {
      const layer = board.layerToPaint();
      if (!layer) return;
      const [left, top] = fw.layers.toOwn(layer, given.x, given.y + runs.y);
      const [width, rowHeight] = [1 / layer.scale[0], 1 / layer.scale[1]]; // of a pixel of the canvas in the layer
      board.addStroke(layer.id, { rows: runs.rows.map((ends) => ends.map((end) => left + end * width)), y: top, rowHeight, color: board.color, erase });
    }

    return {
      name: "canvas_segment", root: stage, target: stage, show, commit,
      key: () => board.doc,
      image: () => {
        given = board.doc.frame;
        return tab.getImage("canvas");
      },
      place: (row) => stage.before(row),
      at: (event) => {
        const [x, y] = view.toDocument(event.clientX, event.clientY);
        return [x - board.doc.frame.x, y - board.doc.frame.y];
      },
      isMoving: () => view.canvas.dataset.tool === "hand",
    };
  }

  const cornersOf = ([left, top, right, bottom]) => [...fw.strokes.rectangle([left, top], [right, bottom]), [left, top]];

  async function pixelsOf(base64) {
    const image = new Image();
    image.src = `data:image/png;base64,${base64}`;
    await image.decode();
    const [width, height] = [image.naturalWidth, image.naturalHeight];
    const context = fw.element("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, width, height);
  }

  function mount() {
    const tab = fw.tab("img2img");
    for (const place of document.querySelectorAll('.fw-canvas[data-layer="mask"]:not([data-segmented])')) {
      if (!place.paintCanvas) continue;
      place.dataset.segmented = "";
      select(maskSurface(place.paintCanvas, tab), tab);
    }
    const stage = tab?.layers?.view?.canvas.parentElement;
    if (!stage || stage.dataset.segmented !== undefined) return;
    stage.dataset.segmented = "";
    select(layersSurface(tab.layers, tab), tab);
  }

  fw.segmentation = { runsOf, outlinesOf, bodyOf, gesture, strokeOf };
  document.addEventListener("fw:canvas", mount); // at once: a row that comes later would move the image
  mount();
})();
