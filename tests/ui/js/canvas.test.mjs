// The canvas's logic: what is undone and drawn again, where a pointer is in the image, what a batch says of itself.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { fw } = load(["canvas.js", "canvas_store.js", "img2img.js", "upload_list.js", "references.js", "batch.js"], { prefixes: ["img2img"] });
const { history, steppedBrush, toImage, draw } = fw.canvas;
const names = (h) => Array.from(h.done, (item) => item.name); // arrays of the scripts are of another realm
const stroke = (name) => ({ name, points: [[1, 1]], size: 4, color: "#fff" });

// A 2D context that writes down what is asked of it.
function recorder() {
  const calls = [];
  const context = { canvas: { width: 8, height: 6 }, calls };
  for (const name of ["save", "restore", "beginPath", "arc", "fill", "moveTo", "lineTo", "stroke", "clearRect"]) {
    context[name] = (...values) => calls.push([name, ...values]);
  }
  return context;
}

test("strokes are undone and drawn again in their order, until a new one is painted", () => {
  let h = [stroke("a"), stroke("b"), stroke("c")].reduce(history.add, history.empty());
  h = history.undo(history.undo(h));
  assert.deepEqual(names(h), ["a"]);
  assert.deepEqual(names(history.redo(h)), ["a", "b"]);
  h = history.add(h, stroke("d"));
  assert.equal(history.redo(h), h, "nothing is left to draw again");
  assert.deepEqual(names(h), ["a", "d"]);
});

test("clearing can be undone, and is nothing on an empty canvas", () => {
  const empty = history.empty();
  assert.equal(history.clear(empty), empty);
  const painted = history.add(empty, stroke("a"));
  const cleared = history.clear(painted);
  assert.ok(history.isEmpty(cleared));
  assert.equal(history.clear(cleared), cleared);
  assert.ok(!history.isEmpty(history.undo(cleared)));
});

test("the brush grows by a tenth, and by one pixel where that is less, within its limits", () => {
  assert.equal(steppedBrush(100, 1), 110);
  assert.equal(steppedBrush(3, -1), 2);
  assert.equal(steppedBrush(1, -1), 1);
  assert.equal(steppedBrush(510, 1), 512);
});

test("a point of the screen is found in the image, whatever its size on the screen", () => {
  const box = { left: 100, top: 50, width: 400, height: 200 };
  assert.deepEqual([...toImage(box, { width: 64, height: 32 }, 300, 150)], [32, 16]);
  assert.deepEqual([...toImage(box, { width: 64, height: 32 }, 101, 50)], [0.16, 0]);
});

test("a single point is a disk, a stroke a line with round ends, and erasing takes away", () => {
  const dot = recorder();
  draw(dot, { points: [[3, 4]], size: 6, color: "#fff" });
  assert.deepEqual(dot.calls.find(([name]) => name === "arc").slice(1, 4), [3, 4, 3]);
  const line = recorder();
  draw(line, { points: [[0, 0], [5, 5]], size: 2, color: "#0f0", erase: true });
  assert.equal(line.globalCompositeOperation, "destination-out");
  assert.equal(line.lineCap, "round");
  assert.deepEqual(line.calls.filter(([name]) => name === "lineTo"), [["lineTo", 5, 5]]);
  const clear = recorder();
  draw(clear, { clear: true });
  assert.deepEqual(clear.calls, [["clearRect", 0, 0, 8, 6]]);
});

test("the line below Resize by says the size that comes out, in multiples of 8", () => {
  assert.equal(fw.scaledLine({ width: 100, height: 64 }, 1.5), "from 100x64 to 144x96");
  assert.equal(fw.scaledLine(null, 2), "There is no image yet.");
});

test("a batch says how far it is and how many failed", () => {
  const state = { done: 2, total: 5, current: ["c.png", "task(1)"], failures: [["a.png", "is empty"]], is_over: false };
  assert.equal(fw.batchLine(state), "2 of 5 · c.png · 1 failed");
  assert.equal(fw.batchLine({ ...state, done: 5, current: null, failures: [], is_over: true }), "5 of 5 · done");
  assert.equal(fw.batchLine({ ...state, current: null, failures: [], is_over: true, is_stopped: true }), "2 of 5 · stopped");
});

test("without an image nothing is sent but the sub tab's emptiness", async () => {
  const tab = fw.tab("img2img");
  tab.form = { mode: "inpaint" };
  assert.equal(await tab.pictures(), "{}");
  tab.form = { mode: "batch" };
  assert.deepEqual(JSON.parse(await tab.pictures()), { files: [] });
  assert.equal(tab.imageSize(), null);
});

test("keys and wheel of the canvas are those of the settings", () => {
  const { actionOfKey, isMoveKey, wheelDoes } = fw.canvas;
  assert.equal(actionOfKey("q", {}), "shrink", "as in the reference UI");
  const settings = { canvas_hotkey_shrink_brush: "b", canvas_hotkey_fullscreen: "", canvas_hotkey_zoom: "Ctrl", canvas_hotkey_adjust: "Shift" };
  assert.equal(actionOfKey("B", settings), "shrink");
  assert.equal(actionOfKey("q", settings), null);
  assert.equal(actionOfKey("s", settings), null, "an empty setting is no key");
  assert.ok(isMoveKey("F", { canvas_hotkey_move: "x" }) && isMoveKey("x", { canvas_hotkey_move: "X" }));
  assert.equal(wheelDoes({ altKey: true }, {}), "zoom");
  assert.equal(wheelDoes({ ctrlKey: true }, {}), "brush");
  assert.equal(wheelDoes({ shiftKey: true }, {}), "zoom");
  assert.equal(wheelDoes({ ctrlKey: true }, settings), "zoom");
  assert.equal(wheelDoes({ shiftKey: true }, settings), "brush");
  assert.equal(wheelDoes({}, settings), "");
  const off = { canvas_disabled_functions: ["Zoom", "Hotkey shrink brush", "Fullscreen"] };
  assert.deepEqual([{ altKey: true }, { shiftKey: true }, { ctrlKey: true }].map((held) => wheelDoes(held, off)), ["", "", "brush"]);
  assert.deepEqual(["q", "w", "s", "r"].map((key) => actionOfKey(key, off)), [null, "grow", null, "reset"]);
  const keys = (settings) => fw.canvas.keyHelp(settings).map(([key]) => key).join(" ");
  assert.equal(keys({}), "Alt Ctrl Q W F S R O");
  assert.equal(keys({ ...settings, canvas_disabled_functions: ["Overlap", "Zoom"] }), "Shift b W F R", "as the settings say");
});
