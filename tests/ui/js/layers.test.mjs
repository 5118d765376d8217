// The canvas's document: places of layers, the frame, undo, the colors of regions, and what a fill covers.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { fw } = load(["layers_document.js", "layers_strokes.js"], { prefixes: ["img2img"] });
const { layerOf, emptyDocument, added, removed, moved, put, boxOf, fitted, snapped, stretched, expanded, steps, imagesOf, regionColor } = fw.layers;
const plain = (value) => JSON.parse(JSON.stringify(value)); // objects of the scripts are of another realm
const names = (doc) => plain(doc.layers.map(({ name }) => name));
const withAll = () => ["base", "paint"].reduce((doc, name) => added(doc, layerOf("paint", name)), emptyDocument());

test("pictures come above the active layer and below masks, and leave in any order", () => {
  let doc = added(withAll(), layerOf("mask", "mask"));
  doc = added({ ...doc, active: doc.layers[0].id }, layerOf("image", "result"));
  assert.deepEqual(names(doc), ["base", "result", "paint", "mask"]);
  assert.deepEqual(names(moved(doc, doc.layers[3].id, -9)), ["mask", "base", "result", "paint"]);
  assert.equal(put(doc, doc.layers[0].id, 0), doc, "nothing changes, so there is nothing to undo");
  const left = removed(doc, doc.active);
  assert.deepEqual(names(left), ["base", "paint", "mask"]);
  assert.equal(left.active, left.layers[1].id);
});

test("a layer is put and resized by its box, wherever its strokes lie", () => {
  const stroke = { isArea: true, points: [[10, 20], [30, 20], [30, 60], [10, 60]] };
  const layer = { ...layerOf("paint", "a"), strokes: [stroke], x: 5, y: -5 };
  assert.deepEqual(plain(boxOf(layer)), { x: 15, y: 15, width: 20, height: 40 });
  const box = { x: 100, y: 0, width: 40, height: 40 };
  assert.deepEqual(plain(boxOf(fitted(layer, box))), box);
  assert.equal(boxOf(layerOf("paint", "empty")), null);
});

test("the frame stays on its grid and grows only at the edge that is moved", () => {
  assert.deepEqual(plain(snapped({ x: 13, y: -3, width: 333, height: 10 }, 8)), { x: 16, y: -0 || 0, width: 336, height: 64 });
  const frame = { x: 0, y: 0, width: 512, height: 512 };
  assert.deepEqual(plain(expanded(frame, "w", 64, 64)), { x: -64, y: 0, width: 576, height: 512 });
  assert.deepEqual(plain(stretched(frame, "ne", 70, -70, 64)), { x: 0, y: -64, width: 576, height: 576 });
  assert.equal(stretched(frame, "w", 1000, 0, 8).width, 64, "never less than an image may have");
});

test("steps are undone and done again, and name all pictures that they show", () => {
  const one = withAll();
  const two = added(one, { ...layerOf("image", "result"), image: "p1" });
  let kept = steps.add(steps.add(steps.of(emptyDocument()), one), two);
  assert.equal(steps.add(kept, two), kept);
  kept = steps.undo(kept);
  assert.equal(kept.doc, one);
  assert.deepEqual([...imagesOf(kept)], ["p1"], "what can be done again is still needed");
  assert.equal(steps.redo(kept).doc, two);
  assert.equal(steps.undo(steps.undo(steps.undo(kept))).past.length, 0);
});

test("regions have the hues 0, 1/2, 1/4, 3/4", () => {
  assert.deepEqual(plain([0, 1, 2, 3].map(regionColor)), [[255, 0, 0], [0, 255, 255], [128, 255, 0], [128, 0, 255]]);
});

test("a fill covers what hangs together, in runs", () => {
  const rows = ["..#.", ".##.", "#..."];
  const data = rows.join("").split("").flatMap((sign) => (sign === "#" ? [0, 0, 0, 255] : [255, 255, 255, 255]));
  const picture = { data, width: 4, height: 3 };
  assert.deepEqual(plain(fw.strokes.flooded(picture, 0, 0)), { y: 0, rows: [[0, 2], [0, 1]] });
  assert.deepEqual(plain(fw.strokes.flooded(picture, 3, 0)), { y: 0, rows: [[3, 4], [3, 4], [1, 4]] });
  assert.equal(fw.strokes.flooded(picture, 4, 0), null);
});

test("a pen's pressure makes the brush thinner, mouse and finger do not", () => {
  assert.equal(fw.strokes.pressureOf({ pointerType: "mouse", pressure: 0.5 }), 1);
  assert.ok(Math.abs(fw.strokes.pressureOf({ pointerType: "pen", pressure: 0.5 }) - 0.575) < 1e-9);
});
