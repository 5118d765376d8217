// Results on the canvas: they wait beside each other where their frame was, are flipped through, and become layers or go.
(() => {
  const fw = window.featherweight;

  class LayersResults {
    constructor(board) {
      this.board = board;
      this.thumbs = fw.element("div", { className: "fw-layers-variants", attributes: { role: "listbox", "aria-label": fw.t`Pending results`, "aria-orientation": "horizontal" } });
      this.line = fw.element("span", { className: "fw-layers-which", attributes: { role: "status" } });
      const button = (text, title, run) => {
        const made = fw.element("button", { type: "button", textContent: text, title });
        if (text.length === 1) made.setAttribute("aria-label", title);
        made.addEventListener("click", run);
        return made;
      };
      this.accept = button(fw.t`Accept`, fw.t`Make this a layer and discard the others (can be undone)`, () => this.take(true));
      this.accept.classList.add("fw-layers-accept");
      this.root = fw.element("section", { className: "fw-layers-results", hidden: true, attributes: { "aria-label": fw.t`Results` } },
        this.thumbs,
        fw.element("div", { className: "fw-layers-row" },
          button("‹", fw.t`Previous result (,)`, () => this.step(-1)),
          this.line,
          button("›", fw.t`Next result (.)`, () => this.step(1)),
          this.accept,
          button(fw.t`Add as layer`, fw.t`Make this a layer and keep the others`, () => this.take(false)),
          button(fw.t`Discard`, fw.t`Discard this result (can be undone)`, () => this.drop()),
          button(fw.t`Discard all`, fw.t`Discard all results (can be undone)`, () => board.change({ ...board.doc, variants: [], shown: 0 }))));
      this.thumbs.addEventListener("keydown", (event) => this.key(event));
      board.listen(() => this.draw());
    }

    get shown() {
      const { variants, shown } = this.board.doc;
      return variants[shown] ?? null;
    }

    draw() {
      const { variants, shown } = this.board.doc;
      this.root.hidden = !variants.length;
      const hadFocus = this.thumbs.contains(document.activeElement);
      this.thumbs.replaceChildren(...variants.map((variant, place) => this.thumb(variant, place, place === shown)));
      this.line.textContent = variants.length ? fw.t`${shown + 1} of ${variants.length}` : "";
      if (hadFocus) this.thumbs.children[shown]?.focus({ preventScroll: true });
    }

    thumb({ image, seed }, place, isShown) {
      const made = fw.element("button", { type: "button", attributes: { role: "option", "aria-selected": String(isShown), "aria-label": fw.t`Image with seed ${seed}` } });
      made.tabIndex = isShown ? 0 : -1;
      const picture = this.board.pictures.known.get(image)?.bitmap;
      const canvas = fw.element("canvas", { width: 72, height: 72 });
      if (picture) {
        const scale = 72 / Math.max(picture.width, picture.height);
        const [width, height] = [picture.width * scale, picture.height * scale];
        canvas.getContext("2d").drawImage(picture, (72 - width) / 2, (72 - height) / 2, width, height);
      }
      made.append(canvas);
      made.addEventListener("click", () => this.show(place));
      return made;
    }

    key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.step(by);
    }

    // Which one is seen is no step of undo.
    show(place) {
      const count = this.board.doc.variants.length;
      if (count) this.board.amend({ ...this.board.doc, shown: (place + count) % count });
    }

    step(by) {
      this.show(this.board.doc.shown + by);
    }

    // The shown one becomes a layer; `isOnly`: the others go.
    take(isOnly) {
      const { board, shown } = this;
      if (!shown) return;
      const { frame, image, size } = shown;
      const layer = fw.layers.layerOf("image", fw.layers.freeName(board.doc, fw.text(fw.t`Result`)), {
        image, size, x: frame.x, y: frame.y, scale: [frame.width / size[0], frame.height / size[1]],
      });
      const active = fw.layers.find(board.doc);
      const doc = fw.layers.added(board.doc, layer);
      const left = isOnly ? [] : doc.variants.filter((variant) => variant !== shown);
      // Who painted a mask goes on with it.
      const stays = active && fw.layers.isOverlay(active) ? active.id : layer.id;
      board.change({ ...doc, active: stays, variants: left, shown: 0 });
    }

    drop() {
      const { board, shown } = this;
      const variants = board.doc.variants.filter((variant) => variant !== shown);
      board.change({ ...board.doc, variants, shown: Math.min(board.doc.shown, Math.max(variants.length - 1, 0)) });
    }

    // The images of a job that was sent with this frame.
    receive(images, frame) {
      return this.board.adding(() => this.receiveAll(images, frame));
    }

    async receiveAll(images, frame) {
      const made = [];
      for (const image of images.filter(({ role }) => role === "sample")) {
        const reply = await fetch(image.url);
        if (!reply.ok) throw new Error(fw.t`A result could not be fetched: the server answered ${reply.status}.`);
        const { id, width, height } = await this.board.keepPicture(await reply.blob());
        made.push({ image: id, size: [width, height], frame, seed: image.seed });
      }
      if (!made.length) return;
      const { doc } = this.board;
      this.board.change({ ...doc, variants: [...doc.variants, ...made], shown: doc.variants.length });
    }
  }

  fw.layers.LayersResults = LayersResults;
})();
