// Sending an image with its parameters to another tab: from galleries, from PNG Info, from dropped files.
(() => {
  const fw = window.featherweight;
  const LONGEST_MS = 10_000; // how long a tab may take to be built
  const LOOK_MS = 50;
  const LOOK_FOR_ROWS_MS = 1000;
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  // An element of a tab that is shown now.
  async function built(id) {
    for (let waited = 0; waited < LONGEST_MS; waited += LOOK_MS) {
      const found = document.getElementById(id);
      if (found) return found;
      await pause(LOOK_MS);
    }
    throw new Error(fw.t`The tab was not built in time; open it and try again.`);
  }

  const targets = new Map(); // by name, in the order in which they were added

  // A tab that takes images. `take({url, infotext, width, height, name})` puts one into it and shows the tab; it may
  // reject with a sentence.
  fw.addTarget = (name, { label, take }) => targets.set(name, { label, take });

  fw.send = async (name, item) => {
    const target = targets.get(name);
    if (!target) throw new Error(fw.t`There is no tab '${name}' to send an image to.`);
    await target.take(item);
  };

  // Fill a row of buttons, one for each tab that takes images; `current` gives the image when one is pressed.
  fw.offerTargets = (row, prefix, current) => {
    if (!row) return;
    // Of the form that an image came from, *Use parameters* does the same.
    const offered = [...targets].filter(([name]) => name !== prefix || fw.tab(name)?.setImage);
    row.hidden = offered.length === 0;
    if (row.querySelectorAll("button").length === offered.length) return;
    const label = document.createElement("span");
    label.textContent = fw.t`Send to`;
    row.replaceChildren(label, ...offered.map(([name, target]) => button(name, target, prefix, current)));
  };

  function button(name, { label }, prefix, current) {
    const made = document.createElement("button");
    made.type = "button";
    made.id = `${prefix}_send_to_${name}`;
    made.textContent = label;
    made.title = fw.t`Send the image and its parameters to ${label}`;
    made.addEventListener("click", async () => {
      try {
        const item = await current();
        if (item) await fw.send(name, item);
      } catch (error) {
        say(prefix, made.parentElement, error.message);
      }
    });
    return made;
  }

  // Beside the images of a tab; where the row stands elsewhere, behind it.
  function say(prefix, row, text) {
    if (fw.tab(prefix)) return fw.tab(prefix).message(text, true);
    row.querySelector(".fw-message")?.remove();
    const box = document.createElement("div");
    box.className = "fw-message fw-error";
    box.setAttribute("role", "alert");
    box.textContent = text;
    row.append(box);
  }

  // An image file as a gallery shows it; its parameters are read by the server.
  fw.fileItem = async (file) => {
    const url = URL.createObjectURL(file);
    const image = new Image();
    image.src = url;
    await image.decode().catch(() => {
      URL.revokeObjectURL(url);
      throw new Error(fw.t`The browser cannot show ${file.name} as an image.`);
    });
    const data = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(new Error(fw.t`${file.name} could not be read.`));
      reader.readAsDataURL(file);
    });
    const reply = await fw.post("sdapi/v1/png-info", { image: data });
    const { naturalWidth: width, naturalHeight: height } = image;
    return { url, infotext: reply.info || "", seed: fw.seedOf(reply.info), subseed: "-1", role: "sample", width, height, path: null, name: file.name };
  };

  for (const tab of fw.tabs) {
    // Put the parameters of an image that was sent into the form: as pasting, without what the settings say is not sent
    // along. `size`, as "512x768", goes before that of the parameters: hires fix made the image larger than they say.
    // The tab is shown first: Gradio builds what is inside of it only then.
    tab.takeSent = async (infotext, size = "") => {
      await fw.showTab(tab.prefix);
      tab.sent = [infotext, size];
      (await built(tab.id("take_sent"))).click();
    };
  }

  // A tab with images gets the image into one of its sub tabs, all get the parameters; the size by setting, also where
  // the image holds no parameters.
  for (const tab of fw.tabs) {
    for (const [name, label] of Object.entries(tab.takes)) {
      fw.addTarget(name, {
        label,
        take: async ({ url, infotext, width, height }) => {
          if (!tab.setImage && !infotext) throw new Error(fw.t`This image holds no parameters.`);
          await tab.takeSent(infotext, tab.setImage && width && height ? `${width}x${height}` : "");
          await tab.setImage?.(name, url);
        },
      });
    }
  }

  // The image is uploaded as if it were dropped on the tab.
  fw.addTarget("extras", {
    label: fw.t`Extras`,
    take: async (item) => {
      await fw.showTab("extras");
      const image = await (await fetch(item.url)).blob();
      const name = fw.downloadName(item);
      const form = new FormData();
      form.append("files", image, name);
      const reply = await fetch("gradio_api/upload", { method: "POST", body: form });
      if (!reply.ok) throw new Error(fw.t`The image could not be sent: the server answered ${reply.status}.`);
      const [path] = await reply.json();
      fw.sentToExtras = { path, orig_name: name, meta: { _type: "gradio.FileData" } };
      (await built("extras_take_sent")).click();
    },
  });

  // Images that the server puts on the page as HTML; their parameters are read from the files.
  setInterval(() => {
    for (const row of document.querySelectorAll("[data-send-url]:empty")) {
      fw.offerTargets(row, row.id || "extras", async () => {
        const blob = await (await fetch(row.dataset.sendUrl)).blob();
        return fw.fileItem(new File([blob], "image.png", { type: blob.type }));
      });
    }
  }, LOOK_FOR_ROWS_MS);

  // Called when PNG Info has read an image: its buttons send that one.
  fw.pngInfoRead = async (file, infotext) => {
    const row = document.querySelector("#pnginfo_send");
    if (!row) return;
    row.replaceChildren();
    row.hidden = true;
    const shown = document.querySelector("#pnginfo_shown");
    shown.replaceChildren();
    if (!file?.url) return;
    const image = new Image();
    image.src = file.url;
    try {
      await image.decode();
    } catch {
      return; // no image: there is nothing to send, and the tab says so
    }
    const { naturalWidth: width, naturalHeight: height } = image;
    image.alt = file.orig_name;
    shown.replaceChildren(image);
    fw.offerTargets(row, "pnginfo", () => ({ url: file.url, infotext, width, height, name: file.orig_name }));
  };
})();
