// Reference images of img2img: files that are sent ahead, for models that see more than the image they start from.
(() => {
  const fw = window.featherweight;
  const tab = fw.tab("img2img");
  const MOUNT_MS = 200;
  const KEPT = "references";

  if (!tab) return;

  let images = fw.keptList(KEPT); // {name, key} or {name, error}

  // Their keys, for the form; throws a sentence where one could not be sent.
  tab.referenceKeys = () => {
    const bad = images.find((image) => !image.key);
    if (bad) throw new Error(bad.error);
    return images.map((image) => image.key);
  };

  function mount() {
    const place = document.querySelector(".fw-references:not([data-mounted])");
    if (!place) return;
    place.dataset.mounted = "";
    const name = fw.t`Reference images: choose files`;
    place.replaceChildren(...fw.uploadList({ name, listClass: "fw-reference-list", add, clear: () => keep([]) }));
    keep(images);
  }

  async function add(files) {
    for (const file of files) {
      try {
        const { key } = await tab.upload(file);
        keep([...images, { name: file.name, key }]);
      } catch (error) {
        keep([...images, { name: file.name, error: error.message }]);
      }
    }
  }

  function keep(now) {
    images = now;
    fw.keep(KEPT, JSON.stringify(images));
    const place = document.querySelector(".fw-references");
    place.querySelector(".fw-reference-list").replaceChildren(...images.map(shown));
    place.querySelector(".fw-batch-clear").hidden = !images.length;
  }

  function shown(image) {
    if (!image.key) return fw.element("li", { textContent: image.error, className: "fw-bad" });
    const picture = fw.element("img", { src: `internal/upload/${image.key}`, alt: image.name });
    const button = fw.element("button", { type: "button", textContent: fw.t`Remove`, title: image.name });
    button.addEventListener("click", () => keep(images.filter((other) => other !== image)));
    return fw.element("li", {}, picture, button);
  }

  setInterval(mount, MOUNT_MS);
})();
