import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./page.mjs";

const LINES = [
  { name: "loss", points: [[1, 0.5], [2, 0.25], [4, 0.125]] },
  { name: "held-out", points: [[0, 0.6], [4, 0.4]] },
];

const drawn = (spec) => load([]).fw.plot({ label: "Loss over the steps", lines: LINES, ...spec });

test("lines lie on one scale and are named for those who do not see them", () => {
  const [svg] = drawn().children;
  assert.equal(svg.getAttribute("aria-label"), "Loss over the steps");
  assert.equal(svg.getAttribute("tabindex"), "0");
  const [loss, held] = svg.querySelectorAll("polyline").map((line) => line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number)));
  assert.equal(held[0][0], 4); // the first step is at the left
  assert.equal(loss[2][0], 636); // the last at the right
  assert.equal(held[0][1], 18); // the largest value is on top
  assert.equal(loss[2][1], 166); // the smallest on the axis
});

test("the numbers stand beneath as a table", () => {
  const rows = drawn().querySelectorAll("tr").map((row) => row.children.map((cell) => cell.textContent));
  assert.deepEqual(rows, [
    ["", "loss", "held-out"], ["0", "-", "0.6"], ["1", "0.5", "0.6"], ["2", "0.25", "0.6"], ["4", "0.125", "0.4"],
  ]);
});

test("arrow keys go from point to point and say what stands there", () => {
  const figure = drawn({ showX: (step) => `step ${step}` });
  const said = figure.querySelectorAll("span").at(-1);
  const press = (key) => figure.children[0].dispatchEvent({ type: "keydown", key });
  press("ArrowRight");
  press("ArrowRight");
  assert.equal(said.textContent, "step 1 · loss 0.5 · held-out 0.6");
  press("End");
  press("ArrowRight");
  assert.equal(said.textContent, "step 4 · loss 0.125 · held-out 0.4");
});

test("a fifth line looks different from the first", () => {
  const lines = Array.from({ length: 5 }, (_, index) => ({ name: String(index), points: [[0, index], [1, index]] }));
  const looks = drawn({ lines }).querySelectorAll("polyline").map((line) => line.getAttribute("class") + line.getAttribute("stroke-dasharray"));
  assert.equal(new Set(looks).size, 5);
});

test("the work of two workers is two lines, of five one, and the table has each", () => {
  const workers = (count, jobs) => Array.from({ length: count }, (_, index) => ({ name: `worker-${index + 1}`, jobs: jobs + index }));
  for (const [count, lines] of [[2, 2], [5, 1]]) {
    const { fw } = load(["progress.js", "queue.js"]);
    assert.equal(fw.workDone(workers(count, 3)).length, 0); // nothing to compare with yet
    const [, plot] = fw.workDone(workers(count, 7));
    assert.equal(plot.querySelectorAll("polyline").length, lines);
    assert.deepEqual(plot.querySelectorAll("tr").at(-1).children.map((cell) => cell.textContent), [`worker-${count}`, "4"]);
  }
  assert.equal(load(["queue.js"]).fw.workDone([]).length, 0);
});
