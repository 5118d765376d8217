import assert from "node:assert/strict";
import test from "node:test";
import { Storage, load } from "./page.mjs";

class Observer {
  observe() {}
}

const GLOBALS = { Node: { TEXT_NODE: 3, ELEMENT_NODE: 1 }, MutationObserver: Observer, navigator: { languages: [] } };
GLOBALS.URLSearchParams = URLSearchParams;
GLOBALS.localStorage = new Storage();
GLOBALS.console = { warn: () => {} }; // the server of this test has no translations
const JOBS = "{0} {0:one=задание;few=задания;many=заданий;other=задания}.";

function speaking(name, texts) {
  const { fw } = load(["localization.js"], { globals: GLOBALS });
  fw.useLocalization({ name, texts, is_rtl: false, faults: [], available: [] });
  return Object.assign(fw.text, { t: fw.t });
}

test("a short text of a script with parts is looked up whole", () => {
  const { t } = speaking("de", { "Saved as {0}": "Gespeichert als {0}" });
  assert.deepEqual([t`Saved as ${"a.png"}`, t`Sent to ${"a"}`], ["Gespeichert als a.png", "Sent to a"]);
});

test("a word follows its number by the rules of the language", () => {
  const text = speaking("ru", { "{0} jobs.": JOBS });
  const said = ["1", "2", "5", "11", "21", "22", "1,001", "1.5"].map((number) => text(`${number} jobs.`).split(" ")[1]);
  assert.deepEqual(said, ["задание.", "задания.", "заданий.", "заданий.", "задание.", "задания.", "задание.", "задания."]);
});

test("several numbers have a word each, in any order, beside plain places", () => {
  const text = speaking("de", { "{0} of {1} images in {2}": "in {2}: {0} von {1} {1:one=Bild;other=Bildern}" });
  assert.equal(text("1 of 3 images in a/b"), "in a/b: 1 von 3 Bildern");
  assert.equal(text("1 of 1 images in a/b"), "in a/b: 1 von 1 Bild");
});

test("a translation whose name is no language still shows the general form", () => {
  assert.equal(speaking("my_words!", { "{0} jobs.": JOBS })("2 jobs."), "2 задания.");
});
