// Images of a job: a stage, thumbnails, tools, the infotext of the selected one.
(() => {
  const fw = window.featherweight;
  let result = null;
  let selected = 0;

  fw.images = () => (result ? result.images : []);
  fw.selectedImage = () => (result ? result.images[selected] : null);
  fw.selectImage = select;

  fw.showPreview = (uri) => {
    if (fw.settings.do_not_show_images) return;
    const stage = document.querySelector("#txt2img_gallery .fw-stage");
    if (!stage) return;
    let image = stage.querySelector("img.fw-preview");
    if (!image) {
      image = new Image();
      image.className = "fw-preview";
      image.alt = "Preview of the image being made";
      stage.replaceChildren(image);
    }
    image.src = uri;
  };

  fw.showResult = (data) => {
    fw.clearMessages();
    if (data.error) fw.message(data.error, true);
    for (const notice of data.notices) fw.message(notice, false);
    fw.showSurvival(data.retention);
    if (data.seconds !== null && data.images.length) fw.message(`Time taken: ${data.seconds} s`, false);
    if (!data.images.length) {
      if (!result) document.querySelector("#txt2img_gallery .fw-stage")?.replaceChildren();
      return;
    }
    if (fw.settings.do_not_show_images) {
      fw.message(`${data.images.length} finished; the settings say not to show images.`, false);
      return;
    }
    result = data;
    const thumbs = document.querySelector("#txt2img_gallery .fw-thumbs");
    thumbs.replaceChildren();
    if (data.images.length > 1) {
      data.images.forEach((image, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("role", "option");
        button.setAttribute("aria-label", image.kind === "grid" ? "Grid" : `Image with seed ${image.seed}`);
        const image = new Image();
        image.src = image.url;
        image.alt = "";
        image.loading = "lazy";
        button.append(image);
        button.addEventListener("click", () => select(index));
        thumbs.append(button);
      });
    }
    select(0);
  };

  function select(index) {
    selected = (index + result.images.length) % result.images.length;
    const image = result.images[selected];
    const stage = document.querySelector("#txt2img_gallery .fw-stage");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fw-image";
    button.setAttribute("aria-label", "View the whole image");
    const image = new Image();
    image.src = image.url;
    image.alt = image.infotext.split("\n")[0] || "Generated image";
    image.width = image.width;
    image.height = image.height;
    button.style.width = `${Math.max(image.width, 448)}px`; // small images are shown larger, none wider than the stage
    button.append(image);
    button.addEventListener("click", () => fw.openLightbox());
    stage.replaceChildren(button);
    document.querySelectorAll("#txt2img_gallery .fw-thumbs button").forEach((thumb, position) => {
      thumb.setAttribute("aria-selected", String(position === selected));
    });
    const infotext = document.querySelector("#txt2img_infotext");
    infotext.textContent = image.infotext;
    infotext.hidden = false;
    const tools = document.querySelector("#txt2img_image_tools");
    tools.hidden = false;
    const name = image.path ? image.path.split(/[\\/]/).pop().replace(/\.[^.]+$/, "") : String(image.seed);
    const link = tools.querySelector("[data-do=download]");
    link.href = image.url;
    link.download = `${name}.png`;
  }

  const actions = {
    async save() {
      const reply = await fw.post("internal/save-image", { id_task: result.task, index: selected });
      fw.message(`Saved as ${reply.path}`, false);
    },
    async folder() {
      const reply = await fw.post("internal/open-folder", { id_task: result.task, index: selected });
      if (!reply.opened) fw.message(`The folder is ${reply.folder}`, false);
    },
    async copy() {
      await navigator.clipboard.writeText(result.images[selected].infotext);
      fw.message("The parameters are on the clipboard.", false);
    },
    paste() {
      fw.setField("txt2img_prompt", result.images[selected].infotext);
      setTimeout(() => document.querySelector("#paste")?.click(), 100);
    },
  };

  document.addEventListener("click", async (event) => {
    const tool = event.target.closest("#txt2img_image_tools [data-do]");
    if (tool && actions[tool.dataset.do]) {
      try {
        await actions[tool.dataset.do]();
      } catch (error) {
        fw.message(error.message, true);
      }
    }
    if (event.target.closest("#txt2img_reuse_seed")) {
      const image = fw.selectedImage();
      if (image) fw.setField("txt2img_seed", String(image.seed));
    }
    if (event.target.closest("#txt2img_restore_progress")) fw.resume();
  });
})();
