// The History tab: a search, images by day, boards, and what is done with several images. Asks only while it is shown.
(() => {
  const fw = window.featherweight;
  const ROUTE = "featherweight/v1/history";
  const PAGE = 60;
  const TYPED_MS = 250;
  const LOOK_MS = 3000;
  let images = [];
  let asked = null; // the search whose images are shown
  let askedFor = null; // it, with whose images and which board
  let found = ""; // what the last search said
  let typing = 0;
  let searching = Promise.resolve(); // done when the last search is
  let newest = null;
  let isOffered = false; // whose images there are to choose from
  const chosen = new Set(); // ids of the images that are ticked
  let lastChosen = null;
  let boards = [];
  let changes = 0; // of images, by what was done here
  let drawn = ""; // the images whose tiles are there
  let drawnBoards = "";
  let shownBoard = null; // the id of the board whose images are shown, 0 for those on none; null: all images
  const DRAGGED = "application/x-featherweight-images";

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
    const choices = [["", fw.me.role === "viewer" ? fw.t`All images` : fw.t`My images`], ["*", fw.t`Images of all users`], ...users.map((user) => [user, user])];
    const chosen = list.value;
    list.replaceChildren(...choices.map(([value, textContent]) => fw.element("option", { value, textContent })));
    list.value = choices.some(([value]) => value === chosen) ? chosen : "";
    list.hidden = false;
  }

  function search(options) {
    clearTimeout(typing); // what is typed is asked now
    return (searching = ask(options));
  }

  async function ask({ isMore = false } = {}) {
    if (!isShown()) return;
    const text = wanted();
    const user = whose();
    const board = shownBoard === null ? "" : `&board=${shownBoard}`;
    const shown = shownBoard;
    const seen = changes;
    const before = isMore && images.length ? `&before=${images[images.length - 1].id}` : "";
    try {
      const page = await fw.get(`${ROUTE}?q=${encodeURIComponent(text)}&limit=${PAGE}${before}${user}${board}`);
      if (text !== wanted() || user !== whose() || shown !== shownBoard) return; // typed on meanwhile
      if (seen !== changes) return ask({ isMore }); // the answer is from before a change
      images = isMore ? [...images, ...page.images] : page.images;
      asked = text;
      if (!isMore) newest = page.images[0]?.id ?? null;
      find("[data-do=more]").hidden = !page.more;
      draw();
      const saying = images.length ? "" : text ? fw.t`Nothing found.` : shownBoard ? fw.t`This board is empty. Drag images here to put them on it.` : fw.t`Finished images appear here. Import a folder to add older ones.`;
      const isAgain = askedFor === `${text}\n${user}\n${shown}`; // nobody asked: what was said of an image is not replaced
      if (!isAgain || find(".fw-history-status").textContent === found) say(saying);
      [askedFor, found] = [`${text}\n${user}\n${shown}`, saying];
    } catch (error) {
      found = error.message;
      say(found, true);
    }
  }

  // "2026-11-22", in the time of this machine.
  fw.dayOf = (seconds) => {
    const date = new Date(seconds * 1000);
    const two = (number) => String(number).padStart(2, "0");
    return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  };

  // Tiles are made again only where they differ: one that is pressed or dragged stays what it is.
  function draw() {
    const now = JSON.stringify(images);
    if (now === drawn) return drawChosen();
    drawn = now;
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
    drawChosen();
  }

  const address = (image, what = "thumbnail") => `${ROUTE}/${what}?id=${image.id}`;

  function tile(image) {
    const prompt = image.infotext.split("\n")[0] || image.name;
    const made = fw.element("button", { type: "button", className: "fw-history-item", title: prompt });
    made.setAttribute("aria-label", prompt);
    made.translate = false;
    const picture = new Image();
    picture.loading = "lazy";
    picture.alt = "";
    picture.draggable = false; // the tile is dragged, not the picture alone
    picture.src = address(image);
    picture.addEventListener("error", () => {
      picture.replaceWith(fw.element("span", { className: "fw-history-gone", textContent: fw.t`${image.name}: the file is missing` }));
    });
    made.append(picture);
    if (image.starred) made.append(fw.element("span", { className: "fw-history-star", textContent: "★" }));
    made.addEventListener("click", (event) => {
      if (event.shiftKey) chooseTo(image);
      else if (event.ctrlKey || event.metaKey) choose(image, !chosen.has(image.id));
      else fw.history.open(image);
    });
    const box = fw.element("input", { type: "checkbox", className: "fw-history-choose", checked: chosen.has(image.id), title: fw.t`Choose` });
    box.setAttribute("aria-label", fw.t`Choose this image`);
    box.addEventListener("click", (event) => (event.shiftKey ? chooseTo(image) : choose(image, box.checked)));
    const cell = fw.element("div", { className: "fw-history-cell", draggable: true }, made, box);
    cell.dataset.image = image.id;
    cell.addEventListener("dragstart", (event) => {
      const ids = chosen.has(image.id) ? [...chosen] : [image.id];
      event.dataTransfer.setData(DRAGGED, JSON.stringify(ids));
      event.dataTransfer.effectAllowed = "move";
      find(".fw-boards").classList.add("fw-boards-wait");
    });
    cell.addEventListener("dragend", () => find(".fw-boards").classList.remove("fw-boards-wait"));
    return cell;
  }

  function button(text, title, run) {
    const made = fw.element("button", { type: "button", textContent: text, title });
    made.addEventListener("click", run);
    return made;
  }

  // Do something on the server; a refusal is said in the tab.
  const trying = (work) => async () => {
    try {
      await work();
    } catch (error) {
      say(error.message, true);
    }
  };

  // -- several images --------------------------------------------------------------------------------------------------

  function choose(image, isChosen) {
    if (isChosen) chosen.add(image.id);
    else chosen.delete(image.id);
    lastChosen = image.id;
    drawChosen();
  }

  // From the one that was chosen last to this one.
  function chooseTo(image) {
    const places = [lastChosen ?? image.id, image.id].map((id) => images.findIndex((one) => one.id === id));
    const [from, to] = [Math.max(0, Math.min(...places)), Math.max(...places)];
    for (const one of images.slice(from, to + 1)) chosen.add(one.id);
    lastChosen = image.id;
    drawChosen();
  }

  function chooseNone() {
    chosen.clear();
    drawChosen();
  }

  function drawChosen() {
    for (const cell of place().querySelectorAll(".fw-history-cell")) {
      const isChosen = chosen.has(Number(cell.dataset.image));
      cell.classList.toggle("fw-is-chosen", isChosen);
      cell.querySelector(".fw-history-choose").checked = isChosen;
    }
    const bar = find(".fw-history-chosen");
    bar.hidden = chosen.size === 0;
    if (bar.hidden) return;
    const ids = [...chosen];
    const list = ids.map((id) => images.find((one) => one.id === id)).filter(Boolean);
    const isTrash = list.some(({ trashed }) => trashed);
    const compare = button(fw.t`Compare`, fw.t`Compare two images with a slider and a list of differences`, () => fw.history.compare(list[0], list[1]));
    compare.disabled = list.length !== 2;
    const mine = list.every(({ user }) => fw.mayChange(user));
    const change = [
      boardChoice(null, fw.t`Put on a board`),
      button(fw.t`★ Star`, fw.t`Mark these images`, trying(async () => {
        merged(await fw.post(`${ROUTE}/star`, { ids, starred: !list.every(({ starred }) => starred) }));
      })),
      button(isTrash ? fw.t`Restore` : fw.t`Delete`, isTrash ? fw.t`Restore the files` : fw.t`Move the files to outputs/trash`, trying(async () => {
        await fw.post(`${ROUTE}/${isTrash ? "restore" : "delete"}`, { ids });
        changes += 1;
        images = images.filter(({ id }) => !chosen.has(id));
        chooseNone();
        draw();
        await showBoards();
      })),
    ];
    change[0].addEventListener("change", trying(() => put(ids, Number(change[0].value) || null)));
    bar.replaceChildren(
      fw.element("b", { textContent: fw.t`Chosen: ${chosen.size}` }),
      compare,
      ...(mine ? change : []),
      button(fw.t`Clear selection`, fw.t`Deselect all images`, chooseNone),
    );
  }

  // Take in what the server answered about images that are shown.
  function merged(fresh) {
    changes += 1;
    for (const one of fresh) Object.assign(images.find(({ id }) => id === one.id) || {}, one);
    draw();
  }

  // -- boards ----------------------------------------------------------------------------------------------------------

  // A list of the boards, with the one that is chosen, or with a `placeholder` where nothing is.
  function boardChoice(current, placeholder = "") {
    const choice = fw.element("select", {},
      ...(placeholder ? [fw.element("option", { value: "", textContent: placeholder, disabled: true })] : []),
      fw.element("option", { value: "0", textContent: fw.t`Not on a board` }),
      ...boards.map(({ id, name }) => fw.element("option", { value: String(id), textContent: name, translate: false })));
    choice.setAttribute("aria-label", fw.t`Board`);
    choice.value = placeholder ? "" : String(current ?? 0);
    return choice;
  }

  async function put(ids, board) {
    const fresh = await fw.post(`${ROUTE}/boards/put`, { ids, board });
    changes += 1;
    for (const one of fresh) Object.assign(images.find(({ id }) => id === one.id) || {}, one);
    if (shownBoard !== null) images = images.filter((one) => (one.board ?? 0) === shownBoard);
    chooseNone();
    draw();
    await showBoards();
  }

  async function showBoards() {
    boards = await fw.get(`${ROUTE}/boards?${whose().slice(1)}`);
    if (shownBoard && !boards.some(({ id }) => id === shownBoard)) shownBoard = null;
    const shown = boards.find(({ id }) => id === shownBoard);
    const isMine = Boolean(shown && fw.mayChange(shown.user));
    const now = JSON.stringify([boards, shownBoard, isMine]);
    if (now === drawnBoards) return;
    drawnBoards = now;
    const bar = find(".fw-boards");
    const chips = [[null, fw.t`All images`, fw.t`Images on all boards and on none`], [0, fw.t`Not on a board`, fw.t`Images that are on no board`]].map(([id, text, title]) => chip(id, text, title, id));
    for (const { id, name, images: count, newest: cover } of boards) {
      const made = chip(id, name, fw.t`Show this board; drag images here to put them on it`, id);
      made.firstChild.translate = false;
      made.append(fw.element("small", { textContent: String(count) }));
      if (cover) {
        const picture = fw.element("img", { src: `${ROUTE}/thumbnail?id=${cover}`, alt: "" });
        picture.addEventListener("error", () => picture.remove());
        made.prepend(picture);
      }
      chips.push(made);
    }
    const tools = [button(fw.t`New board`, fw.t`A folder of images; their files stay where they are`, newBoard)];
    if (isMine) {
      tools.push(button(fw.t`Rename`, fw.t`Give this board another name`, renameBoard), button(fw.t`Delete board`, fw.t`Its images stay in the history`, removeBoard));
    }
    for (const one of tools) one.dataset.for = "user";
    bar.replaceChildren(...chips, ...tools);
  }

  // A board's button, on which images are dropped too.
  function chip(id, text, title, target) {
    const made = fw.element("button", { type: "button", className: "fw-board", title }, fw.element("span", { textContent: text }));
    made.setAttribute("aria-pressed", String(shownBoard === id));
    made.addEventListener("click", () => showBoard(id));
    if (target === null) return made;
    const isOurs = (event) => event.dataTransfer.types.includes(DRAGGED);
    made.addEventListener("dragover", (event) => {
      if (!isOurs(event)) return;
      event.preventDefault();
      made.classList.add("fw-board-over");
    });
    made.addEventListener("dragleave", () => made.classList.remove("fw-board-over"));
    made.addEventListener("drop", (event) => {
      made.classList.remove("fw-board-over");
      if (!isOurs(event)) return;
      event.preventDefault();
      trying(() => put(JSON.parse(event.dataTransfer.getData(DRAGGED)), target || null))();
    });
    return made;
  }

  async function showBoard(id) {
    shownBoard = id;
    chooseNone();
    await search();
    await trying(showBoards)();
  }

  const newBoard = trying(async () => {
    const name = window.prompt(fw.text(fw.t`The name of the new board`));
    if (!name) return;
    const made = await fw.post(`${ROUTE}/boards`, { name });
    if (chosen.size) await put([...chosen], made.id);
    else await showBoards();
  });

  const renameBoard = trying(async () => {
    const name = window.prompt(fw.text(fw.t`The new name of the board`), boards.find(({ id }) => id === shownBoard).name);
    if (!name) return;
    await fw.post(`${ROUTE}/boards/rename`, { id: shownBoard, name });
    await showBoards();
  });

  const removeBoard = trying(async () => {
    if (!window.confirm(fw.text(fw.t`Delete this board? Its images stay in the history.`))) return;
    await fw.post(`${ROUTE}/boards/remove`, { id: shownBoard });
    await showBoard(null);
  });

  // What the dialogs of one image and of two need of the tab.
  fw.history = {
    ROUTE,
    address,
    button,
    images: () => images,
    boardChoice,
    put,
    chosen: () => images.filter(({ id }) => chosen.has(id)),
    choose,
    precisions: () => [...JSON.parse(place().dataset.precisions), ["fp16", fw.t`full precision`]],
    say,
    merged: (fresh) => merged([fresh]),
    // Take an image away. The one that is looked at next: the one after it, at the end the one before it, of those that
    // the search finds that stands in the field, even where its answer is still on its way.
    without: async (id) => {
      const place = images.findIndex((one) => one.id === id);
      const order = place < 0 ? [] : [...images.slice(place + 1), ...images.slice(0, place).reverse()];
      changes += 1;
      images = images.filter((one) => one.id !== id);
      chosen.delete(id);
      if (place === 0) newest = images[0]?.id ?? null;
      draw();
      trying(showBoards)();
      await searching;
      if (asked !== wanted()) await search();
      return order.map((one) => images.find((left) => left.id === one.id)).find(Boolean);
    },
    // Older images, where there are some; whether any came.
    more: async () => {
      const before = images.length;
      if (!find("[data-do=more]").hidden) await search({ isMore: true });
      return images.length > before;
    },
  };

  // -- imports ---------------------------------------------------------------------------------------------------------

  // "old: 1200 files, 1180 added, 20 skipped".
  fw.importLine = ({ folder, state, counts, error }) => {
    const parts = Object.entries(counts).filter(([name, count]) => count || name === "files").map(([name, count]) => `${count} ${name}`);
    return `${folder}: ${[state, ...parts, error].filter(Boolean).join(", ")}`;
  };

  async function importFolder() {
    const folder = window.prompt(fw.t`The full path of a folder on the server's machine; its images stay where they are.`);
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
      if (one.state === "running") box.append(button(fw.t`Stop`, fw.t`Stop importing`, async () => drawImports(await fw.post(`${ROUTE}/stop-import`, {}))));
      return box;
    }));
    return running.some(({ state }) => state === "running");
  }

  // -- the tab ---------------------------------------------------------------------------------------------------------

  async function look() {
    if (!isShown()) return;
    if (!isOffered) await offerUsers();
    if (asked === null) {
      await search();
      await trying(showBoards)();
    }
    const isImporting = fw.me.role === "admin" && drawImports(await fw.get(`${ROUTE}/imports`).catch(() => []));
    if (images.length > PAGE || chosen.size || document.querySelector("#fw_history_dialog, #fw_history_compare")) return;
    const board = shownBoard === null ? "" : `&board=${shownBoard}`;
    const first = await fw.get(`${ROUTE}?q=${encodeURIComponent(wanted())}&limit=1${whose()}${board}`).catch(() => null);
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
  });
  fw.whenShown("#fw_history", () => search().then(trying(showBoards)));
  document.addEventListener("input", (event) => {
    if (event.target.id !== "fw_history_search") return;
    clearTimeout(typing);
    typing = setTimeout(search, TYPED_MS);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "fw_history_user") showBoard(null);
  });
  setInterval(look, LOOK_MS);
})();
