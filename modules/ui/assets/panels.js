// The panels of a form: borders that are dragged, groups of folds, and menus that unfold from a button.
(() => {
  const fw = window.featherweight;
  const [WIDTHS, OPEN] = ["panels", "groups"]; // what is kept
  const STEP_PX = 16;
  // What each border moves: the property of the body, the width that it begins with, and between which it stays.
  const PANELS = {
    form: { label: fw.t`Width of the form`, property: "--fw-form", usual: 420, least: 340, most: 760 },
    side: { label: fw.t`Width of the last images`, property: "--fw-side", usual: 250, least: 150, most: 520, isRight: true },
    split: { label: fw.t`Width of the image to start from`, property: "--fw-split", usual: 0, least: 220, most: 2000 },
  };

  const read = (key) => {
    try {
      return JSON.parse(fw.kept(key)) || {};
    } catch {
      return {};
    }
  };

  const widths = read(WIDTHS);

  // -- borders -------------------------------------------------------------------------------------------------------

  function widen(name, width) {
    const { property, least, most } = PANELS[name];
    const room = Math.max(least, Math.min(most, window.innerWidth - 560));
    const wanted = width ? Math.round(Math.min(room, Math.max(least, width))) : 0;
    if (wanted) document.body.style.setProperty(property, `${wanted}px`);
    else document.body.style.removeProperty(property);
    document.body.style.setProperty("--fw-split-px", widths.split ? `${widths.split}px` : "calc((100% - var(--fw-form-px) - var(--fw-side-px)) / 2)");
    widths[name] = wanted;
    for (const handle of document.querySelectorAll(`.fw-handle[data-panel=${name}]`)) {
      handle.setAttribute("aria-valuenow", String(wanted || PANELS[name].usual));
    }
  }

  const now = (name, area) => widths[name] || (name === "split" ? area.querySelector(".fw-source").offsetWidth : PANELS[name].usual);

  function makeHandle(name, area) {
    const { label, usual, least, most, isRight } = PANELS[name];
    const attributes = { role: "separator", "aria-orientation": "vertical", "aria-label": label };
    const handle = fw.element("div", { className: "fw-handle", title: fw.t`Drag; press twice for the usual width`, tabIndex: 0, attributes });
    Object.assign(handle.dataset, { panel: name });
    handle.setAttribute("aria-valuemin", String(least));
    handle.setAttribute("aria-valuemax", String(most));
    handle.setAttribute("aria-valuenow", String(widths[name] || usual || least));
    const direction = () => (isRight ? -1 : 1) * (getComputedStyle(area).direction === "rtl" ? -1 : 1);
    handle.addEventListener("pointerdown", (event) => {
      const [from, began] = [event.clientX, now(name, area)];
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      handle.classList.add("fw-dragging");
      handle.onpointermove = (move) => widen(name, began + (move.clientX - from) * direction());
      handle.onpointerup = handle.onpointercancel = () => {
        handle.onpointermove = null;
        handle.classList.remove("fw-dragging");
        fw.keep(WIDTHS, JSON.stringify(widths));
      };
    });
    handle.addEventListener("dblclick", () => {
      widen(name, usual);
      fw.keep(WIDTHS, JSON.stringify(widths));
    });
    handle.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -STEP_PX, ArrowRight: STEP_PX }[event.key];
      if (!by) return;
      event.preventDefault();
      widen(name, now(name, area) + by * direction());
      fw.keep(WIDTHS, JSON.stringify(widths));
    });
    return handle;
  }

  // Called while the page is laid out: each form gets its borders once.
  fw.putHandles = (area) => {
    if (area.querySelector(":scope > .fw-handle")) return;
    for (const results of area.querySelectorAll(":scope > .fw-results")) results.tabIndex = 0; // scrolls, by keys too
    const names = area.querySelector(":scope > .fw-source") ? ["form", "split", "side"] : ["form", "side"];
    area.append(...names.map((name) => makeHandle(name, area)));
    for (const name of names) widen(name, widths[name]);
  };

  // -- groups --------------------------------------------------------------------------------------------------------

  const open = read(OPEN);
  const titleOf = (fold) => fold.querySelector(".label-wrap > span");

  function unfold(group, isOpen) {
    group.toggleAttribute("data-open", isOpen);
    group.querySelector(".fw-group-head")?.setAttribute("aria-expanded", String(isOpen));
  }

  // The head of each group says what of it is on. A group of users' own extensions begins open.
  fw.describeGroups = (tab) => {
    for (const group of tab.find("script_container")?.querySelectorAll(".fw-group") || []) {
      if (!group.dataset.seen) unfold(group, open[group.id] ?? group.id.endsWith("_more"));
      group.dataset.seen = "1";
      const heads = [...group.querySelectorAll(".fw-script > .label-wrap > span[data-state]")].filter((head) => head.dataset.state);
      const said = group.querySelector(".fw-group-head span");
      const text = heads.map((head) => head.textContent.trim()).join(", ");
      if (said && said.textContent !== text) said.textContent = text;
    }
  };

  // Bring a control into sight, whatever it is folded into: its tab, its group, its folds.
  fw.reveal = async (element) => {
    const group = element.closest(".fw-group");
    if (group) unfold(group, true);
    for (let fold = element.closest(".gr-accordion"); fold; fold = fold.parentElement.closest(".gr-accordion")) {
      const head = fold.querySelector(":scope > .label-wrap");
      if (head && !head.classList.contains("open")) head.click();
    }
    await new Promise((resolve) => setTimeout(resolve, 150));
    element.scrollIntoView({ block: "center" });
  };

  // -- menus ---------------------------------------------------------------------------------------------------------

  function close(except = null) {
    for (const menu of document.querySelectorAll(".fw-menu.fw-open")) {
      if (menu === except) continue;
      menu.classList.remove("fw-open");
      menu.querySelector("[data-menu]")?.setAttribute("aria-expanded", "false");
    }
  }

  // Towards where there is room.
  function place(menu) {
    const around = menu.getBoundingClientRect();
    menu.classList.toggle("fw-up", around.top > window.innerHeight / 2);
    menu.classList.toggle("fw-end", around.left > window.innerWidth / 2);
  }

  document.addEventListener("click", (event) => {
    const head = event.target.closest?.(".fw-group-head");
    if (head) {
      const group = head.closest(".fw-group");
      unfold(group, !group.hasAttribute("data-open"));
      open[group.id] = group.hasAttribute("data-open");
      fw.keep(OPEN, JSON.stringify(open));
    }
    const button = event.target.closest?.("[data-menu]");
    const menu = event.target.closest?.(".fw-menu");
    if (event.isTrusted || button) close(menu); // the page's scripts press buttons of their own
    if (!button) return menu && !event.target.closest("input, select, label") && close();
    const isOpen = menu.classList.toggle("fw-open");
    button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) place(menu);
  });

  document.addEventListener("keydown", (event) => {
    const menu = document.querySelector(".fw-menu.fw-open");
    if (!menu || !menu.contains(document.activeElement)) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
      menu.querySelector("[data-menu]").focus();
    }
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || document.activeElement.matches("select, input:not([type=radio], [type=checkbox])")) return;
    event.preventDefault();
    const entries = [...menu.querySelectorAll("button, a")].filter((one) => one.offsetParent);
    entries[(entries.indexOf(document.activeElement) + by + entries.length) % entries.length]?.focus();
  }, true);
})();
