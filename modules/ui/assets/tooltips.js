// A sentence about the control under the pointer or with the focus; the texts come from tooltips.py.
(() => {
  const fw = window.featherweight;
  const WAIT_MS = 600;
  const GAP = 8;
  const NARROW = window.matchMedia?.("(max-width: 760px)"); // a tip would cover the next field
  let tip = null;
  let shown = null; // the element that the tip is about
  let timer = 0;
  const pointer = { x: NaN, y: NaN };
  let pressed = null; // who presses a control knows it: nothing is said of it until the pointer has been elsewhere

  const texts = () => fw.help || {};

  // The innermost element around this one of which there is something to say.
  function about(element) {
    for (let part = element?.closest?.("[id]"); part; part = part.parentElement?.closest("[id]")) {
      if (Object.hasOwn(texts(), part.id)) return part;
    }
    return null;
  }

  function hide() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip?.remove();
  }

  function show(element, described) {
    hide();
    if (!element.isConnected || !element.checkVisibility() || NARROW?.matches) return;
    tip = tip || fw.element("div", { id: "fw_tip", attributes: { role: "tooltip" } });
    tip.textContent = fw.text(texts()[element.id]);
    (element.closest(".gradio-container") || document.body).append(tip);
    shown = described;
    shown.setAttribute("aria-describedby", "fw_tip");
    const around = element.getBoundingClientRect();
    const below = around.bottom + GAP + tip.offsetHeight < window.innerHeight;
    tip.style.top = `${below ? around.bottom + GAP : Math.max(GAP, around.top - GAP - tip.offsetHeight)}px`;
    tip.style.left = `${Math.max(GAP, Math.min(around.left, window.innerWidth - tip.offsetWidth - GAP))}px`;
  }

  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    if (event.clientX === pointer.x && event.clientY === pointer.y) return; // at rest: the page moved below it
    clearTimeout(timer);
    const element = about(event.target);
    if (element !== pressed) pressed = null;
    if (pressed) return;
    if (!element) return shown && !shown.matches(":focus-visible") && hide();
    timer = setTimeout(() => show(element, event.target), WAIT_MS);
  });
  document.addEventListener("pointermove", ({ clientX, clientY }) => Object.assign(pointer, { x: clientX, y: clientY }), { passive: true });
  document.addEventListener("focusin", (event) => {
    const element = about(event.target);
    if (element && event.target.matches(":focus-visible")) timer = setTimeout(() => show(element, event.target), WAIT_MS);
    else hide();
  });
  for (const kind of ["focusout", "pointerdown", "wheel", "input"]) document.addEventListener(kind, hide, { passive: true });
  document.addEventListener("pointerdown", (event) => (pressed = about(event.target)), { passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
