// Reference images of a form: files that are sent ahead, for models that see more than the image they start from.
(() => {
  const fw = window.featherweight;
  const MOUNT_MS = 200;
  const DRAGGED = "text/x-fw-reference";

  // One form's list, in the place that the form has for it.
  function follow(tab) {
    const kept = `references.${tab.prefix}`;
    const inside = (what) => `.fw-references[data-tab="${tab.prefix}"]${what}`;
    let images = fw.keptList(kept); // {name, key} or {name, error}

    // Their keys, for the form; throws a sentence where one could not be sent.
    tab.referenceKeys = () => {
      const bad = images.find((image) => !image.key);
      if (bad) throw new Error(bad.error);
      return images.map((image) => image.key);
    };

    // What a form that starts from no image is sent with.
    if (!Object.hasOwn(tab, "pictures")) {
      tab.pictures = () => {
        try {
          const references = tab.referenceKeys();
          return references.length ? JSON.stringify({ references }) : "";
        } catch (error) {
          return JSON.stringify({ error: error.message });
        }
      };
    }

    function mount() {
      const place = document.querySelector(inside(":not([data-mounted])"));
      if (!place) return;
      place.dataset.mounted = "";
      const name = fw.t`Reference images: choose files`;
      place.replaceChildren(...fw.uploadList({ name, listClass: "fw-reference-list", add, clear: () => keep([]) }));
      keep(images);
    }

    async function add(files) {
      for (const file of files) {
        try {
          const { key } = await fw.upload(file);
          keep([...images, { name: file.name, key }]);
        } catch (error) {
          keep([...images, { name: file.name, error: error.message }]);
        }
      }
    }

    function keep(now) {
      images = now;
      fw.keep(kept, JSON.stringify(images));
      const place = document.querySelector(inside(""));
      place.querySelector(".fw-reference-list").replaceChildren(...images.map(shown));
      place.querySelector(".fw-batch-clear").hidden = !images.length;
    }

    function shown(image) {
      const button = fw.element("button", { type: "button", textContent: fw.t`Remove`, title: image.name });
      button.addEventListener("click", () => keep(images.filter((other) => other !== image)));
      if (!image.key) return fw.element("li", { className: "fw-bad" }, image.error, button);
      const picture = fw.element("img", { src: `internal/upload/${image.key}`, alt: image.name, draggable: false });
      const at = images.indexOf(image);
      const earlier = fw.element("button", { type: "button", textContent: "←", disabled: at === 0 });
      earlier.setAttribute("aria-label", fw.t`${image.name}: further up`);
      earlier.addEventListener("click", () => keep(moved(image, at - 1)));
      const made = fw.element("li", { draggable: true }, picture, earlier, button);
      made.addEventListener("dragstart", (event) => event.dataTransfer.setData(DRAGGED, String(at)));
      made.addEventListener("dragover", (event) => event.dataTransfer.types.includes(DRAGGED) && event.preventDefault());
      made.addEventListener("drop", (event) => {
        const other = images[event.dataTransfer.getData(DRAGGED) || images.length];
        if (!other) return;
        event.preventDefault();
        event.stopPropagation();
        keep(moved(other, at));
      });
      return made;
    }

    // The images with one at another place: models count them, as in "Picture 2".
    function moved(image, place) {
      const others = images.filter((other) => other !== image);
      return [...others.slice(0, place), image, ...others.slice(place)];
    }

    setInterval(mount, MOUNT_MS);
  }

  fw.tabs.forEach(follow);
})();
