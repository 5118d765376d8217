// What of a prompt is completed, and what the prompt is then.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./page.mjs";

const { fw } = load(["../../../extensions-builtin/tag-completion/javascript/tag_completion.js"]);
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
