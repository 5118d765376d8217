import assert from "node:assert/strict";
import test from "node:test";
import { load, turn } from "./page.mjs";

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
  assert.equal(down("a <lora:x:1> cat", 5), "a <lora:x:0.95> cat");
  assert.equal(up("a [red] cat", 4), "a red cat");
  assert.equal(up("a (red:0.9) cat", 4), "a red cat");
  assert.equal(down("(a:1.2) cat", 9), "(a:1.2) (cat:0.9)");
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
  assert.equal(fw.unbalanced("a {cat"), "1 curly bracket(s) not closed");
  assert.notEqual(fw.unbalanced("a \\\\(cat"), "", "the backslash is escaped, the bracket is not");
  for (const text of ["a > b <3", "a \\(cat", "(a [b])"]) assert.equal(fw.unbalanced(text), "");
});

test("only what differs is written, so that one step back undoes it", () => {
  const pairs = [["a red cat", "a (red:1.1) cat"], ["abc", "abc"], ["", "x"], ["aaa", "aa"], ["one, two", "two, one"]];
  for (const [before, after] of pairs) {
    const { start, end, inserted } = fw.difference(before, after);
    assert.equal(before.slice(0, start) + inserted + before.slice(end), after);
  }
  assert.equal(fw.difference("abc", "abc").inserted, "");
});

// -- the boxes -------------------------------------------------------------------------------------------------------

const BOXES = ["#one_prompt > textarea", "#one_neg_prompt > textarea", "#one_messages", "#one_paste", "#one_steps > input"];

function page(options) {
  const made = load(["prompt_text.js", "prompt.js"], { paths: BOXES, ...options });
  const area = made.find("#one_prompt textarea");
  const press = (key, keys) => area.dispatchEvent({ type: "keydown", key, ...keys });
  return { ...made, area, press, tab: made.fw.tab("one"), counter: () => made.find("#one_prompt .fw-counter") };
}

test("Ctrl with arrows weighs the word at the cursor, Alt with arrows moves its element", () => {
  const { area, press } = page();
  area.value = "one, a red circle";
  area.setSelectionRange(8, 8);
  for (const [key, keys, after] of [
    ["ArrowUp", { ctrlKey: true }, "one, a (red:1.1) circle"], ["ArrowUp", { metaKey: true }, "one, a (red:1.2) circle"], ["ArrowDown", { ctrlKey: true }, "one, a (red:1.1) circle"],
    ["ArrowDown", { ctrlKey: true }, "one, a red circle"], ["ArrowLeft", { altKey: true }, "a red circle, one"], ["ArrowUp", {}, "a red circle, one"],
  ]) {
    press(key, keys);
    assert.equal(area.value, after);
  }
});

test("tokens are counted with steps and chosen styles; brackets that do not match are marked", async () => {
  const { area, tab, counter, make, sent, find } = page({ replies: { "internal/token-count": ({ text }) => ({ text: `${text.split(" ").length}/75` }) } });
  tab.countTokens();
  assert.equal(counter().textContent, "0/75");
  make("#one_styles > .token > span").textContent = "oil";
  find("#one_steps input").value = "30";
  area.value = "a (cat";
  tab.countTokens();
  await turn();
  assert.equal(counter().textContent, "2/75");
  assert.ok(counter().classList.contains("fw-bad"));
  assert.deepEqual(sent.at(-2)[1], { text: "a (cat", steps: 30, styles: ["oil"], is_negative: false });
  const asked = sent.length;
  tab.countTokens();
  assert.equal(sent.length, asked, "nothing has changed");
});

for (const isRefused of [false, true]) {
  test(`a late count of an older prompt is not shown when it is ${isRefused ? "refused" : "counted"}`, async () => {
    let answer = null;
    const late = new Promise((resolve) => { answer = resolve; });
    const replies = { "internal/token-count": ({ text }) => (text.includes("older") ? late : { text: "2/75" }) };
    const { area, tab, counter } = page({ replies });
    for (const text of ["an older prompt", "a cat"]) {
      area.value = text;
      tab.countTokens();
    }
    await turn();
    answer(isRefused ? new Error("refused") : { text: "3/75" });
    await turn();
    assert.equal(counter().textContent, "2/75");
  });
}

test("the parameters of a dropped image are pasted; one without says so", async () => {
  class FileReader {
    readAsDataURL(file) { this.result = file.text; this.onload(); }
  }
  const replies = { "sdapi/v1/png-info": ({ image }) => ({ info: image }) };
  const { area, find } = page({ replies, globals: { FileReader } });
  const drop = (file) => area.dispatchEvent({ type: "drop", dataTransfer: { files: [{ text: file }] } });
  drop("a dog\nSteps: 7");
  await turn();
  assert.equal(area.value, "a dog\nSteps: 7");
  drop("");
  await turn();
  assert.equal(find("#one_messages").textContent, "This image holds no parameters.");
});
