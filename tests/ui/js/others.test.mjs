import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import { load } from "./page.mjs";

const ASSETS = new URL("../../../modules/ui/assets/", import.meta.url);

test("no script names a tab, but those of what only that tab has", () => {
  const own = ["img2img.js", "batch.js", "layers_tab.js", "extensions_page.js"]; // the last has the names that extensions call
  for (const name of readdirSync(ASSETS).filter((file) => file.endsWith(".js") && !own.includes(file))) {
    const text = readFileSync(new URL(name, ASSETS), "utf8").replaceAll(/settings\.\w+/g, ""); // their keys name tabs
    assert.doesNotMatch(text, /(txt|img)2img/, name);
  }
});

test("a tab's elements have its prefix, but for those that are named otherwise", () => {
  const { fw } = load([]);
  const tab = new fw.Tab({ prefix: "two", ids: { paste: "paste_two" } });
  assert.equal(tab.id("width"), "two_width");
  assert.equal(tab.id("paste"), "paste_two");
});

test("of the form only what decides about memory is sent", () => {
  const { fw } = load(["memory.js"]);
  const form = { prompt: "a <lora:x:1> cat", seed: 5, width: 64, negative_prompt: null };
  assert.deepEqual({ ...fw.weighedForm(form) }, { prompt: "<lora:x:1>", seed: -1, width: 64, negative_prompt: "" });
});

test("the stages stand in the hint of the estimate", () => {
  const { fw } = load(["memory.js"]);
  const hint = fw.estimateHint({ device: "CPU", stages: [{ stage: "decode", needs: 1.5e9 }], learnt_from: 0 });
  assert.deepEqual(hint.split("\n"), ["CPU", "decode: 1.50 GB", "an estimate, until an image of this kind was made"]);
});
