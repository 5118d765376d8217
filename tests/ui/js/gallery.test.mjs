// The images of a job: what is on the stage, which one is selected, what a deletion leaves, where images are sent.
import assert from "node:assert/strict";
import test from "node:test";
import { load, plain, turn } from "./page.mjs";

const PATHS = ["gallery > .fw-stage", "gallery > .fw-thumbs", "infotext", "image_tools > a[data-do=download]", "image_tools > a[data-link=report]", "image_tools > button[data-do=remove][data-job=]",
  "image_tools > button[data-do=zip][data-job=]", "send_tools", "messages", "reuse_seed", "seed > input"];

const image = (seed, more = {}) => ({ infotext: `a cat\nSeed: ${seed}`, url: `image?id_task=a&index=${seed - 5}&v=1`, width: 8, height: 8, path: null, seed, role: "sample", ...more });

function page({ count = 3, drawn = async () => {}, ...options } = {}) {
  const Image = function Image() { return Object.assign(made.document.createElement("img"), { decode: drawn }); };
  const made = load(["send.js", "gallery.js"], { paths: PATHS.map((path) => `#one_${path}`), globals: { Image }, ...options });
  const tab = made.fw.tab("one");
  const said = () => made.find("#one_messages").textContent;
  tab.showResult({ task: "a", images: Array.from({ length: count }, (_, index) => image(index + 5)), notices: [], seconds: null });
  return { ...made, tab, said, stage: made.find("#one_gallery .fw-stage"), thumbs: () => made.find("#one_gallery .fw-thumbs").children };
}

test("keys walk through the images from the stage and from the thumbnails, around the ends", async () => {
  const { tab, stage, thumbs, find, document } = page();
  await turn();
  const press = (element, key) => element.dispatchEvent({ type: "keydown", key });
  for (const [key, seed] of [["ArrowRight", 6], ["ArrowDown", 7], ["ArrowRight", 5], ["ArrowLeft", 7]]) {
    press(stage.children[0], key);
    assert.equal(find("#one_infotext").textContent, `a cat\nSeed: ${seed}`);
    await turn();
  }
  press(thumbs()[2], "ArrowLeft");
  assert.equal(document.activeElement, thumbs()[1]);
  assert.deepEqual(thumbs().map((thumb) => thumb.getAttribute("aria-selected")), ["false", "true", "false"]);
  find("#one_reuse_seed").click();
  assert.equal(find("#one_seed input").value, "6");
  assert.equal(tab.selectedImage().seed, 6);
});

test("what was on the stage stays until the next image can be drawn, and a late one does not replace a newer one", async () => {
  const waiting = [];
  const { tab, stage } = page({ drawn: () => new Promise((resolve) => waiting.push(resolve)) });
  const draw = async (place) => {
    waiting[place]();
    await turn();
    return stage.children[0]?.children[0].src.match(/index=(\d)/)[1];
  };
  await turn();
  tab.step(1);
  tab.step(1);
  assert.match(stage.children[0].children[0].src, /index=0/, "an empty stage waits for nothing");
  assert.equal(await draw(1), "2");
  assert.equal(await draw(0), "2");
});

test("an image is deleted after a question, and those behind it are called by their new places", async () => {
  let answer = false;
  const { tab, find, said, thumbs, sent, window } = page({ replies: { "internal/delete-image": { trash: "outputs/trash" } } });
  window.confirm = () => answer;
  thumbs()[1].click();
  await thumbs()[1].dispatchEvent({ type: "keydown", key: "Delete" });
  assert.deepEqual(plain(sent), []);
  answer = true;
  thumbs()[1].dispatchEvent({ type: "keydown", key: "Delete" });
  await turn();
  assert.deepEqual(plain(sent), [["internal/delete-image", { id_task: "a", index: 1 }]]);
  assert.deepEqual(plain(tab.images().map(({ seed, index }) => [seed, index])), [[5, 0], [7, 1]]);
  assert.match(tab.images()[1].url, /index=1/);
  assert.equal(said(), "Moved to outputs/trash");
  assert.equal(find("#one_infotext").textContent, "a cat\nSeed: 7");
  for (const left of [1, 0]) {
    find("#one_image_tools [data-do=remove]").click();
    await turn();
    assert.equal(tab.images().length, left);
  }
  assert.ok(find("#one_image_tools").hidden);
});

test("an image that is made larger stands behind the one that it was made from", async () => {
  const { tab, make } = page({ replies: { "internal/hires-image": { task: "b" } } });
  Object.assign(tab, { isRunning: () => false, follow: () => {} });
  tab.selectImage(1);
  make("#one_image_tools button[data-do=upscale]").click();
  await turn();
  tab.showResult({ task: "b", images: [image(60)], notices: [], seconds: null });
  assert.deepEqual(plain(tab.images().map(({ seed }) => seed)), [5, 6, 60, 7]);
  assert.equal(tab.selectedImage().seed, 60);
});

test("of an image that the server knows nothing of, what only the server can do is not offered", () => {
  const { tab, find } = page();
  tab.showImages([image(5)], 0);
  assert.deepEqual(["remove", "zip"].map((name) => find(`#one_image_tools [data-do=${name}]`).hidden), [true, true]);
  assert.equal(find("#one_image_tools [data-do=download]").hidden, false);
});

test("a result without images leaves what there was, and an error is said", async () => {
  const { tab, stage, said } = page();
  tab.showPreview("data:preview");
  assert.equal(stage.children[0].className, "fw-preview");
  tab.showResult({ error: "Out of memory.", images: [], notices: [], seconds: null });
  await turn();
  assert.equal(stage.children[0].className, "fw-image");
  assert.equal(said(), "Out of memory.That job made no image. The image above is an earlier one.");
});

test("an image without parameters is not sent to a tab that takes parameters only", async () => {
  const { fw, make } = load(["send.js"], { tab: { takes: { one: "txt2img" } } });
  const row = make("#pnginfo_send");
  fw.offerTargets(row, "pnginfo", () => ({ url: "a", infotext: "" }));
  row.querySelector("#pnginfo_send_to_one").click();
  await turn();
  assert.equal(row.querySelector(".fw-message").textContent, "This image holds no parameters.");
  await assert.rejects(fw.send("two", {}), /no tab 'two'/);
});

test("downloads are named as the file on disk, with the ending of what is sent", () => {
  const { fw } = load(["gallery.js"]);
  assert.equal(fw.downloadName({ path: "/a/b\\00001-5.webp", seed: 5 }), "00001-5.png");
  assert.equal(fw.downloadName({ path: null, seed: 5 }), "5.png");
});

for (const [opened, said] of [[true, "Opening /a/b"], [false, "The folder is /a/b"]]) {
  test(`a folder is named where ${opened ? "it opens" : "no file manager opens it"}`, async () => {
    const { make, find } = page({ replies: { "internal/open-folder": { opened, folder: "/a/b" } } });
    make("#one_image_tools button[data-do=folder]").click();
    await turn();
    assert.equal(find("#one_messages").textContent, said);
  });
}
