// Finding controls by their words, and what a preset says of fields that this version has or has not.
import assert from "node:assert/strict";
import test from "node:test";
import { load, plain } from "./page.mjs";

const part = (id, type, props = {}) => ({ id, type, props });
const CONFIG = {
  components: [
    part(1, "tabitem", { elem_id: "tab_one", label: "one" }), part(2, "accordion", { label: "FreeU" }), part(3, "checkbox", { label: "Enable" }),
    part(4, "slider", { label: "Backbone 1", info: "of the first stage" }), part(5, "slider", { label: "Hidden", visible: "hidden" }),
    part(6, "dropdown", { label: "Script", elem_id: "one_script_list", choices: [["None", "None"], ["X/Y/Z plot", "X/Y/Z plot"]] }),
    part(7, "accordion", { label: "APG" }), part(8, "checkbox", { label: "Enable" }), part(9, "button", { value: "Keep", elem_id: "one_keep" }),
    part(10, "checkbox", { label: "Enable" }),
  ],
  dependencies: [{ targets: [[9, "click"]], inputs: [4, 6, 3, 10, 8] }],
  layout: { id: 0, children: [{ id: 1, children: [{ id: 6 }, { id: 2, children: [{ id: 3 }, { id: 4 }, { id: 5 }, { id: 10 }] }, { id: 7, children: [{ id: 8 }] }] }, { id: 9 }] },
};
const { fw } = load(["panels.js", "find.js", "presets.js"]);
const found = (words, shown) => plain(fw.search(fw.controlsOf(CONFIG), words, shown).map((one) => [one.title, one.path.map((place) => place.title).join("/")]));

test("controls are found by their names, their places and what is said of them; hidden ones are not", () => {
  assert.deepEqual(found("back"), [["Backbone 1", "one/FreeU"]]);
  assert.deepEqual(found("first stage"), [["Backbone 1", "one/FreeU"]]);
  assert.deepEqual(found("enable apg"), [["Enable", "one/APG"]]);
  assert.deepEqual(found("x/y"), [["X/Y/Z plot", "one/Script"]]);
  assert.deepEqual([found("hidden"), found("  "), found("nothing of the kind")], [[], [], []]);
});

test("the fields of scripts are named by their folds, and fields of one name are numbered", () => {
  assert.deepEqual(plain(fw.scriptFields(CONFIG, "one", 1)), ["Script", "FreeU/Enable", "FreeU/Enable #2", "APG/Enable"]);
});

test("a preset changes what it names, leaves the rest as it is, and names what is unknown", () => {
  const names = ["Script", "FreeU/Enable", "APG/Enable"];
  const preset = { fields: { steps: 9 }, scripts: { "APG/Enable": true, "Gone/<b>Size": 2 } };
  const { kept, unknown } = plain(fw.presetForm(preset, names, ["None", true, false]));
  assert.deepEqual(kept, { fields: { steps: 9 }, others: ["None", true, true] });
  assert.deepEqual(unknown, ["Gone/<b>Size"]);
  assert.deepEqual(plain(fw.presetForm({ fields: {} }, names, [])).kept.others, [null, null, null]);
});
