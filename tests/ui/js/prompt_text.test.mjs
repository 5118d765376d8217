import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./page.mjs";

const { fw } = load(["prompt_text.js"]);
const up = (text, start, end = start) => fw.reweighted(text, start, end, 1, {})?.text;
const down = (text, start, end = start) => fw.reweighted(text, start, end, -1, {})?.text;

test("a word, a selection, a network and old brackets are weighed", () => {
  assert.equal(up("a red circle", 4), "a (red:1.1) circle");
  assert.equal(up("a (red:1.1) circle", 4), "a (red:1.2) circle");
  assert.equal(down("a (red:1.1) circle", 4), "a red circle");
  assert.equal(up("a red big cat", 2, 9), "a (red big:1.1) cat");
  assert.equal(up("a <lora:x:1> cat", 5), "a <lora:x:1.05> cat");
  assert.equal(up("a ((red)) cat", 5), "a (red:1.3) cat");
  assert.equal(up("a [red:blue:3] cat", 4), "a [(red:1.1):blue:3] cat");
});

test("there is nothing to weigh between words", () => {
  assert.equal(fw.reweighted("a  cat", 2, 2, 1, {}), null);
  assert.equal(fw.reweighted("", 0, 0, 1, {}), null);
});

test("the selection stays on what was weighed", () => {
  const { text, start, end } = fw.reweighted("a red circle", 4, 4, 1, {});
  assert.equal(text.slice(start, end), "red");
});

test("settings say how large a step is and where words end", () => {
  assert.equal(fw.reweighted("a red", 3, 3, 1, { keyedit_precision_attention: 0.25 }).text, "a (red:1.25)");
  assert.equal(fw.reweighted("a-red", 3, 3, 1, { keyedit_delimiters: "-" }).text, "a-(red:1.1)");
});

test("elements move between commas, not beyond the ends", () => {
  assert.equal(fw.withElementMoved("one, two, three", 6, -1).text, "two, one, three");
  assert.equal(fw.withElementMoved("one, two, three", 1, 1).text, "two, one, three");
  assert.equal(fw.withElementMoved("one, two", 1, -1), null);
});

test("brackets are counted without escaped ones", () => {
  assert.equal(fw.unbalanced("a \\( (cat)"), "");
  assert.equal(fw.unbalanced("a (cat"), "1 round bracket(s) not closed");
  assert.equal(fw.unbalanced("a cat]"), "1 square bracket(s) not opened");
});

test("only what differs is written, so that one step back undoes it", () => {
  const pairs = [["a red cat", "a (red:1.1) cat"], ["abc", "abc"], ["", "x"], ["aaa", "aa"], ["one, two", "two, one"]];
  for (const [before, after] of pairs) {
    const { start, end, inserted } = fw.difference(before, after);
    assert.equal(before.slice(0, start) + inserted + before.slice(end), after);
  }
  assert.equal(fw.difference("abc", "abc").inserted, "");
});
