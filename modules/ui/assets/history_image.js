// One image of the history with all that is known of it: next and previous, star, tags, board, sending it on.
(() => {
  const fw = window.featherweight;
  const { ROUTE, address, button } = fw.history;
  const SWIPE_PX = 60;
  let dialog = null;
  let image = null; // the one that is shown

  // Show an image; the dialog stays while one goes from image to image.
  fw.history.open = (wanted) => {
    if (!dialog) build();
    show(wanted);
    if (!dialog.open) dialog.showModal();
  };

  // Anywhere on the page: what was pressed last may be disabled now, and then nothing in the dialog has the focus.
  document.addEventListener("keydown", (event) => {
    if (!dialog?.open || document.querySelector("#fw_history_compare")) return;
    if (event.target.closest?.("input, textarea, select") || event.ctrlKey || event.altKey || event.metaKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(by);
  });

  function figure(source, text) {
    const picture = new Image();
    picture.src = source;
    picture.alt = text;
    return fw.element("figure", {}, picture, fw.element("figcaption", { textContent: text }));
  }

  function build() {
    dialog = fw.element("dialog", { id: "fw_history_dialog", attributes: { "aria-labelledby": "fw_history_title" } });
    const made = dialog;
    made.addEventListener("close", () => {
      made.remove();
      dialog = image = null;
    });
    let touchedAt = null;
    made.addEventListener("touchstart", (event) => {
      touchedAt = event.touches.length === 1 && event.target.closest(".fw-history-images") ? event.touches[0].clientX : null;
    }, { passive: true });
    made.addEventListener("touchend", (event) => {
      const by = touchedAt === null ? 0 : touchedAt - event.changedTouches[0].clientX;
      touchedAt = null;
      if (Math.abs(by) > SWIPE_PX) step(Math.sign(by));
    });
    document.body.append(dialog);
  }

  const placeOf = (one) => fw.history.images().findIndex(({ id }) => id === one.id);

  // To the next older image (1) or the next newer one (-1); at the end of the page older ones are asked for.
  async function step(by) {
    const place = placeOf(image) + by;
    if (place < 0) return;
    if (place >= fw.history.images().length && !(await fw.history.more())) return;
    const next = fw.history.images()[place];
    if (!next || !dialog) return;
    go(next);
  }

  // Show another image in the open dialog; the focus is on a button to go on with.
  function go(next) {
    const focused = document.activeElement?.dataset?.step;
    show(next);
    (dialog.querySelector(`[data-step="${focused}"]:enabled`) || dialog.querySelector("[data-step]:enabled"))?.focus();
  }

  // A line about an image that is no longer shown: in the dialog, if there is one, or in the tab.
  function say(text, isBad = false) {
    const status = dialog?.open && dialog.querySelector(".fw-history-status");
    if (!status) return fw.history.say(text, isBad);
    status.textContent = text;
    status.classList.toggle("fw-bad", isBad);
  }

  function stepButton(by, text, label, isThere) {
    const made = button(text, label, () => step(by));
    made.className = "fw-history-step";
    made.disabled = !isThere;
    made.dataset.step = by;
    made.setAttribute("aria-label", label);
    return made;
  }

  function show(wanted) {
    image = wanted;
    const own = wanted;
    const status = fw.element("p", { className: "fw-history-status", attributes: { role: "status" } });
    const tell = (text, isBad = false) => {
      status.textContent = text;
      status.classList.toggle("fw-bad", isBad);
    };
    const isShown = () => Boolean(dialog) && image?.id === own.id;
    const trying = (work) => async () => {
      try {
        await work();
      } catch (error) {
        if (isShown()) tell(error.message, true);
        else say(`${own.name}: ${error.message}`, true);
      }
    };
    const shown = fw.element("div", { className: "fw-history-images" }, figure(address(own, "image"), `${own.width} × ${own.height}`));
    const star = button(own.starred ? fw.t`★ Unstar` : fw.t`☆ Star`, fw.t`Mark this image`, trying(async () => {
      const [fresh] = await fw.post(`${ROUTE}/star`, { ids: [own.id], starred: !own.starred });
      fw.history.merged(fresh);
      Object.assign(own, fresh);
      star.textContent = fresh.starred ? fw.t`★ Unstar` : fw.t`☆ Star`;
    }));
    const remove = button(own.trashed ? fw.t`Restore` : fw.t`Delete`, own.trashed ? fw.t`Restore the file` : fw.t`Move the file to outputs/trash`, trying(async () => {
      remove.disabled = true; // until there is an answer: pressed once more it would not know what it is for
      try {
        await fw.post(`${ROUTE}/${own.trashed ? "restore" : "delete"}`, { ids: [own.id] });
      } finally {
        remove.disabled = false;
      }
      const next = await fw.history.without(own.id);
      if (isShown() && next) go(next);
      else if (isShown()) dialog.close();
      say(own.trashed ? fw.t`${own.name} was restored.` : fw.t`${own.name} is in the trash.`);
    }));
    const folder = button(fw.t`Show in folder`, fw.t`Open the folder on the server's machine`, trying(async () => {
      const reply = await fw.post(`${ROUTE}/show`, { id: own.id });
      tell(reply.opened ? fw.t`${reply.folder} was opened.` : fw.t`The file is in ${reply.folder}`);
    }));
    folder.dataset.for = "admin";
    const tags = fw.element("input", { value: own.tags.join(", "), placeholder: fw.t`Tags, separated by commas` });
    tags.setAttribute("aria-label", fw.t`Tags`);
    const keepTags = trying(async () => {
      const [fresh] = await fw.post(`${ROUTE}/tags`, { ids: [own.id], tags: tags.value.split(",") });
      fw.history.merged(fresh);
      Object.assign(own, fresh);
      tags.value = fresh.tags.join(", ");
      tell(fw.t`Tags saved.`);
    });
    const board = fw.history.boardChoice(own.board);
    board.addEventListener("change", trying(async () => {
      const chosen = Number(board.value) || null;
      await fw.history.put([own.id], chosen);
      own.board = chosen;
      tell(chosen ? fw.t`Added to this board.` : fw.t`Removed from its board.`);
    }));
    const other = fw.history.chosen().find(({ id }) => id !== own.id);
    const compare = other
      ? button(fw.t`Compare with the chosen one`, fw.t`Compare two images with a slider and a list of differences`, () => fw.history.compare(other, own))
      : button(fw.t`Choose to compare`, fw.t`Tick this image; then open another one and compare the two`, () => {
        fw.history.choose(own, true);
        compare.disabled = true;
        tell(fw.t`Chosen. Open another image and press Compare there.`);
      });
    const send = fw.element("div", { className: "fw-tools fw-history-send", dataset: { for: "user" } });
    if (!fw.mayChange(own.user)) for (const one of [star, remove, tags, board]) one.disabled = true;
    fw.offerTargets(send, "history", () => ({ ...own, url: address(own, "image"), seed: "-1", subseed: "-1", role: own.role }));
    send.addEventListener("click", (event) => event.target.closest("button") && dialog?.close());
    const place = placeOf(own);
    const count = fw.history.images().length;
    const mayBeMore = !document.querySelector("#fw_history [data-do=more]")?.hidden;
    const named = fw.element("h2", { id: "fw_history_title", textContent: `${own.name} · ${new Date(own.created_at * 1000).toLocaleString()}` });
    named.translate = false;
    dialog.replaceChildren(
      fw.element("div", { className: "fw-history-head" },
        stepButton(-1, "‹", fw.t`Previous image (left arrow)`, place > 0),
        stepButton(1, "›", fw.t`Next image (right arrow)`, place >= 0 && (place + 1 < count || mayBeMore)),
        named,
        button(fw.t`Close`, fw.t`Back to the images`, () => dialog.close())),
      fw.element("div", { className: "fw-history-view" }, shown, fw.element("div", { className: "fw-history-facts" },
        fw.element("div", { className: "fw-tools" }, star, remove, folder, compare),
        send,
        fw.history.again({ image: own, shown, tell, trying, isShown, figure }),
        status,
        fw.element("div", { className: "fw-history-tags" }, tags, fw.mayChange(own.user) ? button(fw.t`Save tags`, fw.t`Save these tags`, keepTags) : "", board),
        fw.element("pre", { className: "fw-infotext", textContent: own.infotext || fw.t`This image does not record how it was made.` }))),
    );
    for (const by of [-1, 1]) {
      const near = fw.history.images()[place + by];
      if (place >= 0 && near) new Image().src = address(near, "image"); // there when it is asked for
    }
  }
})();
