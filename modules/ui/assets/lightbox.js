// The whole image on the whole page: arrows, Esc, s saves.
(() => {
  const fw = window.featherweight;
  let box = null;

  fw.isLightboxOpen = () => box !== null && box.open;

  fw.openLightbox = () => {
    if (fw.settings.js_modal_lightbox === false) return;
    if (!box) {
      box = document.createElement("dialog");
      box.id = "lightboxModal";
      box.setAttribute("aria-label", "Image");
      box.innerHTML =
        '<button type="button" data-step="-1" aria-label="Previous image">‹</button>' +
        '<img alt=""><button type="button" data-step="1" aria-label="Next image">›</button>' +
        '<button type="button" class="fw-close" aria-label="Close">×</button>';
      box.addEventListener("click", (event) => {
        const step = event.target.dataset && event.target.dataset.step;
        if (step) move(Number(step));
        else if (event.target.tagName !== "IMG" || event.target.classList.toggle("fw-zoomed") === undefined) box.close();
      });
      box.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft") move(-1);
        if (event.key === "ArrowRight") move(1);
        if (event.key === "s") document.querySelector("#txt2img_image_tools [data-do=save]")?.click();
      });
      document.querySelector("#txt2img_output").append(box); // inside of the page's root: Gradio scopes our style sheet to it
    }
    box.querySelector("img").classList.toggle("fw-zoomed", fw.settings.js_modal_lightbox_initially_zoomed === true);
    draw();
    box.showModal();
  };

  function move(step) {
    const images = fw.images();
    const index = images.indexOf(fw.selectedImage());
    fw.selectImage(index + step);
    draw();
  }

  function draw() {
    const image = fw.selectedImage();
    const image = box.querySelector("img");
    image.src = image.url;
    image.alt = image.infotext.split("\n")[0];
    box.classList.toggle("fw-single", fw.images().length < 2);
  }
})();
