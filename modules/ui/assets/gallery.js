// Images of a job: a stage, thumbnails, tools, the infotext of the selected one. An image file may be dropped on it.
(() => {
  const fw = window.featherweight;
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const HERE = ["localhost", "127.0.0.1", "[::1]"];

  for (const tab of fw.tabs) {
    let items = []; // {url, infotext, seed, width, height, role, path, task, index}; without a task: a dropped file
    let selected = 0;
    let shown = 0; // counts what was put on the stage, so that an image that loads late does not replace a newer one
    let enlarged = null; // a job that makes one of the images again: {task, item}

    tab.images = () => items;
    tab.selectedImage = () => items[selected] || null;
    tab.selectImage = select;

    let empty = null; // what the stage says while there is no image

    function fillStage(...nodes) {
      const stage = tab.find("gallery", ".fw-stage");
      empty ||= stage.querySelector(".fw-empty");
      stage.replaceChildren(...(nodes.length || !empty ? nodes : [empty]));
    }

    tab.showPreview = (uri) => {
      if (fw.settings.do_not_show_images) return;
      const stage = tab.find("gallery", ".fw-stage");
      if (!stage) return;
      shown += 1;
      let preview = stage.querySelector("img.fw-preview");
      if (!preview) {
        preview = new Image();
        preview.className = "fw-preview";
        preview.alt = fw.t`Preview of the image being made`;
        fillStage(preview);
      }
      preview.src = uri;
    };

    tab.showResult = (data) => {
      tab.clearMessages();
      if (data.error) tab.message(data.error, true);
      for (const notice of data.notices) tab.message(notice);
      tab.showRetention(data.retention);
      if (data.seconds !== null) tab.message(fw.t`Time taken: ${data.seconds} s`);
      if (data.task && !data.error) tab.showTimeline(data.task);
      if (!data.images.length) {
        if (items.length) putOnStage(items[selected]); // instead of a preview
        else if (tab.find("gallery", ".fw-stage")) fillStage();
        if (data.error && items.length) tab.message(fw.t`That job made no image. The image above is an earlier one.`);
        return;
      }
      if (fw.settings.do_not_show_images) {
        tab.message(fw.t`${data.images.length} finished; the settings say not to show images.`);
        return;
      }
      const made = data.images.map((image, index) => ({ task: data.task, index, ...image })); // a batch has several jobs
      const first = enlarged && enlarged.task === data.task ? items.indexOf(enlarged.item) : -1;
      enlarged = null;
      if (first < 0) show(made, 0);
      else show(items.toSpliced(first + 1, 0, ...made), first + 1); // behind the image that it was made from
    };

    // Images from elsewhere, such as the last ones of the history, which have thumbnails of their own.
    tab.showImages = (list, index, hasThumbs = false) => show(list, index, hasThumbs);

    tab.step = (by) => items.length > 1 && select(selected + by);

    function show(list, index, hasThumbs = true) {
      items = list;
      const thumbs = hasThumbs && items.length > 1 ? items.map(thumbnail) : [];
      tab.find("gallery", ".fw-thumbs").replaceChildren(...thumbs);
      if (items.length) return select(index);
      selected = 0;
      shown += 1;
      fillStage();
      for (const name of ["infotext", "image_tools", "send_tools"]) tab.find(name).hidden = true;
    }

    function thumbnail(item, index) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("role", "option");
      button.setAttribute("aria-label", item.role === "grid" ? fw.t`Grid` : fw.t`Image with seed ${item.seed}`);
      const image = new Image();
      image.src = item.url;
      image.alt = "";
      image.loading = "lazy";
      button.append(image);
      button.addEventListener("click", () => select(index));
      return button;
    }

    function select(index) {
      selected = (index + items.length) % items.length;
      for (const arrow of tab.find("gallery")?.querySelectorAll("[data-step]") || []) arrow.hidden = items.length < 2;
      const item = items[selected];
      putOnStage(item);
      tab.find("gallery", ".fw-thumbs").querySelectorAll("button").forEach((thumb, position) => {
        thumb.setAttribute("aria-selected", String(position === selected));
        thumb.tabIndex = position === selected ? 0 : -1;
      });
      const infotext = tab.find("infotext");
      infotext.textContent = item.infotext;
      infotext.hidden = item.infotext === "";
      const tools = tab.find("image_tools");
      tools.hidden = false;
      for (const tool of tools.children) {
        const isElsewhere = "local" in tool.dataset && !HERE.includes(location.hostname);
        tool.hidden = ("job" in tool.dataset && !item.task) || isElsewhere;
      }
      const link = tools.querySelector("[data-do=download]");
      link.href = item.url;
      link.download = fw.downloadName(item);
      const report = tools.querySelector("[data-link=report]");
      const page = item.role === "grid" ? item.infotext.match(/Precision report: ([\w.-]+\.html)/) : null;
      report.hidden = !page;
      if (page) report.href = `featherweight/v1/reports/${page[1]}`;
      fw.offerTargets(tab.find("send_tools"), tab.prefix, () => tab.selectedImage());
    }

    // An image stays on the stage until the next one is there to be drawn, and so does a preview, in the size of the image:
    // what is below does not move. An empty stage receives the image at once, which takes its room before it is loaded.
    async function putOnStage(item) {
      const turn = ++shown;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "fw-image";
      button.setAttribute("aria-label", fw.t`View the whole image`);
      const image = new Image(item.width, item.height);
      image.src = item.url;
      image.alt = item.infotext.split("\n")[0] || fw.t`Generated image`;
      button.style.width = `${Math.max(item.width, 448)}px`; // small images are shown larger, none wider than the stage
      button.append(image);
      button.addEventListener("click", () => fw.openLightbox(tab));
      const stage = tab.find("gallery", ".fw-stage");
      const preview = stage.querySelector(".fw-preview");
      if (preview) Object.assign(preview.style, { width: button.style.width, maxWidth: "100%", aspectRatio: `${item.width} / ${item.height}` });
      if (preview || stage.querySelector(".fw-image")) await image.decode().catch(() => {}); // a broken image is shown as the browser shows it
      if (turn !== shown) return;
      const hadFocus = stage.contains(document.activeElement);
      fillStage(button);
      if (hadFocus) button.focus({ preventScroll: true });
    }

    const named = (item) => ({ id_task: item.task, index: item.index });

    const actions = {
      async save(item) {
        const reply = await fw.post("internal/save-image", named(item));
        tab.message(fw.t`Saved as ${reply.path}`);
      },
      zip: (item) => fw.download(`internal/zip-images?id_task=${encodeURIComponent(item.task)}`),
      async folder(item) {
        const reply = await fw.post("internal/open-folder", named(item));
        tab.message(reply.opened ? fw.t`Opening ${reply.folder}` : fw.t`The folder is ${reply.folder}`);
      },
      async copy(item) {
        await fw.copyText(item.infotext);
        tab.message(fw.t`The parameters are on the clipboard.`);
      },
      paste: (item) => tab.take(item.infotext),
      async upscale(item) {
        if (tab.isRunning()) throw new Error(fw.t`A job is running; wait until it is done, or interrupt it.`);
        const reply = await fw.post("internal/hires-image", { ...named(item), form: tab.form });
        enlarged = { task: reply.task, item };
        tab.follow(reply.task);
      },
      async remove(item) {
        if (!window.confirm(fw.text(fw.t`Delete this image? Its file goes into the folder outputs/trash.`))) return;
        const reply = await fw.post("internal/delete-image", named(item));
        for (const other of items) {
          if (other.task === item.task && other.index > item.index) {
            other.index -= 1;
            other.url = other.url.replace(/&index=\d+(.*?)(&v=\d+)?$/, `&index=${other.index}$1&v=${Date.now()}`);
          }
        }
        const left = items.filter((other) => other !== item);
        show(left, Math.min(selected, left.length - 1));
        tab.message(reply.trash ? fw.t`Moved to ${reply.trash}` : fw.t`Deleted; the image had no file.`);
      },
    };

    async function run(name) {
      const item = tab.selectedImage();
      if (!item || !actions[name]) return;
      try {
        await actions[name](item);
      } catch (error) {
        tab.message(error.message, true);
      }
    }

    document.addEventListener("click", async (event) => {
      const tool = tab.holds(event.target, "image_tools") && event.target.closest("[data-do]");
      if (tool) await run(tool.dataset.do);
      if (tab.holds(event.target, "reuse_seed") && tab.selectedImage()) tab.set("seed", tab.selectedImage().seed);
      if (tab.holds(event.target, "restore_progress")) tab.resume(true);
      const arrow = tab.holds(event.target, "gallery") && event.target.closest("[data-step]");
      if (arrow) tab.step(Number(arrow.dataset.step));
    });

    document.addEventListener("keydown", (event) => {
      if (!tab.holds(event.target, "gallery") || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Delete" && items[selected]?.task) run("remove");
      if (!STEPS[event.key] || items.length < 2) return;
      event.preventDefault();
      const thumbs = event.target.closest(".fw-thumbs");
      select(selected + STEPS[event.key]);
      thumbs?.children[selected].focus();
    });

    // -- image files dropped on the stage ----------------------------------------------------------------------------

    document.addEventListener("dragover", (event) => {
      if (tab.holds(event.target, "gallery")) event.preventDefault();
    });

    document.addEventListener("drop", async (event) => {
      const file = tab.holds(event.target, "gallery") && event.dataTransfer?.files[0];
      if (!file) return;
      event.preventDefault();
      tab.clearMessages();
      try {
        const item = await fw.fileItem(file);
        if (!tab.isRunning()) show([item], 0);
      } catch (error) {
        tab.message(error.message, true);
      }
    });
  }

  // The name of the file that the browser saves: the image is sent as PNG, whatever its own file is.
  fw.downloadName = ({ path, seed, name }) => {
    if (name) return name;
    const stem = path ? path.split(/[\\/]/).pop().replace(/\.[^.]+$/, "") : seed;
    return `${stem}.png`;
  };

  // Have the browser save what the server sends as an attachment; a refusal is an error with the server's sentence.
  fw.download = async (path) => {
    const reply = await fetch(path);
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).errors || fw.t`The server answered ${reply.status}.`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await reply.blob());
    link.download = decodeURIComponent(/filename\*=UTF-8''([^;]+)/.exec(reply.headers.get("Content-Disposition") || "")?.[1] || "images.zip");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
})();
