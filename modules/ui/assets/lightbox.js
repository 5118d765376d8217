// The whole image on the whole page: arrows, Esc, s saves.
(() => {
  const fw = window.featherweight;
  const TURN_MS = 180; // between two images, or one turn of a wheel would pass many
  const REST = 0.5; // a stick that is moved by less
  let turnedAt = 0;
  let box = null;
  let tab = null; // whose images are shown

  fw.isLightboxOpen = () => box !== null && box.open;

  fw.openLightbox = (owner) => {
    if (fw.settings.js_modal_lightbox === false) return;
    tab = owner;
    box = box || build();
    tab.find("output").append(box); // inside of the page's root: Gradio scopes our style sheet to it
    box.querySelector("img").classList.toggle("fw-zoomed", fw.settings.js_modal_lightbox_initially_zoomed === true);
    draw();
    box.showModal();
    followGamepad();
  };

  function build() {
    const made = document.createElement("dialog");
    made.id = "lightboxModal";
    made.setAttribute("aria-label", fw.t`Image`);
    made.innerHTML =
      fw.t`<button type="button" data-step="-1" aria-label="Previous image">‹</button>` +
      fw.t`<img alt=""><button type="button" data-step="1" aria-label="Next image">›</button>` +
      fw.t`<button type="button" class="fw-close" aria-label="Close">×</button>`;
    made.addEventListener("click", (event) => {
      const step = event.target.dataset && event.target.dataset.step;
      if (step) move(Number(step));
      else if (event.target.tagName === "IMG") event.target.classList.toggle("fw-zoomed");
      else made.close();
    });
    made.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") move(-1);
      if (event.key === "ArrowRight") move(1);
      if (event.key === "s") tab.find("image_tools", "[data-do=save]")?.click();
    });
    made.addEventListener("wheel", (event) => {
      if (event.ctrlKey || Date.now() - turnedAt < TURN_MS || tab.images().length < 2) return;
      turnedAt = Date.now();
      move(event.deltaY > 0 || event.deltaX > 0 ? 1 : -1);
    }, { passive: true });
    return made;
  }

  // A gamepad's stick or cross, while the viewer is open.
  function followGamepad() {
    if (!fw.isLightboxOpen()) return;
    if (fw.settings.js_modal_lightbox_gamepad && Date.now() - turnedAt >= fw.settings.js_modal_lightbox_gamepad_repeat) {
      const step = Math.sign(fw.gamepadDirection(navigator.getGamepads?.() || []));
      if (step) {
        turnedAt = Date.now();
        move(step);
      }
    }
    requestAnimationFrame(followGamepad);
  }

  // -1: to the left, 1: to the right, 0: at rest.
  fw.gamepadDirection = (pads) => {
    for (const pad of pads) {
      if (!pad) continue;
      if (pad.buttons[14]?.pressed || pad.axes[0] < -REST) return -1;
      if (pad.buttons[15]?.pressed || pad.axes[0] > REST) return 1;
    }
    return 0;
  };

  function move(step) {
    tab.selectImage(tab.images().indexOf(tab.selectedImage()) + step);
    draw();
  }

  function draw() {
    const item = tab.selectedImage();
    const image = box.querySelector("img");
    image.src = item.url;
    image.alt = item.infotext.split("\n")[0];
    box.classList.toggle("fw-single", tab.images().length < 2);
  }
})();
