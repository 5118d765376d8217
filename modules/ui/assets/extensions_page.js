// The names that scripts of extensions for the reference UI call, over this page; and their scripts, loaded by address
// once the page can be used, one after the other. A mistake in one costs no other.
(() => {
  const fw = window.featherweight;
  const WAIT_MS = 200; // between a change of the page and onAfterUiUpdate
  const LOOK_MS = 50;
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
      timer = setTimeout(() => run(callbacks.after), WAIT_MS);
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

  const isShown = (element) => Boolean(element && element.offsetParent !== null);

  // How Gradio 3 nested what scripts look for, and how it is nested here; asked only where nothing was found.
  const OLD_NESTING = /tab-nav|>\s*label\s*>/;
  const NESTING = [
    [/\s*>\s*label\s*>\s*(textarea|input)/g, " label $1"],
    [/\s*>\s*(?:div)?\.tab-nav/g, " > .tab-wrapper > .tab-container[role=tablist]"],
    [/(?:div)?\.tab-nav/g, ".tab-wrapper > .tab-container[role=tablist]"],
  ];

  function nestedHere(selector) {
    return NESTING.reduce((text, [old, now]) => text.replace(old, now), String(selector));
  }

  function understandNesting() {
    for (const kind of [Document.prototype, Element.prototype]) {
      for (const [name, isFound] of [["querySelector", Boolean], ["querySelectorAll", (list) => list.length > 0]]) {
        const own = kind[name];
        kind[name] = function (selector) {
          const found = own.call(this, selector);
          return isFound(found) || !OLD_NESTING.test(selector) ? found : own.call(this, nestedHere(selector));
        };
      }
    }
  }

  // Gradio 3 wrote a blank behind a tab's name, and scripts compare with it.
  function endTabsInBlanks() {
    for (const tab of document.querySelectorAll("button[role=tab]")) tab.append(" ");
  }

  // Scripts look for fields of img2img at once, which are on the page only after its tab was open.
  async function showImg2imgOnce() {
    const tabs = [...document.querySelectorAll("#tabs button[role=tab]")];
    const shown = tabs.find((one) => one.ariaSelected === "true");
    const other = tabs.find((one) => one.textContent.trim() === "img2img" || one.dataset.tabId === "img2img");
    if (!other || !shown || shown === other || document.querySelector("#img2img_prompt")) return;
    const focused = document.activeElement;
    other.click();
    for (let i = 0; i < 40 && !document.querySelector("#img2img_prompt textarea"); i += 1) await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    shown.click();
    focused?.focus?.({ preventScroll: true });
  }

  Object.assign(window, {
    uiCurrentTab: null,
    localization: {},
    opts: {},
    gradioApp() {
      const app = document.querySelector("gradio-app") || document.body;
      if (!app.getElementById) {
        app.getElementById = (id) => document.getElementById(id);
      }
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
    switch_to_txt2img: (...values) => (fw.showTab("txt2img"), values),
    switch_to_img2img: (...values) => (window.switch_to_img2img_tab(0), values),
    switch_to_sketch: (...values) => (window.switch_to_img2img_tab(1), values),
    switch_to_inpaint: (...values) => (window.switch_to_img2img_tab(2), values),
    switch_to_inpaint_sketch: (...values) => (window.switch_to_img2img_tab(3), values),
    switch_to_extras: (...values) => (fw.showTab("extras"), values),
    switch_to_img2img_tab(number) {
      fw.showTab("img2img");
      document.querySelectorAll("#mode_img2img button[role=tab], #img2img_mode button[role=tab]")[number]?.click();
    },
    get_tab_index: (id) => Math.max([...document.querySelectorAll(`#${id} > div > button, #${id} button[role=tab]`)].findIndex((one) => one.ariaSelected === "true" || one.classList.contains("selected")), 0),
    all_gallery_buttons: () => [...document.querySelectorAll("[id$=_gallery] button.thumbnail-item, [id$=_gallery] .fw-thumbnails button")].filter(isShown),
    selected_gallery_button: () => window.all_gallery_buttons().find((one) => one.matches(".selected, [aria-selected=true], [aria-pressed=true]")) || null,
    selected_gallery_index: () => window.all_gallery_buttons().indexOf(window.selected_gallery_button()),
    extract_image_from_gallery: (gallery) => [gallery?.[Math.max(window.selected_gallery_index(), 0)] ?? null],
    args_to_array: (args) => Array.from(args),
    create_submit_args: (args) => Array.from(args),
    randomId: () => `task(${Array.from(crypto.getRandomValues(new Uint8Array(8)), (one) => one.toString(36).padStart(2, "0")).join("").slice(0, 15)})`,
    getTranslation: (text) => fw.text(text),
    restart_reload: () => location.reload(),
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
      script.onerror = () => (report(new Error(`${url} could not be loaded.`), extension), resolve());
      document.head.append(script);
    });

  async function begin() {
    while (!document.querySelector("#txt2img_prompt textarea")) await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    understandNesting();
    await showImg2imgOnce();
    endTabsInBlanks();
    try {
      window.opts = await fw.get("sdapi/v1/options");
    } catch {
      window.opts = {}; // whoever may not read the settings has pages without them
    }
    for (const script of window.featherweightPage.extensionScripts) await load(script);
    shownTab = window.uiCurrentTab = window.get_uiCurrentTab();
    isLoaded = true;
    run(callbacks.loaded.splice(0));
    watch();
    run(callbacks.options);
    document.body.dataset.extensions = "loaded";
  }

  begin();
})();
