// What a mask of the server becomes as a stroke of a canvas, and what a pointer asks for.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const SCRIPT = "../../../extensions-builtin/segmentation/javascript/segmentation.js";
const { fw } = load(["canvas.js", "layers_strokes.js", SCRIPT], { globals: { setInterval: () => 0 } });
const { runsOf, bodyOf, gesture, strokeOf } = fw.segmentation;
const plain = (value) => JSON.parse(JSON.stringify(value)); // objects of the scripts are of another realm

function mask(...lines) {
  const data = lines.flatMap((line) => [...line].flatMap((sign) => (sign === "#" ? [255, 255, 255, 255] : [0, 0, 0, 255])));
  return { data, width: lines[0].length, height: lines.length };
}

test("a mask is runs of pixels, without empty rows around them", () => {
  assert.deepEqual(plain(runsOf(mask("....", ".##.", "....", "#..#", "...."))), { y: 1, rows: [[1, 3], [], [0, 1, 3, 4]] });
  assert.equal(runsOf(mask("...", "...")), null);
});

test("its stroke fills these runs, on the canvas and on layers", () => {
  const calls = [];
  const context = { fill: () => calls.push("fill"), rect: (...box) => calls.push(box), beginPath() {}, save() {}, restore() {} };
  fw.canvas.draw(context, strokeOf(runsOf(mask("##.#")), "#123456", true));
  assert.deepEqual(plain(calls), [[0, 0, 2, 1], [3, 0, 1, 1], "fill"]);
  assert.deepEqual([context.fillStyle, context.globalCompositeOperation], ["#000", "destination-out"]);
});

test("words, or points and a box, are asked for", () => {
  const points = [{ x: 3, y: 4, included: true }, { x: 5, y: 6, included: false }];
  assert.deepEqual(plain(bodyOf({ words: "hat", points, box: null, grow: 2 })), { words: "hat", grow: 2 });
  assert.deepEqual(plain(bodyOf({ words: "", points, box: [1, 2, 3, 4], grow: 0 })), { points: [[3, 4, 1], [5, 6, 0]], box: [1, 2, 3, 4], grow: 0 });
  assert.deepEqual(plain(bodyOf({ words: "", points, box: null, grow: 0 })), { points: [[3, 4, 1], [5, 6, 0]], grow: 0 });
});

test("a click is a point, and a drag a box, whatever its direction", () => {
  assert.deepEqual(plain(gesture([9, 9], [8, 7], false, false)), { point: { x: 8, y: 7, included: false } });
  assert.deepEqual(plain(gesture([9, 2], [3, 7], true, true)), { box: [3, 2, 9, 7] });
});

test("the outline goes around the runs, and around holes in them", () => {
  const lines = (...rows) => plain(fw.segmentation.outlinesOf(runsOf(mask(...rows))));
  assert.deepEqual(lines("....", ".##.", ".##."), [[[1, 1], [3, 1], [3, 3], [1, 3], [1, 1]]]);
  const ring = lines("###", "#.#", "###");
  assert.equal(ring.length, 2);
  assert.deepEqual(ring.map((line) => new Set(line.map(String)).size), [4, 4]);
  assert.equal(lines("#.#").length, 2);
  const length = (line) => line.slice(1).reduce((sum, [x, y], at) => sum + Math.abs(x - line[at][0]) + Math.abs(y - line[at][1]), 0);
  assert.equal(lines("#..", "##.", ".##").reduce((sum, line) => sum + length(line), 0), 12);
});
