// Select: masks what is clicked, boxed or named, in the canvases that hold a mask. What is found is outlined until it is
// added to the mask, or taken from it, as one stroke of the canvas. Pure functions stand first; tests/ui/js calls them.
(() => {
  const fw = window.featherweight;
  const MOUNT_MS = 200;
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

  function select(canvas, tab) {
    let found = nothing();
    let file = null;
    let uri = "";
    let isOn = false;
    let isAsking = false;
    let isStale = false; // asked for something else meanwhile
    let down = null;

    const preview = fw.element("canvas", { className: "fw-segment-preview" });
    canvas.stage.append(preview);
    const button = (text, title, run, name) => {
      const made = fw.element("button", { type: "button", textContent: text, title, id: `img2img_segment_${name}` });
      made.addEventListener("click", run);
      return made;
    };
    const switchButton = button(fw.t`Select`, fw.t`Select a thing: click it, right-click what is no part of it, or drag a box`, () => turn(!isOn), "select");
    switchButton.setAttribute("aria-pressed", "false");
    const words = fw.element("input", { type: "text", placeholder: fw.t`Name a thing`, id: "img2img_segment_words" });
    words.setAttribute("aria-label", fw.t`Name a thing`);
    const exclude = button(fw.t`Exclude`, fw.t`The next click is no part of the thing`, () => setExcluding(exclude.getAttribute("aria-pressed") !== "true"), "exclude");
    const grow = fw.element("input", { type: "number", min: -128, max: 128, value: 0, id: "img2img_segment_grow", title: fw.t`Grow by so many pixels; less than 0 shrinks` });
    grow.setAttribute("aria-label", grow.title);
    const add = button(fw.t`Add to mask`, fw.t`Add what is outlined to the mask (Enter)`, () => commit(false), "add");
    const take = button(fw.t`Take from mask`, fw.t`Take what is outlined from the mask`, () => commit(true), "take");
    const discard = button(fw.t`Discard`, fw.t`Discard what is outlined (Escape)`, () => reset(), "discard");
    const find = button(fw.t`Find`, fw.t`Find what is named`, () => name(), "find");
    const tools = [words, find, exclude, grow, add, take, discard];
    canvas.bar.after(fw.element("div", { className: "fw-segment-row" }, switchButton, ...tools));
    words.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key !== "Enter") return;
      event.preventDefault();
      name();
    });
    grow.addEventListener("change", () => (found.words || found.points.length || found.box) && ask());
    canvas.root.addEventListener("keydown", (event) => {
      if (!isOn || event.target.closest("input, button")) return;
      if (event.key === "Enter") commit(false);
      else if (event.key === "Escape") reset();
      else return;
      event.preventDefault();
    });
    // Before the canvas itself sees them.
    for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) canvas.stage.addEventListener(kind, pointer, true);

    function turn(on) {
      isOn = on;
      switchButton.setAttribute("aria-pressed", String(on));
      for (const tool of tools) tool.hidden = !on;
      canvas.root.classList.toggle("fw-segmenting", on);
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
      if (!isOn || canvas.isMoving || (isBegin ? ![0, 2].includes(event.button) : !down)) return;
      event.preventDefault();
      event.stopPropagation();
      const at = canvas.at(event);
      if (isBegin) {
        down = { at, screen: [event.clientX, event.clientY], isExcluded: event.button === 2 || event.altKey || exclude.getAttribute("aria-pressed") === "true" };
        canvas.paint.setPointerCapture?.(event.pointerId);
        canvas.root.focus({ preventScroll: true });
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
      const given = tab.getImage(canvas.root.dataset.canvas);
      if (!given) return;
      tab.clearMessages();
      isAsking = true;
      switchButton.setAttribute("aria-busy", "true");
      show();
      try {
        if (given !== file) [uri, file] = [await asUri(given), given];
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
      const stroke = strokeOf(found.runs, canvas.paintColor, erase);
      canvas.change((kept) => fw.canvas.history.add(kept, stroke));
      reset();
    }

    turn(false);

    // The outline of what is found, the points, and the box that is being drawn.
    function show(box = found.box) {
      for (const one of [add, take, discard]) one.disabled = !found.runs;
      Object.assign(preview, { width: canvas.width, height: canvas.height });
      if (!canvas.width) return;
      const context = preview.getContext("2d");
      const line = Math.max(1, Math.round((1.5 * canvas.width) / (canvas.stage.clientWidth || canvas.width)));
      if (found.runs) drawOutline(context, found.runs, line);
      if (box) {
        context.lineWidth = line;
        context.strokeStyle = INCLUDED;
        context.strokeRect(box[0], box[1], box[2] - box[0], box[3] - box[1]);
      }
      for (const { x, y, included } of found.points) {
        context.beginPath();
        context.arc(x, y, 4 * line, 0, 2 * Math.PI);
        context.fillStyle = included ? INCLUDED : EXCLUDED;
        context.fill();
        context.lineWidth = line;
        context.strokeStyle = DARK;
        context.stroke();
      }
    }
  }

  // The shape moved to all sides, dark and then light, without the shape itself.
  function drawOutline(context, runs, line) {
    for (const [color, width] of [[DARK, 2 * line], [INCLUDED, line]]) {
      for (const [x, y] of [[-1, 0], [1, 0], [0, -1], [0, 1], [-1, -1], [-1, 1], [1, -1], [1, 1]]) {
        context.save();
        context.translate(x * width, y * width);
        fw.strokes.draw(context, strokeOf(runs, color, false));
        context.restore();
      }
    }
    fw.strokes.draw(context, strokeOf(runs, DARK, true));
    context.save();
    context.globalAlpha = 0.25;
    fw.strokes.draw(context, strokeOf(runs, INCLUDED, false));
    context.restore();
  }

  async function pixelsOf(base64) {
    const image = new Image();
    image.src = `data:image/png;base64,${base64}`;
    await image.decode();
    const [width, height] = [image.naturalWidth, image.naturalHeight];
    const context = fw.element("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, width, height);
  }

  function asUri(blob) {
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(blob);
    });
  }

  function mount() {
    for (const place of document.querySelectorAll('.fw-canvas[data-layer="mask"]:not([data-segmented])')) {
      if (!place.paintCanvas) continue;
      place.dataset.segmented = "";
      select(place.paintCanvas, fw.tab("img2img"));
    }
  }

  fw.segmentation = { runsOf, bodyOf, gesture, strokeOf };
  setInterval(mount, MOUNT_MS);
})();
