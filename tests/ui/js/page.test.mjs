// What stands around the forms: size and scales of the model, tabs that are shown, tips, the tour, notices, settings.
import assert from "node:assert/strict";
import test from "node:test";
import { Storage, load, plain, turn } from "./page.mjs";

const ENGINE = { settings: {}, state: "ready", line: "SD 1.x · 1 GB", pending: "", facts: "x", hashing: "", is_bundled: true, size: 512, usual: "" };
const TAB_PARTS = ["width > input", "height > input", "gallery > .fw-stage", "generate"].map((name) => `#one_${name}`);
const soon = (run, ms) => (ms < 100 ? setImmediate(run) : setTimeout(run, ms).unref()); // what is asked again and again ends with the test

function started({ engine = {}, kept, paths = [] } = {}) {
  const session = new Storage();
  if (kept) session.setItem("featherweight.form.one", kept);
  const reply = { ...ENGINE, ...engine };
  const made = load(["panels.js", "find.js", "presets.js", "form.js", "progress.js", "prompt.js", "uploads.js", "notices.js", "tour.js", "start.js"], {
    replies: { "internal/engine": reply }, stores: { session }, paths: ["#fw_scales", ...TAB_PARTS, ...paths],
    globals: { setTimeout: soon, matchMedia: () => ({ matches: false }), URLSearchParams, navigator: { webdriver: true } },
  });
  for (const name of ["width", "height"]) made.find(`#one_${name} input`).value = "512";
  const size = () => ["width", "height"].map((name) => made.find(`#one_${name} input`).value).join("x");
  return { ...made, reply, size, scales: made.find("#fw_scales") };
}

test("a size that nobody chose follows the model, a chosen one and one of the user's defaults stay", async () => {
  const { reply, tick, size, find } = started();
  await tick();
  for (const [model, height, after] of [[1024, null, "1024x1024"], [512, "640", "512x640"], [1024, null, "1024x640"]]) {
    if (height) find("#one_height input").value = height;
    reply.size = model;
    await tick();
    assert.equal(size(), after);
  }
  find("#one_width").classList.add("fw-configured");
  reply.size = 512;
  await tick();
  assert.equal(size(), "1024x640");
});

test("the header says what the model is, what waits, what is being hashed, and when the server is silent", async () => {
  const { reply, tick, scales } = started({ engine: { pending: "changes to 8 bits after this job", hashing: "hash of x 50 %" } });
  await tick();
  assert.equal(scales.textContent, "SD 1.x\u00a0· 1 GB\u00a0· changes to 8 bits after this job");
  assert.equal(scales.dataset.hashing, "hash of x 50 %");
  Object.assign(reply, { state: "loading", message: "loading x" });
  await tick();
  assert.deepEqual([scales.textContent, scales.className], ["loading x", "fw-loading"]);
  delete reply.settings; // no answer that can be read
  reply.line = undefined;
  Object.defineProperty(reply, "toJSON", { value: () => { throw new Error("refused"); } });
  await tick();
  assert.deepEqual([scales.textContent, scales.className], ["The server does not answer.", "fw-failed"]);
});

test("a tab is shown once the form that was kept for it is back: it would show the sub tab that was kept with it", async () => {
  const { fw, make } = started({ kept: '{"fields": {}}' });
  const clicks = [];
  for (const name of ["tab_one", "one_inpaint_tab"]) {
    const shown = make(`#${name}`);
    shown.hidden = true;
    make(`button#${name}-button`).addEventListener("click", () => {
      if (clicks.push(name) !== 4) shown.hidden = false; // Gradio, which builds the tab, takes up the kept sub tab after the first press
    });
  }
  const tab = fw.tab("one");
  make("#one_keep").addEventListener("click", () => clicks.push("keep") && tab.keepForm([]));
  make("#one_restore").addEventListener("click", () => clicks.push("restore"));
  const shown = fw.showTab("one", "one_inpaint_tab");
  await turn();
  assert.deepEqual(clicks, ["keep", "restore"]);
  tab.keepForm([]); // as the server has put it back
  await shown;
  assert.deepEqual(clicks.slice(2), ["tab_one", "one_inpaint_tab", "one_inpaint_tab"]);
});

test("a tab that the user chooses meanwhile is not taken back", async () => {
  const { fw, make, fire } = started();
  make("#tab_one").hidden = true;
  let presses = 0;
  make("button#tab_one-button").addEventListener("click", () => (presses += 1));
  fw.tab("one").hasKeptForm = false;
  const shown = fw.showTab("one");
  await turn();
  await fire("click", { isTrusted: true });
  await shown;
  assert.equal(presses, 1);
});

test("buttons that show a sign have a name", async () => {
  const { make, tick } = started();
  const swap = make("button#one_swap");
  swap.textContent = "⇅";
  await tick();
  assert.equal(swap.title, "Swap width and height");
  assert.equal(swap.getAttribute("aria-label"), "Swap width and height");
  assert.ok(swap.classList.contains("fw-icon-swap"));
});

test("a tip appears by pointer and by focus, tells readers, and leaves with Escape or a press", async () => {
  const run = [];
  const { fw, make, find, fire } = load(["tooltips.js"], { globals: { setTimeout: (show) => run.push(show), clearTimeout: () => run.splice(0) } });
  fw.help = { one_cfg_scale: "How closely the image follows the prompt.", one_steps: "More steps: more time." };
  const [cfg, steps, other] = ["#one_cfg_scale > input", "#one_steps > input", "#one_other > input"].map(make);
  const over = (target, x) => target.dispatchEvent({ type: "pointerover", pointerType: "mouse", clientX: x, clientY: 0 });
  const shown = () => run.splice(0).forEach((show) => show());
  over(cfg, 1);
  shown();
  assert.equal(find("#fw_tip").textContent, "How closely the image follows the prompt.");
  assert.equal(cfg.getAttribute("aria-describedby"), "fw_tip");
  await fire("keydown", { key: "Escape" });
  assert.equal(find("#fw_tip"), null);
  steps.dispatchEvent({ type: "focusin" });
  shown();
  assert.equal(find("#fw_tip").textContent, "More steps: more time.");
  steps.dispatchEvent({ type: "pointerdown" });
  assert.equal(find("#fw_tip"), null);
  over(steps, 2);
  shown();
  assert.equal(find("#fw_tip"), null, "who presses a control knows it");
  over(other, 3);
  over(steps, 4);
  shown();
  assert.ok(find("#fw_tip"));
  cfg.dispatchEvent({ type: "pointerover", pointerType: "touch" });
  assert.ok(find("#fw_tip"));
});

test("the tour has five steps, is shown once, not to programs, and can be asked for again", async () => {
  const navigator = { webdriver: true };
  const { fw, make, find } = load(["tour.js"], { globals: { navigator, requestAnimationFrame: () => {} } });
  fw.showTab = async () => {};
  for (const id of ["setting_sd_model_checkpoint", "one_prompt > textarea", "one_generate_box", "one_results", "setting_fp8_storage"]) make(`#${id}`);
  fw.greet();
  await turn();
  assert.equal(find("#fw_tour"), null);
  navigator.webdriver = false;
  fw.greet();
  await turn();
  for (let place = 1; place <= 5; place += 1) {
    assert.equal(find("#fw_tour small").textContent, `${place} / 5`);
    find("#fw_tour [data-go=next]").click();
  }
  assert.equal(find("#fw_tour"), null);
  fw.greet();
  await turn();
  assert.equal(find("#fw_tour"), null);
  make("button#fw_start_tour").click();
  await turn();
  find("#fw_tour").dispatchEvent({ type: "keydown", key: "Escape" });
  assert.equal(find("#fw_tour"), null);
});

test("what the server says about itself stands above the tabs, with what was left out of the page", async () => {
  const { fw, make } = load(["notices.js"], { replies: { "internal/notices": ["styles.csv could not be read."] } });
  fw.pageFaults = ["user.css was left out."];
  const place = make("#fw_notices");
  await fw.showNotices();
  assert.deepEqual(place.children.map((one) => one.textContent), ["styles.csv could not be read.", "user.css was left out."]);
});

// -- settings --------------------------------------------------------------------------------------------------------

const setting = (key, label, more = {}) => ({ key, label, id: `setting_${key}`, type: "bool", value: false, initial: false, hint: "", is_locked: false, minimum: null, maximum: null, step: null, choices: [], ...more });
const SECTIONS = [
  { settings: [setting("samples_save", "Always save"), setting("samples_format", "File format", { type: "text", value: "webp", initial: "png" })] },
  { settings: [setting("clip_skip", "Clip skip", { type: "int", value: 1, initial: 1, minimum: 1, maximum: 12, step: 1 })] },
];

async function settings() {
  const saved = { clip_skip: 1, samples_save: true, samples_format: "webp" };
  const replies = { "internal/settings": (sent) => (sent ? { values: { ...saved, ...sent.values }, html: "Saved" } : { sections: SECTIONS }) };
  const paths = ["settings_nothing", "settings_unsaved", "settings_result", "input#settings_search"].map((one) => `#tab_settings > ${one.startsWith("input") ? one : `#${one}`}`);
  const made = load(["settings_fields.js", "settings.js"], { replies, paths });
  for (const [place, title] of [["0", "Saving"], ["1", "Stable Diffusion"]]) {
    const section = made.document.createElement("div");
    section.className = "fw-section";
    section.append(made.fw.element("h2", { textContent: title }));
    made.find("#tab_settings").append(section, made.fw.element("button", { textContent: title, dataset: { place } }));
  }
  await made.tick();
  await turn();
  const isShown = (key) => made.find(`#setting_${key}`).checkVisibility() && made.find(`#setting_${key}`).parentElement.style.display !== "none";
  const look = (text) => { made.find("#settings_search").value = text; made.find("#settings_search").dispatchEvent({ type: "input" }); };
  return { ...made, isShown, look };
}

test("settings are shown a page at a time, and found over all pages by word, key and title", async () => {
  const { isShown, look, find } = await settings();
  assert.deepEqual(["samples_save", "clip_skip"].map(isShown), [true, false]);
  for (const [text, shown] of [["clip skip", [false, true]], ["clip_skip", [false, true]], ["saving", [true, false]], ["no such words", [false, false]], ["", [true, false]]]) {
    look(text);
    assert.deepEqual(["samples_save", "clip_skip"].map(isShown), shown, text);
    assert.equal(find("#settings_nothing").hidden, text !== "no such words");
  }
  find("[data-place='1']").click();
  assert.deepEqual(["samples_save", "clip_skip"].map(isShown), [false, true]);
});

test("what is not at its default is marked, what is not saved is counted, and only that is sent", async () => {
  const { find, sent, make } = await settings();
  assert.equal(find("#setting_samples_format > .fw-mark").title, 'Changed; the default is "png"');
  assert.equal(find("#setting_clip_skip > .fw-mark"), null);
  const box = find("#setting_samples_save input");
  for (const [isOn, said] of [[true, "1 change is not saved"], [false, ""], [true, "1 change is not saved"]]) {
    box.checked = isOn;
    box.dispatchEvent({ type: "change" });
    assert.equal(find("#settings_unsaved").textContent, said);
  }
  make("#tab_settings button[data-act=save]").click();
  await turn();
  assert.deepEqual(plain(sent.at(-1)), ["internal/settings", { values: { samples_save: true } }]);
  assert.equal(find("#settings_unsaved").textContent, "");
  assert.ok(find("#setting_samples_save > .fw-mark"));
});
