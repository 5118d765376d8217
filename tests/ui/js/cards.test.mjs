// Cards of models: which are shown, in what order, what a press does to the prompts.
import assert from "node:assert/strict";
import test from "node:test";
import { load, plain, turn } from "./page.mjs";

const PANEL = ".fw-networks[data-tab=one][data-page=lora]";
const PARTS = [".fw-cards", "input[type=search]", "select", ".fw-networks-folders", ".fw-networks-count", ".fw-networks-status", "button[data-do=direction]", "button[data-do=folders]"];
const SETTINGS = { extra_networks_hidden_models: "When searched", extra_networks_card_show_desc: true, extra_networks_dir_button_function: false };

const card = (name, more = {}) => ({ key: name, name, folder: "", search: name, prompt: `<lora:${name}:1>`, tag: `<lora:${name}>`, tag_types: ["lora"], stamp: "0", created: 0, modified: 0, description: "", ...more });
const INK = card("ink", { folder: "styles", prompt: "<lora:Ink:0.7>", tag: "<lora:Ink>", activation: "ink drawing", negative: "photo" });
const MANY = Array.from({ length: 40 }, (_, index) => card(`plain ${index}`, { folder: "many", search: `many/plain ${index}` }));
const CARDS = [INK, card("old", { folder: ".attic" }), card("large", { version: "SDXL" }), ...MANY];

async function page(list = {}) {
  const reply = { cards: CARDS, settings: SETTINGS, version: "", others: { hides: true, without_unknown: [] }, folders: ["models/Lora"], suffixes: [".safetensors"], ...list };
  const paths = ["#one_prompt > textarea", "#one_neg_prompt > textarea", ...PARTS.map((part) => `${PANEL} > ${part}`), "button[role=tab][data-tab-id=one_lora]"];
  const made = load(["safe_html.js", "card_prompt.js", "cards.js"], { paths, replies: { "internal/extra-networks": reply } });
  made.find(PANEL).querySelector("select").value = "Path";
  made.find("button[role=tab]").click();
  await new Promise((resolve) => setTimeout(resolve, 5));
  const search = made.find("input[type=search]");
  const shown = () => made.find(".fw-cards").children.filter((one) => one.matches(".card"));
  const press = async (selector) => {
    made.find(selector).click();
    await turn();
  };
  return {
    ...made, press, shown, names: () => shown().map((one) => one.dataset.name), count: () => made.find(".fw-networks-count").textContent,
    prompt: made.find("#one_prompt textarea"), negative: made.find("#one_neg_prompt textarea"),
    look: (text) => { search.value = text; return search.dispatchEvent({ type: "input" }); },
  };
}

test("as many cards are drawn as are looked at, and more when the box is scrolled", async () => {
  const { shown, find } = await page();
  const drawn = shown().length;
  assert.ok(drawn < MANY.length);
  Object.assign(find(".fw-cards"), { scrollHeight: 1000, scrollTop: 900, clientHeight: 100 });
  find(".fw-cards").dispatchEvent({ type: "scroll" });
  assert.ok(shown().length > drawn);
});

test("cards are searched by words, sorted by natural order, and chosen by folder; hidden folders need a search", async () => {
  const { look, names, count, press, find } = await page();
  await look("plain 1");
  assert.equal(count(), "13 of 43"); // 1, 10 to 19, 21 and 31
  find("select").value = "Name";
  find("select").dispatchEvent({ type: "change" });
  assert.deepEqual(names().slice(0, 3), ["plain 1", "plain 10", "plain 11"]);
  await press("[data-do=direction]");
  assert.equal(names()[0], "plain 31");
  await press("[data-do=direction]");
  await press(".fw-networks-folders [data-search='styles/']");
  assert.deepEqual(names(), ["ink"]);
  await press(".fw-networks-folders [data-search='']");
  assert.ok(!names().includes("old"));
  await look(".att");
  assert.deepEqual(names(), ["old"]);
  await look("nothing of this name");
  assert.equal(find(".fw-cards").getAttribute("role"), "group", "a list without items would be none");
  assert.match(find(".fw-cards-empty").textContent, /No card matches all of these words/);
});

test("adapters for other models are hidden until asked for", async () => {
  const { look, names, press, count } = await page({ version: "SD1" });
  await look("large");
  assert.deepEqual(names(), []);
  assert.match(count(), /show 1 for other models/);
  await press("[data-do=others]");
  assert.deepEqual(names(), ["large"]);
});

test("an empty page of cards says where files go", async () => {
  const { find } = await page({ cards: [] });
  assert.equal(find(".fw-cards-empty").textContent, "No files yet. Put .safetensors files into models/Lora and press ↻.");
});

test("a press puts a card's tag and words into the prompts, another takes them out with any weight", async () => {
  const { look, press, prompt, negative, find } = await page();
  await look("ink");
  prompt.value = "a cat";
  await press(".card .fw-card-use");
  assert.deepEqual([prompt.value, negative.value], ["a cat <lora:Ink:0.7> ink drawing", "photo"]);
  assert.equal(find(".fw-card-use").getAttribute("aria-pressed"), "true");
  prompt.value = "a cat <lora:Ink:1.2:0.5> ink drawing, on a roof";
  await press(".card .fw-card-use");
  assert.deepEqual([prompt.value, negative.value], ["a cat, on a roof", ""]);
  assert.equal(find(".fw-card-use").getAttribute("aria-pressed"), "false");
});

test("an embedding goes where the cursor was, and is told from words that hold its name", async () => {
  const { fw, negative } = await page();
  const hands = { prompt: "bad-hands", activation: "", negative: "" };
  negative.value = "blurry";
  negative.dispatchEvent({ type: "focusin" });
  assert.ok(fw.toggleCard("one", hands));
  assert.equal(negative.value, "blurry bad-hands");
  for (const [before, after] of [["bad-hands-2 (bad-hands:1.2), blurry", "bad-hands-2, blurry"], ["other-bad-hands bad-hands", "other-bad-hands"]]) {
    negative.value = before;
    assert.ok(!fw.toggleCard("one", hands));
    assert.equal(negative.value, after);
  }
});

test("a file for few steps offers them once it is used, and sets them on its badge", async () => {
  const few = { label: "LCM: 6 steps", values: "6 steps, CFG 1", steps: 6 };
  const { fw, press, find } = await page({ cards: [card("lcm", { few_steps: few })] });
  const asked = [];
  Object.assign(fw.tab("one"), { hasSteps: () => false, takeSteps: (wanted) => asked.push(plain(wanted)) });
  await press(".card .fw-card-use");
  assert.match(find(".fw-networks-status").textContent, /lcm is made for few steps/);
  await press(".fw-networks-status button");
  await press(".fw-card-steps");
  assert.deepEqual(asked, [few, few]);
});

test("what of each LoRA was kept is shown, and the layers that kept least", () => {
  const { fw, make } = load(["retention.js"]);
  const messages = make("#one_messages");
  fw.tab("one").showRetention({ retention: 0.9, noise: 0.2, adapters: [["ink", 0.9981], ["pen", 0.41], ["x", 1]], worst: [["mid.to_q", 0.2], ["mid.to_k", 0.99]] });
  const text = messages.textContent;
  for (const part of ["LoRA ink: applied, 99.8 % of its effect kept", "LoRA pen: applied, 41.0 %", "LoRA x: applied, 100 % of its effect kept", "noise 20.0 %"]) assert.ok(text.includes(part), part);
  assert.match(text, /Worst layers: mid\.to_q 20\.0 %$/);
});
