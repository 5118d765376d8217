import assert from "node:assert/strict";
import test from "node:test";
import { Storage, load, turn } from "./page.mjs";

const PROGRESS = "internal/progress";

function page({ replies = {}, stores, prefixes = ["one"], scripts = [], globals } = {}) {
  const names = ["progress > .fw-bar > span", "progress > .fw-progress-text", "messages", "notice", "generate_box > button.fw-generate"];
  const paths = prefixes.flatMap((prefix) => names.map((name) => `#${prefix}_${name}`));
  const made = load(["progress.js", ...scripts], { prefixes, replies, stores, globals, paths });
  for (const tab of made.fw.tabs) {
    for (const name of ["generate", "interrupt", "skip"]) made.make(`#${tab.prefix}_generate_box > #${tab.prefix}_${name}`);
    tab.shown = [];
    tab.images = () => [];
    tab.showResult = (result) => {
      tab.clearMessages();
      tab.shown.push(result);
    };
    tab.showPreview = () => {};
  }
  const presses = [];
  for (const name of ["generate", "interrupt", "skip"]) made.find(`#one_${name}`).addEventListener("click", () => presses.push(name));
  const said = (prefix = "one") => made.find(`#${prefix}_messages`).children.map((box) => box.textContent).join(" ");
  return { ...made, presses, said, line: () => made.find("#one_progress .fw-progress-text").textContent };
}

test("two tabs watch a job each", () => {
  const { fw } = page({ prefixes: ["one", "two"] });
  const first = fw.tab("one").start();
  assert.ok(fw.tab("one").isRunning() && !fw.tab("two").isRunning() && fw.isRunning());
  assert.notEqual(fw.tab("two").start(), first);
  assert.equal(fw.tab("one").task(), first);
});

test("a form that does not arrive leaves a message and the button", async () => {
  const replies = {};
  const { fw, said } = page({ replies });
  fw.tab("one").start();
  replies[PROGRESS] = { queued: true };
  await fw.tab("one").failed();
  assert.ok(fw.tab("one").isRunning() && !said(), "only its answer was lost");
  replies[PROGRESS] = { active: false, queued: false, completed: false };
  await fw.tab("one").failed();
  assert.ok(!fw.tab("one").isRunning());
  assert.match(said(), /was not started/);
});

test("a job may be unknown as long as its form is under way, and for a while after", async () => {
  let now = 0;
  class Clock extends Date {
    static now() { return now; }
  }
  const replies = { [PROGRESS]: { active: false, queued: false, completed: false } };
  const { fw, tick, said } = page({ replies, globals: { Date: Clock } });
  const tab = fw.tab("one");
  tab.start();
  now = 60_000;
  await tick();
  assert.ok(tab.isRunning(), "the server is slow to answer");
  tab.submitted();
  now += 5000;
  replies[PROGRESS] = async () => { now += 5000; return { active: false }; };
  await tick();
  assert.ok(tab.isRunning(), "what was asked before the grace was over says nothing");
  await tick();
  assert.ok(!tab.isRunning());
  assert.match(said(), /did not take this job/);
});

test("after a reload an error that was said is not said again, and the images of the job before it are shown", async () => {
  const stores = { session: new Storage(), local: new Storage() };
  const results = {};
  const replies = {
    [PROGRESS]: { completed: true },
    "internal/result": (_, path) => results[decodeURIComponent(path.split("=")[1])],
  };
  const { fw, tick } = page({ replies, stores });
  const made = fw.tab("one").start();
  results[made] = { error: null, images: [{}], notices: [] };
  await tick();
  const failed = fw.tab("one").start();
  results[failed] = { error: "no such LoRA", images: [], notices: [] };
  const unseen = page({ replies, stores });
  await unseen.fw.tab("one").resume();
  assert.deepEqual(unseen.fw.tab("one").shown.map((result) => result.error), [null, "no such LoRA"]);
  const seen = page({ replies, stores });
  await seen.fw.tab("one").resume();
  assert.deepEqual(seen.fw.tab("one").shown.map((result) => result.images.length), [1]);
  await seen.fw.tab("one").resume(true);
  assert.equal(seen.fw.tab("one").shown.at(-1).error, "no such LoRA", "asked for, it is");
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

// What pages of one browser tell each other.
function browser() {
  const all = [];
  return class {
    listeners = [];
    constructor() { all.push(this); }
    addEventListener(_, run) { this.listeners.push(run); }
    removeEventListener(_, run) { this.listeners = this.listeners.filter((one) => one !== run); }
    postMessage(data) { for (const other of all) if (other !== this) setImmediate(() => [...other.listeners].forEach((run) => run({ data }))); }
  };
}

test("a reload finds its job again, a second page of the browser does not take it", async () => {
  const stores = { session: new Storage(), local: new Storage() };
  const globals = { BroadcastChannel: browser() };
  const replies = { [PROGRESS]: { active: true, progress: 0.5 }, "internal/result": { error: null, images: [] } };
  const first = page({ replies, stores, globals });
  const task = first.fw.tab("one").start();
  const patient = (run, ms) => setTimeout(run, ms * 40); // the answer may be late where others compute
  const second = page({ replies, stores: { session: new Storage(), local: stores.local }, globals: { ...globals, setTimeout: patient } });
  await second.fw.tab("one").resume();
  assert.ok(!second.fw.tab("one").isRunning(), "the first page says that it watches it");
  const again = page({ replies, stores, globals: { BroadcastChannel: browser() } }); // the first one is closed
  await again.fw.tab("one").resume();
  assert.ok(again.fw.tab("one").isRunning());
  assert.equal(again.fw.tab("one").task(), task);
  replies[PROGRESS] = { completed: true };
  await again.tick();
  assert.equal(again.fw.tab("one").shown.length, 1);
});

test("Interrupt is confirmed at once, and sent again as soon as the server knows the job", async () => {
  const replies = { [PROGRESS]: { active: false, queued: false, completed: false } };
  const { fw, find, tick, presses, line } = page({ replies });
  fw.tab("one").start();
  find("#one_interrupt").click();
  assert.match(line(), /interrupting$/);
  assert.equal(find("#one_interrupt").getAttribute("aria-busy"), "true");
  assert.deepEqual(presses, [], "the server would find nothing to stop");
  await tick();
  assert.deepEqual(presses, []);
  replies[PROGRESS] = { active: true, progress: 0.1 };
  await tick();
  assert.deepEqual(presses, ["interrupt"]);
  assert.match(line(), /interrupting$/);
});

test("generating forever begins again until it is ended, which is said", async () => {
  const replies = { [PROGRESS]: { completed: true }, "internal/result": { error: null, images: [] } };
  const { fw, find, tick, presses, said, line } = page({ replies });
  const tab = fw.tab("one");
  tab.toggleForever();
  for (const count of [1, 2]) {
    assert.equal(presses.length, count);
    tab.start();
    assert.match(line(), /generating forever/);
    await tick();
  }
  assert.ok(find("#one_generate_box").classList.contains("fw-forever"));
  tab.start();
  tab.toggleForever();
  await tick();
  assert.deepEqual(presses, ["generate", "generate", "generate"]);
  assert.equal(said(), "Generating forever has ended.");
});

test("an error ends generating forever", async () => {
  const replies = { [PROGRESS]: { completed: true }, "internal/result": { error: "seed is -6", images: [] } };
  const { fw, find, make, tick, presses } = page({ replies });
  const tab = fw.tab("one");
  tab.toggleForever();
  tab.start();
  await tick();
  assert.deepEqual(presses, ["generate"]);
  tab.toggleForever();
  tab.start();
  make("#one_notice > .fw-error");
  tab.submitted(); // the server refused the form
  assert.ok(!tab.isRunning() && !find("#one_generate_box").classList.contains("fw-forever"));
});

test("begun again while it runs, a job is interrupted and the form sent once more when it is over", async () => {
  const replies = { [PROGRESS]: { active: true, progress: 0.5 }, "internal/result": { error: null, images: [] } };
  const { fw, tick, presses } = page({ replies });
  fw.tab("one").start();
  await tick();
  fw.tab("one").restart();
  replies[PROGRESS] = { completed: true };
  await tick();
  assert.deepEqual(presses, ["interrupt", "generate"]);
});

test("of the jobs of a form that wait in line, the next one is watched when one is over", async () => {
  const replies = { [PROGRESS]: { active: true }, "internal/result": { error: null, images: [] } };
  const { fw, tick } = page({ replies });
  const tab = fw.tab("one");
  const first = tab.start();
  tab.enqueue();
  const second = tab.start();
  tab.submitted();
  assert.equal(tab.task(), first);
  replies[PROGRESS] = ({ id_task }) => (id_task === first ? { completed: true } : { active: true });
  await tick();
  assert.ok(tab.isRunning());
  assert.equal(tab.task(), second);
});

test("keys: Ctrl+Enter generates or begins again, with Shift it puts in line, Alt+Enter skips, Escape interrupts", async () => {
  const { fw, fire, presses, tick } = page({ scripts: ["hotkeys.js"], replies: { [PROGRESS]: { active: true } } });
  fw.isLightboxOpen = () => false;
  await fire("keydown", { key: "Escape" });
  await fire("keydown", { key: "Enter", ctrlKey: true });
  fw.tab("one").start();
  await tick();
  for (const keys of [{ key: "Enter", altKey: true }, { key: "Escape" }, { key: "Enter", metaKey: true }, { key: "Enter", ctrlKey: true, shiftKey: true }]) await fire("keydown", keys);
  assert.deepEqual(presses, ["generate", "skip", "interrupt", "interrupt", "generate"]);
  fw.isLightboxOpen = () => true;
  await fire("keydown", { key: "Escape" });
  assert.equal(presses.length, 5, "it closes the image that is looked at");
});

test("Enter that is held down on Generate does not press Interrupt, which takes its place and the focus", () => {
  const { fw, find, document } = page();
  find("#one_generate").focus();
  fw.tab("one").start();
  assert.equal(document.activeElement, find("#one_interrupt"));
  const held = { type: "keydown", key: "Enter", repeat: true };
  find("#one_interrupt").dispatchEvent(held);
  assert.ok(held.defaultPrevented);
});

test("the focus goes back to Generate when the job is over", async () => {
  const replies = { [PROGRESS]: { completed: true }, "internal/result": { error: null, images: [] } };
  const { fw, find, document, tick } = page({ replies });
  fw.tab("one").start();
  find("#one_interrupt").focus();
  await tick();
  assert.equal(document.activeElement, find("#one_generate"));
});

test("the screen stays awake during a job, and a sound ends it", async () => {
  const heard = [];
  const lock = { release: () => heard.push("asleep") };
  const navigator = { wakeLock: { request: async () => { heard.push("awake"); return lock; } } };
  const replies = { [PROGRESS]: { completed: true }, "internal/result": { error: null, images: [] } };
  const { fw, tick } = page({ replies, scripts: ["attention.js"], globals: { navigator } });
  fw.chime = () => heard.push("sound");
  fw.tab("one").start();
  await turn();
  await tick();
  assert.deepEqual(heard, ["awake", "asleep", "sound"]);
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
  assert.equal(fw.progressLine({ queued: true, textinfo: "Queue" }), "Queue");
  assert.equal(fw.progressTitle(state), "[40% (8 of 20)] Featherweight");
});

test("of a double click on Generate the second half, which falls on Interrupt, is not heard", () => {
  // Browsers count by place, or begin again at 1 on another element; keys are not counted and have no place.
  const generate = { detail: 1, clientX: 40, clientY: 20, timeStamp: 0 };
  const heard = (first, second) => {
    const { fw, find } = page();
    const click = (name, values) => {
      const event = { type: "click", isTrusted: true, ...values };
      find(`#one_${name}`).dispatchEvent(event);
      return !event.defaultPrevented;
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
