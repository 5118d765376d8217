// Pictures of a job: a stage, thumbnails, tools, the infotext of the selected one.
(() => {
  const fw = window.featherweight;
  let result = null;
  let selected = 0;

  fw.pictures = () => (result ? result.pictures : []);
  fw.selectedPicture = () => (result ? result.pictures[selected] : null);
  fw.selectPicture = select;

  fw.showPreview = (uri) => {
    if (fw.settings.do_not_show_images) return;
    const stage = document.querySelector("#txt2img_gallery .fw-stage");
    if (!stage) return;
    let image = stage.querySelector("img.fw-preview");
    if (!image) {
      image = new Image();
      image.className = "fw-preview";
      image.alt = "Preview of the picture being made";
      stage.replaceChildren(image);
    }
    image.src = uri;
  };

  fw.showResult = (data) => {
    fw.clearMessages();
    if (data.error) fw.message(data.error, true);
    for (const notice of data.notices) fw.message(notice, false);
    fw.showSurvival(data.survival);
    if (data.seconds !== null && data.pictures.length) fw.message(`Time taken: ${data.seconds} s`, false);
    if (!data.pictures.length) {
      if (!result) document.querySelector("#txt2img_gallery .fw-stage")?.replaceChildren();
      return;
    }
    if (fw.settings.do_not_show_images) {
      fw.message(`${data.pictures.length} finished; the settings say not to show pictures.`, false);
      return;
    }
    result = data;
    const thumbs = document.querySelector("#txt2img_gallery .fw-thumbs");
    thumbs.replaceChildren();
    if (data.pictures.length > 1) {
      data.pictures.forEach((picture, index) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("role", "option");
        button.setAttribute("aria-label", picture.kind === "grid" ? "Grid" : `Picture with seed ${picture.seed}`);
        const image = new Image();
        image.src = picture.url;
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
    selected = (index + result.pictures.length) % result.pictures.length;
    const picture = result.pictures[selected];
    const stage = document.querySelector("#txt2img_gallery .fw-stage");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fw-picture";
    button.setAttribute("aria-label", "View the whole picture");
    const image = new Image();
    image.src = picture.url;
    image.alt = picture.infotext.split("\n")[0] || "Generated picture";
    image.width = picture.width;
    image.height = picture.height;
    button.style.width = `${Math.max(picture.width, 448)}px`; // small pictures are shown larger, none wider than the stage
    button.append(image);
    button.addEventListener("click", () => fw.openLightbox());
    stage.replaceChildren(button);
    document.querySelectorAll("#txt2img_gallery .fw-thumbs button").forEach((thumb, position) => {
      thumb.setAttribute("aria-selected", String(position === selected));
    });
    const infotext = document.querySelector("#txt2img_infotext");
    infotext.textContent = picture.infotext;
    infotext.hidden = false;
    const tools = document.querySelector("#txt2img_picture_tools");
    tools.hidden = false;
    const name = picture.path ? picture.path.split(/[\\/]/).pop().replace(/\.[^.]+$/, "") : String(picture.seed);
    const link = tools.querySelector("[data-do=download]");
    link.href = picture.url;
    link.download = `${name}.png`;
  }

  const actions = {
    async save() {
      const reply = await fw.post("internal/save-picture", { id_task: result.task, index: selected });
      fw.message(`Saved as ${reply.path}`, false);
    },
    async folder() {
      const reply = await fw.post("internal/open-folder", { id_task: result.task, index: selected });
      if (!reply.opened) fw.message(`The folder is ${reply.folder}`, false);
    },
    async copy() {
      await navigator.clipboard.writeText(result.pictures[selected].infotext);
      fw.message("The parameters are on the clipboard.", false);
    },
    paste() {
      fw.setField("txt2img_prompt", result.pictures[selected].infotext);
      setTimeout(() => document.querySelector("#paste")?.click(), 100);
    },
  };

  document.addEventListener("click", async (event) => {
    const tool = event.target.closest("#txt2img_picture_tools [data-do]");
    if (tool && actions[tool.dataset.do]) {
      try {
        await actions[tool.dataset.do]();
      } catch (error) {
        fw.message(error.message, true);
      }
    }
    if (event.target.closest("#txt2img_reuse_seed")) {
      const picture = fw.selectedPicture();
      if (picture) fw.setField("txt2img_seed", String(picture.seed));
    }
    if (event.target.closest("#txt2img_restore_progress")) fw.resume();
  });
})();
