// The History tab: a search, images by day, and one image with all that is known of it. Asks only while it is shown.
(() => {
  const fw = window.featherweight;
  const ROUTE = "featherweight/v1/history";
  const PAGE = 60;
  const TYPED_MS = 250;
  const LOOK_MS = 3000;
  let images = [];
  let asked = null; // the search whose images are shown
  let typing = 0;
  let newest = null;
  let isOffered = false; // whose images there are to choose from

  const place = () => document.querySelector("#fw_history");
  const isShown = () => Boolean(place()?.offsetParent) && !document.hidden;
  const find = (inside) => place()?.querySelector(inside);

  function say(text, isBad = false) {
    const line = find(".fw-history-status");
    if (!line) return;
    line.textContent = text;
    line.classList.toggle("fw-bad", isBad);
  }

  // What is searched: the field's text and the buttons that are pressed.
  function wanted() {
    const states = ["starred", "trashed"].filter((name) => find(`[data-do=${name}]`)?.getAttribute("aria-pressed") === "true");
    return [find("#fw_history_search")?.value.trim(), ...states.map((name) => `is:${name}`)].filter(Boolean).join(" ");
  }

  // Whose images, as a part of the address: without a choice one's own.
  function whose() {
    const user = find("#fw_history_user")?.value;
    return user ? `&user=${encodeURIComponent(user)}` : "";
  }

  // Those who may see the images of others choose whose.
  async function offerUsers() {
    isOffered = Boolean(fw.me.name); // known a moment after the page is there
    const list = find("#fw_history_user");
    if (!list || !fw.me.name || fw.me.sees !== "all") return;
    const users = (await fw.get(`${ROUTE}/users`).catch(() => [])).filter((user) => user && user !== fw.me.name);
    const choices = [["", fw.me.role === "viewer" ? "All images" : "My images"], ["*", "Images of all users"], ...users.map((user) => [user, user])];
    const chosen = list.value;
    list.replaceChildren(...choices.map(([value, textContent]) => fw.element("option", { value, textContent })));
    list.value = choices.some(([value]) => value === chosen) ? chosen : "";
    list.hidden = false;
  }

  async function search({ isMore = false } = {}) {
    if (!isShown()) return;
    const text = wanted();
    const user = whose();
    const before = isMore && images.length ? `&before=${images[images.length - 1].id}` : "";
    try {
      const page = await fw.get(`${ROUTE}?q=${encodeURIComponent(text)}&limit=${PAGE}${before}${user}`);
      if (text !== wanted() || user !== whose()) return; // typed on meanwhile
      images = isMore ? [...images, ...page.images] : page.images;
      asked = text;
      if (!isMore) newest = page.images[0]?.id ?? null;
      find("[data-do=more]").hidden = !page.more;
      draw();
      say(images.length ? "" : text ? "Nothing is found." : "Finished images appear here. Import a folder to have older ones too.");
    } catch (error) {
      say(error.message, true);
    }
  }

  // "2026-11-22", in the time of this machine.
  fw.dayOf = (seconds) => {
    const date = new Date(seconds * 1000);
    const two = (number) => String(number).padStart(2, "0");
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  };

  function draw() {
    const days = new Map();
    for (const image of images) {
      const day = fw.dayOf(image.created_at);
      if (!days.has(day)) days.set(day, []);
      days.get(day).push(image);
    }
    find(".fw-history-days").replaceChildren(
      ...[...days].flatMap(([day, list]) => [
        fw.element("h3", { className: "fw-history-day", textContent: day }),
        fw.element("div", { className: "fw-history-grid" }, ...list.map(tile)),
      ]),
    );
  }

  const address = (image, what = "thumbnail") => `${ROUTE}/${what}?id=${image.id}`;

  function tile(image) {
    const prompt = image.infotext.split("\n")[0] || image.name;
    const made = fw.element("button", { type: "button", className: "fw-history-item", title: prompt });
    made.setAttribute("aria-label", prompt);
    const picture = new Image();
    picture.loading = "lazy";
    picture.alt = "";
    picture.src = address(image);
    picture.addEventListener("error", () => {
      picture.replaceWith(fw.element("span", { className: "fw-history-gone", textContent: `${image.name}: the file is gone` }));
    });
    made.append(picture);
    if (image.starred) made.append(fw.element("span", { className: "fw-history-star", textContent: "★" }));
    made.addEventListener("click", () => open(image));
    return made;
  }

  function button(text, title, run) {
    const made = fw.element("button", { type: "button", textContent: text, title });
    made.addEventListener("click", run);
    return made;
  }

  function figure(source, text) {
    const picture = new Image();
    picture.src = source;
    picture.alt = text;
    return fw.element("figure", {}, picture, fw.element("figcaption", { textContent: text }));
  }

  // -- one image -------------------------------------------------------------------------------------------------------

  function open(image) {
    const status = fw.element("p", { className: "fw-history-status", attributes: { role: "status" } });
    const tell = (text, isBad = false) => {
      status.textContent = text;
      status.classList.toggle("fw-bad", isBad);
    };
    const trying = (work) => async () => {
      try {
        await work();
      } catch (error) {
        tell(error.message, true);
      }
    };
    const shown = fw.element("div", { className: "fw-history-images" }, figure(address(image, "image"), `${image.width} × ${image.height}`));
    const dialog = fw.element("dialog", { id: "fw_history_dialog", attributes: { "aria-labelledby": "fw_history_title" } });
    const replaced = (fresh) => {
      Object.assign(image, fresh);
      draw();
    };
    const star = button(image.starred ? "★ Unstar" : "☆ Star", "Mark this image", trying(async () => {
      const [fresh] = await fw.post(`${ROUTE}/star`, { ids: [image.id], starred: !image.starred });
      replaced(fresh);
      star.textContent = fresh.starred ? "★ Unstar" : "☆ Star";
    }));
    const remove = button(image.trashed ? "Restore" : "Delete", image.trashed ? "Bring the file back" : "Move the file to outputs/trash", trying(async () => {
      await fw.post(`${ROUTE}/${image.trashed ? "restore" : "delete"}`, { ids: [image.id] });
      images = images.filter((other) => other.id !== image.id);
      draw();
      dialog.close();
    }));
    const show = button("Show in folder", "Open the folder on the server's machine", trying(async () => {
      const reply = await fw.post(`${ROUTE}/show`, { id: image.id });
      tell(reply.opened ? `${reply.folder} was opened.` : `The file is in ${reply.folder}`);
    }));
    show.dataset.for = "admin";
    const tags = fw.element("input", { value: image.tags.join(", "), placeholder: "Tags, separated by commas" });
    tags.setAttribute("aria-label", "Tags");
    const keepTags = trying(async () => {
      const [fresh] = await fw.post(`${ROUTE}/tags`, { ids: [image.id], tags: tags.value.split(",") });
      replaced(fresh);
      tags.value = fresh.tags.join(", ");
      tell("The tags are kept.");
    });
    const precisions = [...JSON.parse(place().dataset.precisions), ["fp16", "full precision"]];
    const precision = fw.element("select", {}, ...precisions.map(([value, text]) => fw.element("option", { value, textContent: text })));
    precision.setAttribute("aria-label", "Precision");
    const again = button("Same seed, other precision", "Make it once more and show what differs", trying(async () => {
      const { task_id } = await fw.post(`${ROUTE}/again`, { id: image.id, precision: precision.value });
      tell("In line; the difference appears here.");
      await compare(image, task_id, shown, tell, dialog);
    }));
    const send = fw.element("div", { className: "fw-tools fw-history-send", dataset: { for: "user" } });
    if (!fw.mayChange(image.user)) for (const one of [star, remove, tags]) one.disabled = true;
    const item = () => ({ ...image, url: address(image, "image"), seed: -1, subseed: -1, role: image.role });
    fw.offerTargets(send, "history", item);
    send.addEventListener("click", (event) => event.target.closest("button") && dialog.close());
    dialog.append(
      fw.element("h2", { id: "fw_history_title", textContent: `${image.name} · ${new Date(image.created_at * 1000).toLocaleString()}` }),
      fw.element("div", { className: "fw-history-view" }, shown, fw.element("div", { className: "fw-history-facts" },
        fw.element("div", { className: "fw-tools" }, star, remove, show, button("Close", "Back to the images", () => dialog.close())),
        send,
        fw.element("div", { className: "fw-tools", dataset: { for: "user" } }, again, precision),
        status,
        fw.element("div", { className: "fw-history-tags" }, tags, fw.mayChange(image.user) ? button("Save tags", "Keep these tags", keepTags) : ""),
        fw.element("pre", { className: "fw-infotext", textContent: image.infotext || "It does not say how it was made." }))),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // Wait for the job, then show its image and the difference.
  async function compare(image, task_id, shown, tell, dialog) {
    for (;;) {
      if (!dialog.isConnected) return;
      const job = await fw.get(`featherweight/v1/queue/job?task_id=${encodeURIComponent(task_id)}`);
      if (job.status === "failed" || job.status === "interrupted") throw new Error(job.error || "The job was stopped.");
      if (job.status === "done") break;
      tell(fw.queueLine(job) || "waiting");
      await new Promise((resolve) => setTimeout(resolve, 700));
    }
    const other = (await fw.get(`${ROUTE}/of-job?task_id=${encodeURIComponent(task_id)}`)).find(({ role }) => role === "sample");
    if (!other) throw new Error("The image was not saved, so nothing can be compared; see Settings > Saving.");
    const numbers = await fw.get(`${ROUTE}/compare?first=${image.id}&second=${other.id}`);
    const text = numbers.psnr_db === null ? "equal" : `PSNR ${numbers.psnr_db.toFixed(1)} dB, at most ${numbers.largest_level} of 255`;
    shown.replaceChildren(
      figure(address(image, "image"), "this image"),
      figure(address(other, "image"), "the other precision"),
      figure(`${ROUTE}/difference?first=${image.id}&second=${other.id}`, `difference, 8 times: ${text}`),
    );
    tell(text);
  }

  // -- imports ---------------------------------------------------------------------------------------------------------

  // "old: 1200 files, 1180 added, 20 skipped".
  fw.importLine = ({ folder, state, counts, error }) => {
    const parts = Object.entries(counts).filter(([name, count]) => count || name === "files").map(([name, count]) => `${count} ${name}`);
    return `${folder}: ${[state, ...parts, error].filter(Boolean).join(", ")}`;
  };

  async function importFolder() {
    const folder = window.prompt("The full path of a folder on the server's machine; its images stay where they are.");
    if (!folder) return;
    try {
      drawImports(await fw.post(`${ROUTE}/import`, { folder }));
    } catch (error) {
      say(error.message, true);
    }
  }

  function drawImports(imports) {
    const running = imports.filter(({ state }) => state === "running" || state === "failed");
    find(".fw-history-imports").replaceChildren(...running.map((one) => {
      const box = fw.element("div", { className: "fw-message fw-note" }, fw.element("span", { textContent: fw.importLine(one) }));
      if (one.state === "running") box.append(button("Stop", "Stop importing", async () => drawImports(await fw.post(`${ROUTE}/stop-import`, {}))));
      return box;
    }));
    return running.some(({ state }) => state === "running");
  }

  // -- the tab ---------------------------------------------------------------------------------------------------------

  async function look() {
    if (!isShown()) return;
    if (!isOffered) await offerUsers();
    if (asked === null) await search();
    const isImporting = fw.me.role === "admin" && drawImports(await fw.get(`${ROUTE}/imports`).catch(() => []));
    if (images.length > PAGE || document.querySelector("#fw_history_dialog")) return;
    const first = await fw.get(`${ROUTE}?q=${encodeURIComponent(wanted())}&limit=1${whose()}`).catch(() => null);
    if (isImporting || (first && (first.images[0]?.id ?? null) !== newest)) await search();
  }

  document.addEventListener("click", (event) => {
    const pressed = event.target.closest?.("#fw_history [data-do]");
    const name = pressed?.dataset.do;
    if (name === "import") importFolder();
    if (name === "more") search({ isMore: true });
    if (name === "starred" || name === "trashed") {
      pressed.setAttribute("aria-pressed", String(pressed.getAttribute("aria-pressed") !== "true"));
      search();
    }
    if (event.target.closest?.('#tabs button[role="tab"]')) setTimeout(() => isShown() && search(), 80);
  });
  document.addEventListener("input", (event) => {
    if (event.target.id !== "fw_history_search") return;
    clearTimeout(typing);
    typing = setTimeout(search, TYPED_MS);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "fw_history_user") search();
  });
  setInterval(look, LOOK_MS);
})();
