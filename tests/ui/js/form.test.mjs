import assert from "node:assert/strict";
import test from "node:test";
import { Storage, load } from "./page.mjs";

const FIELDS = ["prompt", "width", "height", "hires_enabled", "hires_scale", "refiner_checkpoint", "refiner_switch_at"];
const VALUES = ["a cat", 512, 768, true, 1.5, "sharp.safetensors [abc]", 0.8, "None", { path: "x.png" }];

test("each tab keeps its own form, and hands it to the page that comes after", () => {
  const stores = { session: new Storage(), local: new Storage() };
  const first = load(["form.js"], { prefixes: ["one", "two"], fields: FIELDS, stores }).fw;
  first.tab("one").keepForm(VALUES);
  first.tab("two").keepForm(["a dog", ...VALUES.slice(1)]);
  const next = load(["form.js"], { prefixes: ["one", "two"], fields: FIELDS, stores }).fw;
  const kept = JSON.parse(next.tab("one").keptForm());
  assert.equal(kept.fields.prompt, "a cat");
  assert.deepEqual(kept.others, ["None", null]); // files are not kept
  assert.equal(JSON.parse(next.tab("two").keptForm()).fields.prompt, "a dog");
});

test("what was kept comes back before the values of a new page replace it", () => {
  const stores = { session: new Storage(), local: new Storage() };
  load(["form.js"], { fields: FIELDS, stores }).fw.tab("one").keepForm(VALUES);
  let presses = 0;
  const { fw, make } = load(["form.js"], { fields: FIELDS, stores });
  make("#one_restore").addEventListener("click", () => (presses += 1));
  const tab = fw.tab("one");
  tab.keepForm(["", ...VALUES.slice(1)]);
  assert.equal(presses, 1);
  assert.equal(tab.hasKeptForm, undefined);
  assert.match(tab.keptForm(), /a cat/);
  const updates = [{ value: "a cat" }, { value: 512 }, null, null, null, null, null, null, null, { open: true }];
  const changes = tab.changes(JSON.stringify(updates));
  assert.equal(JSON.stringify(changes[0]), '{"value":"a cat","__type__":"update"}');
  assert.equal(changes[1], undefined); // it is that already
  assert.equal(JSON.stringify(changes[9]), '{"open":true,"__type__":"update"}');
  tab.keepForm(VALUES);
  assert.equal(tab.hasKeptForm, true);
  assert.equal(tab.form.prompt, "a cat");
});

test("a form that cannot be put back costs no page", () => {
  const stores = { session: new Storage(), local: new Storage() };
  load(["form.js"], { fields: FIELDS, stores }).fw.tab("one").keepForm(VALUES);
  const { fw, make } = load(["form.js"], { fields: FIELDS, stores });
  const [tab, messages] = [fw.tab("one"), make("#one_messages")];
  tab.keepForm(VALUES);
  assert.equal(tab.changes("").length, 0);
  assert.match(messages.children[0].textContent, /could not be restored/);
});

test("a new page finds what another page kept, its own comes first", () => {
  const local = new Storage();
  load(["form.js"], { fields: FIELDS, stores: { session: new Storage(), local } }).fw.tab("one").keepForm(VALUES);
  const own = new Storage();
  const page = load(["form.js"], { fields: FIELDS, stores: { session: own, local } }).fw;
  assert.match(page.tab("one").keptForm(), /a cat/);
  own.setItem("featherweight.form.one", '{"fields": {"prompt": "mine"}}');
  assert.match(load(["form.js"], { fields: FIELDS, stores: { session: own, local } }).fw.tab("one").keptForm(), /mine/);
});

test("a browser that keeps nothing still has a form", () => {
  const refusing = { getItem: () => null, setItem: () => { throw new Error("full"); } };
  const { fw } = load(["form.js"], { fields: FIELDS, stores: { session: refusing, local: refusing } });
  fw.tab("one").keepForm(VALUES);
  assert.equal(fw.tab("one").form.prompt, "a cat");
});

test("closed accordions say whether they are on", () => {
  const { fw, make } = load(["form.js"], { fields: FIELDS });
  const [hires, refiner] = ["hr", "refiner"].map((name) => make(`#one_${name} .label-wrap > span`));
  const tab = fw.tab("one");
  tab.keepForm(VALUES);
  assert.equal(hires.dataset.state, "from 512x768 to 768x1152");
  assert.equal(refiner.dataset.state, "sharp.safetensors at 0.8");
  tab.keepForm(["", 512, 768, false, 2, "None", 0.8]);
  assert.equal(hires.dataset.state + refiner.dataset.state, "");
});

test("a wanted width or height decides about the size of hires fix", () => {
  const { fw } = load(["form.js"]);
  const form = { width: 512, height: 768, hires_scale: 2 };
  assert.equal(fw.hiresLine({ ...form, hires_resize_width: 1024 }), "from 512x768 to 1024x1536");
  assert.equal(fw.hiresLine({ ...form, hires_resize_height: 1024 }), "from 512x768 to 682x1024");
  assert.equal(fw.hiresLine({ ...form, hires_resize_width: 64, hires_resize_height: 64 }), "from 512x768 to 64x64");
});

test("what a file for few steps asks for is put into the form, with the decoder as a setting of this form", () => {
  const fields = ["steps", "cfg_scale", "sampler", "scheduler", "overrides"];
  const { fw, make } = load(["form.js"], { fields });
  const tab = fw.tab("one");
  make("#one_take_steps");
  tab.keepForm([20, 7, "Euler", "Karras", ["Clip skip: 2", "VAE Decoder: Full"]]);
  const asked = { steps: 1, cfg_scale: 1, sampler: "Euler a", scheduler: "", decoder: "TAESD" };
  assert.ok(!tab.hasSteps(asked));
  tab.takeSteps(asked);
  const [steps, cfg, sampler, scheduler, overrides] = JSON.parse(JSON.stringify(tab.wantedSteps(fields)));
  assert.deepEqual([steps, cfg, sampler, scheduler], [1, 1, "Euler a", "Karras"]);
  assert.deepEqual(overrides.value, ["Clip skip: 2", "VAE Decoder: TAESD"]);
  assert.ok(overrides.visible && overrides.choices.length === 2);
  tab.keepForm([1, 1, "Euler a", "Karras", overrides.value]);
  assert.ok(tab.hasSteps(asked));
  tab.takeSteps({ steps: 6, cfg_scale: 1, sampler: "LCM", scheduler: "", decoder: "" }); // none here: the form's stays
  assert.deepEqual(JSON.parse(JSON.stringify(tab.wantedSteps(["overrides"])))[0].value, overrides.value);
});
