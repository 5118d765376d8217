// The first visit: five sentences about where things are. Left at any time, and never shown again by itself.
(() => {
  const fw = window.featherweight;
  const KEY = "featherweight.tour";
  const first = fw.tabs[0];
  const STEPS = [
    ["#setting_sd_model_checkpoint", fw.t`This is the model that makes your images. Put your own into the folder models/Stable-diffusion.`],
    [`#${first.id("prompt")}`, fw.t`Describe here what the image shows, or press one of the examples below.`],
    [`#${first.id("generate_box")}`, fw.t`Generate makes the image. The line below says how much memory the image will need.`],
    [`#${first.id("results")}`, fw.t`Your images appear here, with buttons to save them, make them larger and send them on. The tab History keeps all of them.`],
    ["#setting_fp8_storage", fw.t`Short of memory? FP8 weight halves the model. The tab Precision shows what that costs.`],
  ];
  let box = null;
  let place = 0;

  // A ring around what is spoken of. It lies over the page: elements around the marked one cut off what leaves them.
  let ring = null;
  let marked = null;

  function mark(element) {
    marked = element;
    element?.scrollIntoView({ block: "nearest" });
    if (!element) {
      ring?.remove();
      ring = null;
      return;
    }
    if (!ring) {
      ring = fw.element("div", { id: "fw_ring", attributes: { "aria-hidden": "true" } });
      (document.querySelector(".gradio-container") || document.body).append(ring);
      follow();
    }
  }

  function follow() {
    if (!ring) return;
    const around = marked.getBoundingClientRect();
    ring.hidden = around.width === 0;
    for (const [side, value] of Object.entries({ left: around.left - 4, top: around.top - 4, width: around.width + 8, height: around.height + 8 })) {
      ring.style[side] = `${value}px`;
    }
    requestAnimationFrame(follow);
  }

  function end() {
    localStorage.setItem(KEY, "done");
    mark(null);
    box?.remove();
    box = null;
    first.field("prompt")?.focus({ preventScroll: true });
  }

  function go(to) {
    place = to;
    if (place >= STEPS.length) return end();
    const [selector, text] = STEPS[place];
    mark(document.querySelector(selector));
    box.querySelector("p").textContent = text;
    box.querySelector("small").textContent = `${place + 1} / ${STEPS.length}`;
    box.querySelector("[data-go=back]").disabled = place === 0;
    box.querySelector("[data-go=next]").textContent = place + 1 < STEPS.length ? fw.t`Next` : fw.t`Done`;
  }

  fw.startTour = async () => {
    await fw.showTab(first.prefix);
    box?.remove();
    box = fw.element("aside", { id: "fw_tour", attributes: { role: "dialog", "aria-label": fw.t`A look around` } });
    const button = (go_, text) => {
      const made = fw.element("button", { type: "button", textContent: text });
      made.dataset.go = go_;
      return made;
    };
    const tools = fw.element("div", { className: "fw-tools" }, button("back", fw.t`Back`), button("next", fw.t`Next`), button("leave", fw.t`Leave`));
    box.append(fw.element("small"), fw.element("p", { attributes: { "aria-live": "polite" } }), tools);
    box.addEventListener("click", (event) => {
      const to = event.target.dataset.go;
      if (to === "leave") end();
      else if (to) go(place + (to === "next" ? 1 : -1));
    });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end();
    });
    (document.querySelector(".gradio-container") || document.body).append(box);
    go(0);
    box.querySelector("[data-go=next]").focus({ preventScroll: true });
  };

  // Not for programs that drive a browser, and not twice.
  fw.greet = () => {
    if (!navigator.webdriver && localStorage.getItem(KEY) === null) fw.startTour();
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#fw_start_tour")) fw.startTour();
    else if (box && event.isTrusted && event.target.closest?.(".fw-generate, #tabs > .tab-wrapper")) end(); // the visitor goes on alone
  });
})();
