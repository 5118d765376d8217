import assert from "node:assert/strict";
import test from "node:test";
import { Storage, element, load } from "./page.mjs";

const PROGRESS = "internal/progress";

function page({ replies = {}, stores, prefixes = ["one"] } = {}) {
  const bar = element();
  const line = element();
  const elements = {};
  for (const prefix of prefixes) {
    elements[`#${prefix}_progress`] = element((selector) => (selector === ".fw-progress-text" ? line : bar));
    elements[`#${prefix}_messages`] = element();
    elements[`#${prefix}_generate_box`] = element();
  }
  const made = load(["progress.js"], { prefixes, elements, replies, stores });
  for (const tab of made.fw.tabs) {
    tab.shown = [];
    tab.showResult = (result) => tab.shown.push(result);
    tab.showPreview = () => {};
  }
  const said = (prefix = "one") => elements[`#${prefix}_messages`].children.map((box) => box.textContent).join(" ");
  return { ...made, elements, line, said };
}

test("two tabs watch a job each", () => {
  const { fw } = page({ prefixes: ["one", "two"] });
  const first = fw.tab("one").start();
  assert.ok(fw.tab("one").isRunning() && !fw.tab("two").isRunning() && fw.isRunning());
  assert.notEqual(fw.tab("two").start(), first);
  assert.equal(fw.tab("one").task(), first);
});

test("a form that does not arrive leaves a message and the button", () => {
  const { fw, said } = page();
  fw.tab("one").start();
  fw.tab("one").failed();
  assert.ok(!fw.tab("one").isRunning());
  assert.match(said(), /was not started/);
});

test("a job that the server forgot is named as lost, once", async () => {
  const stores = { session: new Storage(), local: new Storage() };
  const replies = { [PROGRESS]: { active: true, progress: 0.5, textinfo: "sampling" } };
  const { fw, tick } = page({ replies, stores });
  fw.tab("one").start();
  await tick();
  const gone = { [PROGRESS]: { active: false, queued: false, completed: false } };
  const after = page({ replies: gone, stores });
  await after.fw.tab("one").resume();
  assert.match(after.said(), /restarted before this job was done/);
  const later = page({ replies: gone, stores });
  await later.fw.tab("one").resume();
  assert.equal(later.said(), "");
});

test("what the server says of a job that was cut off is what the page says", async () => {
  const stores = { session: new Storage(), local: new Storage() };
  page({ stores }).fw.tab("one").start();
  const replies = { [PROGRESS]: { active: false, queued: false, completed: false, error: "interrupted by a restart" } };
  const { fw, said } = page({ replies, stores });
  await fw.tab("one").resume();
  assert.equal(said(), "interrupted by a restart");
});

test("a server that restarts while the page watches does not end the job silently", async () => {
  const replies = { [PROGRESS]: { active: true, progress: 0.5 } };
  const { fw, tick, said } = page({ replies });
  fw.tab("one").start();
  await tick();
  replies[PROGRESS] = new Error("connection refused");
  await tick();
  assert.ok(fw.tab("one").isRunning(), "it may come back");
  replies[PROGRESS] = { active: false, queued: false, completed: false };
  await tick();
  assert.ok(!fw.tab("one").isRunning());
  assert.match(said(), /restarted before this job was done/);
});

test("a job that was put in line elsewhere is watched and kept", () => {
  const stores = { session: new Storage(), local: new Storage() };
  page({ stores }).fw.tab("one").follow("task(x)");
  assert.equal(page({ stores }).fw.tab("one").task(), "task(x)");
});

test("a finished job is shown", async () => {
  const replies = { [PROGRESS]: { completed: true }, "internal/result": { error: null, images: [] } };
  const { fw, tick } = page({ replies });
  fw.tab("one").start();
  await tick();
  assert.equal(fw.tab("one").shown.length, 1);
  assert.ok(!fw.isRunning());
});

test("progress in words", () => {
  const { fw } = page();
  const state = { progress: 0.4, step: 8, steps: 20, eta: 63, textinfo: "sampling", stage: "denoise" };
  assert.equal(fw.progressLine(state), "40% · step 8 of 20 · 1 min 3 s left");
  assert.match(fw.progressLine(state, { forever: true }), /generating forever: right-click Interrupt/);
  assert.match(fw.progressLine(state, { stopping: "interrupting" }), /· interrupting$/);
  assert.equal(fw.progressLine({ queued: true, textinfo: "In line" }), "In line");
  assert.equal(fw.progressTitle(state), "[40% (8 of 20)] Featherweight");
});

test("of a double click on Generate the second half, which falls on Interrupt, is not heard", () => {
  // Browsers count by place, or begin again at 1 on another element; keys are not counted and have no place.
  const generate = { detail: 1, clientX: 40, clientY: 20, timeStamp: 0 };
  const heard = (first, second) => {
    const { fw, fire } = page();
    const click = (name, values) => {
      let isHeard = true;
      const target = { closest: (ids) => ids.split(", ").includes(`#one_${name}`) };
      const stop = () => { isHeard = false; };
      fire("click", { isTrusted: true, target, preventDefault: stop, stopImmediatePropagation: () => {}, ...values });
      return isHeard;
    };
    click("generate", first);
    fw.tab("one").start();
    return [click("interrupt", second), click("interrupt", { ...second, detail: second.detail && 3 })];
  };
  assert.deepEqual(heard(generate, { ...generate, detail: 2, timeStamp: 700 }), [false, true]);
  assert.deepEqual(heard(generate, { ...generate, timeStamp: 300 }), [false, true]);
  assert.deepEqual(heard(generate, { ...generate, timeStamp: 600 }), [true, true]);
  assert.deepEqual(heard(generate, { ...generate, clientX: 60, timeStamp: 300 }), [true, true]);
  assert.deepEqual(heard(generate, { ...generate, clientX: 60, timeStamp: 300, pointerType: "touch" }), [false, true]);
  const key = { detail: 0, clientX: 0, clientY: 0, timeStamp: 0 };
  assert.deepEqual(heard(key, { ...key, timeStamp: 200 }), [false, true]);
  assert.deepEqual(heard(key, { ...generate, timeStamp: 300 }), [true, true]);
});
