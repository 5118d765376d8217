// What of a prompt is completed, and what the prompt is then.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load, turn } from "./page.mjs";

const SCRIPT = "../../../extensions-builtin/tag-completion/javascript/tag_completion.js";
const { fw } = load([SCRIPT]);
const partOf = (text) => fw.partToComplete(text.replace("^", ""), text.indexOf("^"))?.text ?? null;

test("the words since the last comma are completed", () => {
  assert.equal(partOf("a cat, long h^"), "long h");
  assert.equal(partOf("a cat, lo^ng"), "lo");
  assert.equal(partOf("(long h^:1.2)"), "long h");
  assert.equal(partOf("{red|bl^"), "bl");
  assert.equal(partOf("a cat\nlo^"), "lo");
  assert.equal(partOf("a cat, l^"), null);
  assert.equal(partOf("a cat, ^"), null);
  assert.equal(partOf("(long:1.^"), null);
});

test("tags of adapters and wildcards are completed from their first sign", () => {
  assert.equal(partOf("a <lora:in^"), "<lora:in");
  assert.equal(partOf("a <^"), "<");
  assert.equal(partOf("a <lora:ink:1> lo^"), "lo");
  assert.equal(partOf("a __col^"), "__col");
  assert.equal(partOf("a __^"), "__");
  assert.equal(partOf("a __colors__, lo^"), "lo");
  assert.equal(partOf("a __colors__ __sh^"), "__sh");
});

test("a completion replaces its part and leaves one comma", () => {
  const done = (text, insert, comma = true) => {
    const cursor = text.indexOf("^");
    const plain = text.replace("^", "");
    const { text: after, start } = fw.withCompletion(plain, fw.partToComplete(plain, cursor), insert, comma);
    return `${after.slice(0, start)}^${after.slice(start)}`;
  };
  assert.equal(done("a cat, lo^", "long hair"), "a cat, long hair, ^");
  assert.equal(done("a cat, lo^, red", "long hair"), "a cat, long hair^, red");
  assert.equal(done("lo^ red", "long hair"), "long hair, ^red");
  assert.equal(done("{lo^|red}", "long hair"), "{long hair^|red}");
  assert.equal(done("(lo^:1.2)", "long hair"), "(long hair^:1.2)");
  assert.equal(done("a __co^ cat", "__colors__", false), "a __colors__^ cat");
});

test("the list is walked and taken from by keys, and Escape closes it without interrupting the job", async () => {
  const results = [{ text: "long_hair", insert: "long hair", kind: "tag", count: 3_900_000 }, { text: "long_sleeves", insert: "long sleeves", kind: "tag", count: 1500 }];
  const { fw, find, make, tick } = load(["progress.js", "prompt_text.js", "prompt.js", "hotkeys.js", SCRIPT], {
    paths: ["#one_prompt > textarea"], replies: { "tag-completion/search": { results, comma: true }, "internal/progress": { active: true } },
    globals: { setTimeout: (run) => setImmediate(run), innerWidth: 1440 },
  });
  fw.isLightboxOpen = () => false;
  let interrupts = 0;
  make("#one_interrupt").addEventListener("click", () => (interrupts += 1));
  fw.tab("one").start();
  await tick();
  const area = find("#one_prompt textarea");
  const type = async (text) => {
    area.focus();
    area.value = text;
    area.dispatchEvent({ type: "input", isTrusted: true });
    for (let turns = 0; turns < 4; turns += 1) await turn();
  };
  const press = (key) => area.dispatchEvent({ type: "keydown", key });
  const isOpen = () => find("#tag_completion").hidden === false;
  await type("lon");
  assert.deepEqual(find("#tag_completion").children.map((item) => item.textContent), ["long_hair3.9M", "long_sleeves2k"]);
  press("ArrowDown");
  press("ArrowDown");
  assert.match(find(`#${area.getAttribute("aria-activedescendant")}`).textContent, /long_sleeves/);
  press("Enter");
  assert.equal(area.value, "long sleeves, ");
  assert.ok(!isOpen());
  await type("long sleeves, lo");
  press("Escape");
  assert.ok(!isOpen());
  assert.equal(interrupts, 0);
  press("Escape");
  assert.equal(interrupts, 1);
});
