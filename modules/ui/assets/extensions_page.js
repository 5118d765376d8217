// The names that scripts of extensions for the reference UI call, over this page; and their scripts, loaded by address
// once the page can be used, one after the other. A mistake in one costs no other.
(() => {
  const fw = window.featherweight;
  const WAIT_MS = 200; // between a change of the page and onAfterUiUpdate
  const LOOK_MS = 50;
  const AFTER_CHOICE_MS = 700; // the header's fields store by themselves
  const OURS_ALONE = ["img2img_canvas_tab", "img2img_batch_tab"]; // large, and no script looks there
  const callbacks = { update: [], after: [], loaded: [], tab: [], options: [] };
  let isLoaded = false;
  let observer = null;
  let timer = null;
  let shownTab = null;

  function report(error, extension = "") {
    console.error(error);
    const text = String(error?.message || error);
    fw.post("internal/extension-fault", { extension: extension || extensionOf(error), reason: text.slice(0, 300) }).catch(() => {});
  }

  // Whose script an error comes from, by the addresses in its stack.
  const extensionOf = (error) => /file=extensions\/([^/?]+)\//.exec(decodeURI(error?.stack || error?.filename || ""))?.[1] || "";

  function run(list, ...values) {
    for (const callback of list) {
      try {
        callback(...values);
      } catch (error) {
        report(error);
      }
    }
  }

  // Looks at the page only where somebody wants to know.
  function watch() {
    if (observer || !isLoaded || !(callbacks.update.length + callbacks.after.length + callbacks.tab.length)) return;
    observer = new MutationObserver((changes) => {
      run(callbacks.update, changes);
      clearTimeout(timer);
      timer = setTimeout(() => (nameByText(), run(callbacks.after)), WAIT_MS);
      const tab = window.get_uiCurrentTab();
      if (tab && tab !== shownTab) {
        shownTab = window.uiCurrentTab = tab;
        run(callbacks.tab);
      }
    });
    observer.observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["class", "style"] });
    run(callbacks.update, []);
    run(callbacks.after);
  }

  // Older pages put parts of a tab in again when it was opened, for which scripts wait.
  async function showTab(name) {
    await fw.showTab(name);
    await pause(LOOK_MS);
    for (const part of document.querySelectorAll(`#tab_${name} :is(.fw-script, [id^=mode_] > *)`)) part.dataset.opened = String(Date.now());
  }

  const isShown = (element) => Boolean(element && element.offsetParent !== null);

  const IMAGE_TYPES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", webp: "image/webp", gif: "image/gif", bmp: "image/bmp", avif: "image/avif" };

  // Files that scripts made without saying of which type, by which fields choose, have that of their name.
  function nameTypes(field) {
    const files = [...(field.files || [])];
    if (!files.some((file) => !file.type)) return;
    const given = new DataTransfer();
    for (const file of files) given.items.add(file.type ? file : new File([file], file.name, { type: IMAGE_TYPES[file.name.split(".").pop().toLowerCase()] || "" }));
    field.files = given.files;
  }

  // Events that scripts send to a field have to rise here: its listeners stand at the root of the page.
  function letRise() {
    const own = EventTarget.prototype.dispatchEvent;
    HTMLElement.prototype.dispatchEvent = function (event) {
      if (event.type === "change" && this.type === "file" && this.files) nameTypes(this);
      const rises = event.bubbles || !["input", "change"].includes(event.type);
      return own.call(this, rises ? event : new Event(event.type, { bubbles: true, cancelable: event.cancelable }));
    };
  }

  // How Gradio 3 nested what scripts look for, and how it is nested here; asked only where nothing was found.
  const NESTING = [
    [/\s*>\s*label\s*>\s*(textarea|input)/g, " label $1"],
    [/\s*>\s*(?:div)?\.tab-nav/g, " > .tab-wrapper > .tab-container[role=tablist]"],
    [/\[aria-label=(["']?)Clear\1\]/g, "[aria-label='Remove Image']"], // of an image
  ];

  function nestedHere(selector) {
    return NESTING.reduce((text, [old, now]) => text.replace(old, now), String(selector));
  }

  function understandNesting(kind) {
    for (const [name, isFound] of [["querySelector", Boolean], ["querySelectorAll", (list) => list.length > 0]]) {
      const own = kind[name];
      kind[name] = function (selector) {
        if (selector instanceof Element) return name === "querySelector" ? selector : [selector]; // found already
        const found = own.call(this, selector);
        const other = isFound(found) ? selector : nestedHere(selector);
        return other === selector ? found : own.call(this, other);
      };
    }
  }

  // -- what is on the page only once it was open: tabs, sub tabs and folds, in which scripts look at once --------------

  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  async function until(test) {
    for (let tries = 0; tries < 25 && !test(); tries += 1) await pause(tries < 5 ? 5 : LOOK_MS);
  }

  const isFilled = (id) => Boolean(document.getElementById(id)?.querySelector(".block, button, input, textarea"));

  async function openSubTabs(place) {
    for (const bar of place.querySelectorAll(".tab-container[role=tablist]")) {
      const buttons = [...bar.querySelectorAll("button[role=tab]")];
      const shown = buttons.find((one) => one.ariaSelected === "true");
      for (const button of buttons) {
        const id = button.getAttribute("aria-controls");
        if (button === shown || isFilled(id) || OURS_ALONE.includes(id)) continue;
        button.click();
        await until(() => isFilled(id));
      }
      shown?.click();
    }
  }

  async function openFolds(place) {
    const seen = new Set();
    for (;;) {
      const folds = [...place.querySelectorAll("button.label-wrap:not(.open)")].filter((one) => !seen.has(one));
      if (!folds.length) return;
      for (const fold of folds) {
        seen.add(fold);
        fold.click();
      }
      await pause(LOOK_MS);
      for (const fold of folds) if (fold.classList.contains("open")) fold.click();
    }
  }

  // The fold of our control units, in the place and under the id of the reference UI's.
  async function openControlNet() {
    for (const container of document.querySelectorAll("[id$=_script_container]")) {
      const fold = [...container.querySelectorAll(".fw-script")].find((one) => one.querySelector(".label-wrap > span")?.textContent.trim() === "ControlNet");
      if (!fold) continue;
      await openFolds(fold);
      fold.id = "controlnet";
      fold.querySelector("[data-units]")?.dispatchEvent(new Event("fw-wanted"));
      await until(() => fold.querySelector("input[type=file]"));
    }
  }

  async function openOnce() {
    const focused = document.activeElement;
    const shown = document.querySelector("#tabs button[role=tab][aria-selected=true]");
    const parts = window.gradio_config?.components || [];
    const theirs = parts.filter((part) => part.type === "tabitem" && part.props.elem_classes?.includes("fw-foreign")).map((part) => part.props.elem_id);
    const wanted = window.featherweightPage.extensionPlaces;
    for (const id of [...wanted.map((name) => `tab_${name}`), ...theirs]) {
      if (!parts.some((part) => part.props.elem_id === id && part.props.visible === true)) continue;
      await fw.showTab(id.slice("tab_".length));
      await until(() => isFilled(id));
      const place = document.getElementById(id);
      if (id === "tab_img2img" && wanted.includes("img2img_modes")) await openSubTabs(document.querySelector("#mode_img2img"));
      if (!place || !theirs.includes(id)) continue;
      await openSubTabs(place);
      await openFolds(place);
    }
    shown?.click();
    for (const place of document.querySelectorAll(".fw-foreign")) await openFolds(place);
    if (wanted.includes("controlnet")) await openControlNet();
    if (wanted.includes("settings")) await until(() => document.querySelector("#tab_settings [id^=setting_]"));
    // As older pages had them: bars of tabs by this class, and a blank behind the title of a tab.
    for (const bar of document.querySelectorAll(".tab-container[role=tablist]")) bar.classList.add("tab-nav");
    for (const button of document.querySelectorAll("button[role=tab]")) button.append(" ");
    // Unseen copies of the titles, by which Gradio measures, stand behind them: scripts take the first buttons there are.
    for (const copy of document.querySelectorAll(".tab-wrapper > .tab-container:not([role=tablist])")) copy.parentElement.append(copy);
    focused?.focus?.({ preventScroll: true });
  }

  // What a frame or an image of an extension calls when it is there is called once the scripts are there too.
  const heldLoads = [];

  function holdLoad(event) {
    if (!event.target.matches?.(".fw-foreign [onload]")) return;
    event.stopImmediatePropagation();
    heldLoads.push(event.target);
  }

  function giveLoads() {
    document.removeEventListener("load", holdLoad, true);
    for (const element of heldLoads.splice(0)) if (element.isConnected) element.dispatchEvent(new Event("load"));
  }

  // -- cards of models: what scripts of extensions look for in them, and where they add buttons -------------------------

  fw.dressCard = (made, card) => {
    const term = fw.element("span", { className: "search_term search_terms", textContent: card.key.replace(/^\d+/, ""), hidden: true });
    made.append(fw.element("div", { className: "actions" }, fw.element("div", { className: "additional" }, term)));
  };

  // A row below the images of each tab that holds a button of which scripts make copies for their own.
  function dressImages() {
    for (const tab of ["txt2img", "img2img", "extras"]) {
      let row = document.querySelector(`#image_buttons_${tab}`);
      if (!row) {
        row = fw.element("div", { id: `image_buttons_${tab}`, className: "fw-image-buttons" });
        document.querySelector(`#${tab}_gallery`)?.after(row);
      }
      const id = tab === "extras" ? "extras_tab" : ""; // its id in older pages, in both tabs that send
      row.prepend(fw.element("button", { type: "button", id, className: "gradio-button tool", hidden: true }));
    }
    const info = fw.element("div", { className: "fw-image-buttons" }, fw.element("button", { type: "button", id: "extras_tab", hidden: true }));
    document.querySelector("#pnginfo_send_box")?.after(info);
  }

  // Settings that scripts read follow what is saved in the Settings tab and chosen in the header.
  async function readOptions() {
    try {
      window.opts = await fw.get("sdapi/v1/options");
    } catch {
      window.opts = {}; // whoever may not read the settings has pages without them
    }
    showHash();
  }

  let isRead = Promise.resolve();

  function followOptions() {
    const follow = () => (isRead = isRead.then(async () => {
      const before = JSON.stringify(window.opts);
      await readOptions();
      if (JSON.stringify(window.opts) !== before) run(callbacks.options);
    }));
    let waits = null;
    const soon = (event) => {
      if (!event.target.closest?.("#quicksettings, #quicksettings_more")) return;
      clearTimeout(waits);
      waits = setTimeout(follow, AFTER_CHOICE_MS);
    };
    document.addEventListener("fw:settings", follow);
    for (const type of ["click", "change", "focusout"]) document.addEventListener(type, soon, true);
  }

  // The footer of older pages has the hash of the checkpoint; here it is there for scripts alone.
  function showHash() {
    const hash = opts.sd_checkpoint_hash || "";
    let shown = document.querySelector("#sd_checkpoint_hash");
    if (!shown) {
      shown = fw.element("a", { id: "sd_checkpoint_hash" });
      shown.style.display = "none";
      document.querySelector(".fw-footer")?.append(shown);
    }
    if (shown.title !== hash) Object.assign(shown, { title: hash, textContent: hash.slice(0, 10) });
  }

  function dressCards() {
    for (const tab of ["txt2img", "img2img"]) {
      const pages = document.querySelector(`#${tab}_extra_tabs`);
      const showAsBlock = () => {
        for (const page of pages.querySelectorAll(".extra-page")) if (page.style.display === "flex") page.style.display = "block";
      };
      if (pages) new MutationObserver(showAsBlock).observe(pages, { childList: true, subtree: true, attributes: true, attributeFilter: ["style"] });
      const refresh = fw.element("button", { type: "button", id: `${tab}_extra_refresh`, hidden: true });
      refresh.addEventListener("click", () => [...document.querySelectorAll(`#tab_${tab} [data-do=refresh]`)].find(isShown)?.click());
      document.querySelector(`#${tab}_extra_tabs .tab-container[role=tablist]`)?.after(fw.element("div", { className: "fw-extra-controls" }, refresh));
    }
  }

  // Scripts count the parts of #tabs up to a tab's, and press the button with that number. Tabs that were not open yet
  // have no part, and the first row of buttons only measures how many fit.
  function countAsBefore() {
    const tabs = document.querySelector("#tabs");
    const parts = () => [...tabs.querySelectorAll(":scope > .tab-wrapper .tab-container[role=tablist] > button")].map((button) => {
      const id = button.id.replace(/-button$/, "");
      return document.getElementById(id) || Object.assign(document.createElement("div"), { id });
    });
    for (const name of ["childNodes", "children"]) {
      Object.defineProperty(tabs, name, { configurable: true, get: () => [tabs.querySelector(":scope > .tab-wrapper"), ...parts()] });
    }
    document.addEventListener("click", (event) => {
      const measured = event.target.closest?.(".tab-container[aria-hidden=true] button, .tab-container.visually-hidden button");
      if (!measured) return;
      const place = [...measured.parentElement.querySelectorAll("button")].indexOf(measured);
      measured.closest(".tab-wrapper")?.querySelectorAll(".tab-container[role=tablist] > button")[place]?.click();
    });
  }

  // Scripts that wait for the page to be there come when it is: whom they want called then is called after all are loaded.
  const waiting = [];

  function answerWaiting(target, names) {
    const own = target.addEventListener;
    target.addEventListener = function (name, listener, options) {
      if (names.test(name) && document.currentScript?.src.includes("file=extensions/")) waiting.push([target, name, listener]);
      else own.call(this, name, listener, options);
    };
    return () => delete target.addEventListener;
  }

  function callWaiting() {
    for (const [target, name, listener] of waiting.splice(0)) {
      const call = listener.handleEvent ? (event) => listener.handleEvent(event) : (event) => listener.call(target, event);
      run([call], new Event(name));
    }
    // For those who then wait for any change of the page.
    const change = document.createElement("span");
    change.hidden = true;
    (document.querySelector("gradio-app") || document.body).append(change); // a script may have a gradioApp of its own
  }

  // -- menus of the right button, tooltips by text ------------------------------------------------------------------

  const menuOptions = [];

  function showMenu(event) {
    document.querySelector("#context-menu")?.remove();
    const options = menuOptions.filter((one) => event.target.closest?.(one.selector));
    if (event.type !== "contextmenu" || !options.length) return;
    event.preventDefault();
    const list = document.createElement("ul");
    list.className = "context-menu-items";
    for (const option of options) {
      const item = document.createElement("li");
      item.textContent = option.name;
      item.addEventListener("click", () => run([option.act]));
      list.append(item);
    }
    const menu = document.createElement("nav");
    menu.id = "context-menu";
    Object.assign(menu.style, { position: "fixed", left: `${event.clientX}px`, top: `${event.clientY}px` });
    menu.append(list);
    document.querySelector(".gradio-container")?.append(menu);
  }

  function nameByText() {
    if (!Object.keys(window.titles).length) return;
    for (const element of document.querySelectorAll("button, label span, select, p")) {
      const title = window.titles[element.textContent.trim()];
      if (title && !element.title) element.title = title;
    }
  }

  // -- what this page draws by itself, as extensions' functions take and give it -------------------------------------

  const shownForm = () => fw.tabs.find((tab) => isShown(document.getElementById(`tab_${tab.prefix}`)));

  // A file of Gradio's, with the names that Gradio 3 gave its parts.
  async function uploaded(blob, name = "image.png") {
    const form = new FormData();
    form.append("files", blob, name);
    const reply = await fetch("gradio_api/upload", { method: "POST", body: form });
    if (!reply.ok) throw new Error(`The image could not be passed on: the server answered ${reply.status}.`);
    const [path] = await reply.json();
    const file = { path, url: `${location.origin}${location.pathname}gradio_api/file=${path}`, orig_name: name, meta: { _type: "gradio.FileData" } };
    return { ...file, name: path, data: file.url, is_file: true };
  }

  const blobOf = async (url) => (await fetch(url)).blob();

  const PAGE_VALUES = {
    images: (name) => Promise.all(fw.tab(name).images().map(async (item) => uploaded(await blobOf(item.url), fw.downloadName(item)))),
    info(name) {
      const items = fw.tab(name).images();
      return JSON.stringify({ infotexts: items.map((one) => one.infotext), all_seeds: items.map((one) => Number(one.seed)), index_of_first_image: 0 });
    },
    async source(name) {
      const blob = fw.tab("img2img").getImage(name);
      return blob && uploaded(blob);
    },
  };

  const SHOWN_VALUES = {
    async images(name, list) {
      const items = list.map(async (one) => {
        const image = new Image();
        image.src = one.image?.url ?? one.url;
        await image.decode();
        return { url: image.src, infotext: one.caption || "", seed: "-1", role: "sample", width: image.naturalWidth, height: image.naturalHeight, path: null, name: one.image?.orig_name || "image.png" };
      });
      fw.tab(name).showImages(await Promise.all(items), 0, true);
    },
    source: (name, file) => fw.tab("img2img").setImage(name, file.url),
  };

  const fetched = (url, data, answered, failed) =>
    fetch(url, data).then(async (reply) => answered(JSON.parse(await reply.text()))).catch((error) => failed?.(error));

  Object.assign(window, {
    uiCurrentTab: null,
    localization: {},
    titles: {}, // tooltips by text
    opts: {},
    gradioApp() {
      const app = document.querySelector("gradio-app") || document.body;
      app.getElementById ||= (id) => document.getElementById(id);
      return app;
    },
    onUiUpdate: (callback) => (callbacks.update.push(callback), watch()),
    onAfterUiUpdate: (callback) => (callbacks.after.push(callback), watch()),
    onUiTabChange: (callback) => (callbacks.tab.push(callback), watch()),
    onOptionsChanged: (callback) => callbacks.options.push(callback),
    onUiLoaded: (callback) => (isLoaded ? run([callback]) : callbacks.loaded.push(callback)),
    executeCallbacks: (queue, value) => run(queue, value),
    get_uiCurrentTab: () => document.querySelector("#tabs button[role=tab][aria-selected=true]"),
    get_uiCurrentTabContent: () => [...document.querySelectorAll("#tabs > [id^=tab_], #tabs > div > [id^=tab_]")].find(isShown) || null,
    updateInput(target) {
      target.dispatchEvent(new Event("input", { bubbles: true }));
    },
    switch_to_txt2img: (...values) => (showTab("txt2img"), values),
    switch_to_img2img: (...values) => (window.switch_to_img2img_tab(0), values),
    switch_to_sketch: (...values) => (window.switch_to_img2img_tab(1), values),
    switch_to_inpaint: (...values) => (window.switch_to_img2img_tab(2), values),
    switch_to_inpaint_sketch: (...values) => (window.switch_to_img2img_tab(3), values),
    switch_to_extras: (...values) => (showTab("extras"), values),
    switch_to_img2img_tab(number) {
      showTab("img2img");
      document.querySelectorAll("#mode_img2img button[role=tab], #img2img_mode button[role=tab]")[number]?.click();
    },
    get_tab_index: (id) => Math.max([...document.querySelectorAll(`#${id} > div > button, #${id} button[role=tab]`)].findIndex((one) => one.ariaSelected === "true" || one.classList.contains("selected")), 0),
    all_gallery_buttons: () => [...document.querySelectorAll("[id$=_gallery] button.thumbnail-item, [id$=_gallery] .fw-thumbs button")].filter(isShown),
    selected_gallery_button: () => window.all_gallery_buttons().find((one) => one.matches(".selected, [aria-selected=true], [aria-pressed=true]")) || null,
    selected_gallery_index() {
      const tab = shownForm();
      return tab ? tab.images().indexOf(tab.selectedImage()) : window.all_gallery_buttons().indexOf(window.selected_gallery_button());
    },
    // The arguments of a function with those that the page draws by itself: {place: "kind:name"}, of so many inputs.
    async pageValues(places, count, args) {
      const given = Array.from(args);
      while (given.length < count) given.push(null);
      for (const [place, text] of Object.entries(places)) {
        const [kind, name] = text.split(":");
        given[place] = await PAGE_VALUES[kind](name);
      }
      return given;
    },
    async showPageValue(text, value) {
      const [kind, name] = text.split(":");
      if (!value || value.length === 0) return;
      await SHOWN_VALUES[kind](name, value);
    },
    extract_image_from_gallery: (gallery) => [gallery?.[Math.max(window.selected_gallery_index(), 0)] ?? null],
    args_to_array: (args) => Array.from(args),
    create_submit_args: (args) => Array.from(args),
    randomId: () => `task(${Array.from(crypto.getRandomValues(new Uint8Array(8)), (one) => one.toString(36).padStart(2, "0")).join("").slice(0, 15)})`,
    getTranslation: (text) => fw.text(text),
    restart_reload: () => location.reload(),
    uiElementIsVisible: (element) => element === document || isShown(element),
    uiElementInSight(element) {
      const box = element.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    },
    gallery_container_buttons: (name) => [...document.querySelectorAll(`#${name} :is(.thumbnail-item, .fw-thumbs button)`)],
    get_img2img_tab_index: (...args) => [window.get_tab_index("mode_img2img"), ...args.slice(1, -2)],
    create_tab_index_args: (id, args) => [window.get_tab_index(id), ...Array.from(args).slice(1)],
    currentImg2imgSourceResolution: (width, height, scale) => [width, height, scale],
    dimensionChange() {}, // the page shows no frame of the new size over the image
    // Calls when nobody has typed for a while.
    onEdit(id, element, afterMs, call) {
      let waits = null;
      element.addEventListener("input", () => {
        clearTimeout(waits);
        waits = setTimeout(call, afterMs);
      });
    },
    appendContextMenuOption(selector, name, act) {
      const id = `${selector}_${menuOptions.length}`;
      menuOptions.push({ id, selector, name, act });
      return id;
    },
    removeContextMenuOption(id) {
      const place = menuOptions.findIndex((one) => one.id === id);
      if (place >= 0) menuOptions.splice(place, 1);
    },
    addContextMenuEventListener() {}, // the page listens already
    request: (url, data, answered, failed) => fetched(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data) }, answered, failed),
    requestGet: (url, data, answered, failed) => fetched(`${url}?${new URLSearchParams(data)}`, {}, answered, failed),
    formatTime(seconds) {
      const two = (number) => String(number).padStart(2, "0");
      const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
      if (hours) return `${two(hours)}:${two(minutes)}:${two(rest)}`;
      return minutes ? `${two(minutes)}:${two(rest)}` : `${rest}s`;
    },
    localSet: (key, value) => fw.keep(key, value),
    localGet: (key, otherwise) => fw.kept(key) ?? otherwise,
    localRemove: (key) => localStorage.removeItem(key),
    inputAccordionChecked(id, checked) {
      const box = document.querySelector(`#${id}-checkbox input`);
      if (box && box.checked !== checked) box.click();
    },
    isValidImageList: (files) => files?.length === 1 && /^image\//.test(files[0].type),
    selectCheckpoint: (name) => fw.post("sdapi/v1/options", { sd_model_checkpoint: name }).catch(report),
    confirm_clear_prompt: () => ["", ""], // Undo of the field brings it back
    setRandomSeed: (tab) => fw.tab(tab)?.set("seed", "-1"),
    closePopup: () => document.querySelector("#fw_popup")?.remove(),
    popup(content) {
      window.closePopup();
      const box = document.createElement("dialog");
      box.id = "fw_popup";
      box.append(content);
      document.querySelector(".gradio-container")?.append(box);
      box.addEventListener("click", (event) => event.target === box && window.closePopup());
      box.showModal();
    },
    toggleCss(key, css, enable) {
      let style = document.getElementById(key);
      if (enable && !style) {
        style = document.createElement("style");
        style.id = key;
        document.head.append(style);
      }
      if (style) style.textContent = enable ? css : "";
    },
    // Tells how far a job is until it ends; `onProgress` is given what the server says each time.
    async requestProgress(id, container, gallery, atEnd, onProgress) {
      for (;;) {
        let state;
        try {
          state = await fw.post("internal/progress", { id_task: id, live_preview: false });
        } catch {
          break;
        }
        if (state.completed) break;
        onProgress?.(state);
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
      atEnd?.();
    },
    // What buttons of infotext_utils.create_buttons do.
    sendToTab(name, image, text) {
      const file = Array.isArray(image) ? image[Math.max(window.selected_gallery_index(), 0)] : image;
      const url = file?.url || file?.image?.url || (typeof file === "string" ? file : "");
      const infotext = typeof text === "string" ? text : "";
      const target = { inpaint: "inpaint", extras: "extras", img2img: "img2img" }[name];
      if (url && target) fw.send(target, { url, infotext }).catch((error) => fw.shownTab().message(error.message, true));
      else if (infotext) fw.showTab("txt2img").then(() => fw.tab("txt2img").take(infotext));
    },
  });
  for (const tab of ["txt2img", "img2img"]) {
    window[`submit_${tab}`] = (...values) => (fw.tab(tab)?.press("generate"), values);
    window[`update_${tab}_tokens`] = (...values) => values;
  }
  window.submit = window.submit_txt2img;

  for (const name of ["contextmenu", "click"]) document.addEventListener(name, showMenu);

  addEventListener("error", (event) => {
    const extension = extensionOf({ stack: `${event.filename} ${event.error?.stack || ""}` });
    if (extension) report(event.error || event.message, extension);
  });
  addEventListener("unhandledrejection", (event) => {
    const extension = extensionOf(event.reason);
    if (extension) report(event.reason, extension);
  });

  const load = ({ url, extension }) =>
    new Promise((resolve) => {
      const script = document.createElement("script");
      if (/\.mjs(\?|$)/.test(url)) script.type = "module";
      script.src = url;
      script.onload = resolve;
      script.onerror = () => (report(new Error(fw.t`${url} could not be loaded.`), extension), resolve());
      document.head.append(script);
    });

  async function begin() {
    while (!document.querySelector("#txt2img_prompt textarea")) await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    letRise();
    understandNesting(Document.prototype);
    understandNesting(Element.prototype);
    document.addEventListener("load", holdLoad, true);
    await openOnce();
    dressCards();
    dressImages();
    countAsBefore();
    await readOptions();
    followOptions();
    const restore = [answerWaiting(document, /^DOMContentLoaded$/), answerWaiting(window, /^(DOMContentLoaded|load)$/)];
    for (const script of window.featherweightPage.extensionScripts) await load(script);
    restore.forEach((one) => one());
    shownTab = window.uiCurrentTab = window.get_uiCurrentTab();
    isLoaded = true;
    giveLoads();
    callWaiting();
    run(callbacks.loaded.splice(0));
    nameByText();
    watch();
    run(callbacks.options);
    document.body.dataset.extensions = "loaded";
  }

  begin();
})();
