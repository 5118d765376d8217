// Images of a job: a stage, thumbnails, tools, the infotext of the selected one.
(() => {
  const fw = window.featherweight;
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  for (const tab of fw.tabs) {
    let result = null;
    let selected = 0;
    let shown = 0; // counts what was put on the stage, so that an image that loads late does not replace a newer one

    tab.images = () => (result ? result.images : []);
    tab.selectedImage = () => (result ? result.images[selected] : null);
    tab.selectImage = select;

    tab.showPreview = (uri) => {
      if (fw.settings.do_not_show_images) return;
      const stage = tab.find("gallery", ".fw-stage");
      if (!stage) return;
      shown += 1;
      let preview = stage.querySelector("img.fw-preview");
      if (!preview) {
        preview = new Image();
        preview.className = "fw-preview";
        preview.alt = "Preview of the image being made";
        stage.replaceChildren(preview);
      }
      preview.src = uri;
    };

    tab.showResult = (data) => {
      tab.clearMessages();
      if (data.error) tab.message(data.error, true);
      for (const notice of data.notices) tab.message(notice);
      tab.showRetention(data.retention);
      if (data.seconds !== null) tab.message(`Time taken: ${data.seconds} s`);
      if (data.task && !data.error) tab.showTimeline(data.task);
      if (!data.images.length) {
        if (!result) tab.find("gallery", ".fw-stage")?.replaceChildren();
        return;
      }
      if (fw.settings.do_not_show_images) {
        tab.message(`${data.images.length} finished; the settings say not to show images.`);
        return;
      }
      result = data;
      const thumbs = data.images.length > 1 ? data.images.map(thumbnail) : [];
      tab.find("gallery", ".fw-thumbs").replaceChildren(...thumbs);
      select(0);
    };

    function thumbnail(item, index) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("role", "option");
      button.setAttribute("aria-label", item.kind === "grid" ? "Grid" : `Image with seed ${item.seed}`);
      const image = new Image();
      image.src = item.url;
      image.alt = "";
      image.loading = "lazy";
      button.append(image);
      button.addEventListener("click", () => select(index));
      return button;
    }

    function select(index) {
      selected = (index + result.images.length) % result.images.length;
      const item = result.images[selected];
      putOnStage(item);
      tab.find("gallery", ".fw-thumbs").querySelectorAll("button").forEach((thumb, position) => {
        thumb.setAttribute("aria-selected", String(position === selected));
        thumb.tabIndex = position === selected ? 0 : -1;
      });
      const infotext = tab.find("infotext");
      infotext.textContent = item.infotext;
      infotext.hidden = false;
      const tools = tab.find("image_tools");
      tools.hidden = false;
      const link = tools.querySelector("[data-do=download]");
      link.href = item.url;
      link.download = fw.downloadName(item);
    }

    // What was on the stage stays until the image is there to be drawn.
    async function putOnStage(item) {
      const turn = ++shown;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "fw-image";
      button.setAttribute("aria-label", "View the whole image");
      const image = new Image(item.width, item.height);
      image.src = item.url;
      image.alt = item.infotext.split("\n")[0] || "Generated image";
      button.style.width = `${Math.max(item.width, 448)}px`; // small images are shown larger, none wider than the stage
      button.append(image);
      button.addEventListener("click", () => fw.openLightbox(tab));
      await image.decode().catch(() => {}); // a broken image is shown as the browser shows it
      if (turn === shown) tab.find("gallery", ".fw-stage").replaceChildren(button);
    }

    // Where the server finds the selected image: images of a batch come from several jobs.
    function place() {
      const { task = result.task, index = selected } = result.images[selected];
      return { id_task: task, index };
    }

    const actions = {
      async save() {
        const reply = await fw.post("internal/save-image", place());
        tab.message(`Saved as ${reply.path}`);
      },
      async folder() {
        const reply = await fw.post("internal/open-folder", place());
        tab.message(reply.opened ? `Opening ${reply.folder}` : `The folder is ${reply.folder}`);
      },
      async copy() {
        await fw.copyText(result.images[selected].infotext);
        tab.message("The parameters are on the clipboard.");
      },
      paste: () => tab.take(result.images[selected].infotext),
    };

    document.addEventListener("click", async (event) => {
      const tool = tab.holds(event.target, "image_tools") && event.target.closest("[data-do]");
      if (tool && actions[tool.dataset.do]) {
        try {
          await actions[tool.dataset.do]();
        } catch (error) {
          tab.message(error.message, true);
        }
      }
      if (tab.holds(event.target, "reuse_seed") && tab.selectedImage()) tab.set("seed", String(tab.selectedImage().seed));
      if (tab.holds(event.target, "restore_progress")) tab.resume(true);
    });

    document.addEventListener("keydown", (event) => {
      const thumbs = event.target.closest?.(".fw-thumbs");
      if (!thumbs || !tab.holds(thumbs, "gallery") || !STEPS[event.key]) return;
      event.preventDefault();
      select(selected + STEPS[event.key]);
      thumbs.children[selected].focus();
    });
  }

  // The name of the file that the browser saves: the image is sent as PNG, whatever its own file is.
  fw.downloadName = ({ path, seed }) => {
    const name = path ? path.split(/[\\/]/).pop().replace(/\.[^.]+$/, "") : String(seed);
    return `${name}.png`;
  };
})();
