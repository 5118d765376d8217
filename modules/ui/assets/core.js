// Small helpers that the other scripts share. `featherweight` is the page's only global.
window.featherweight = {
  settings: {}, // as the server has them; see page_settings.py

  $: (selector) => document.querySelector(selector),
  $$: (selector) => [...document.querySelectorAll(selector)],

  async post(path, body) {
    const reply = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const data = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Error(data.errors || `The server answered ${reply.status}.`);
    return data;
  },

  async get(path) {
    const reply = await fetch(path);
    const data = await reply.json().catch(() => ({}));
    if (!reply.ok) throw new Error(data.errors || `The server answered ${reply.status}.`);
    return data;
  },

  // Set a Gradio field as if it were typed.
  setField(id, value) {
    const field = document.querySelector(`#${id} textarea, #${id} input[type=number], #${id} input`);
    if (!field) return;
    const proto = field.tagName === "TEXTAREA" ? HTMLTextAreaElement.prototype : HTMLInputElement.prototype;
    Object.getOwnPropertyDescriptor(proto, "value").set.call(field, value);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
    field.dispatchEvent(new Event("blur", { bubbles: true }));
  },

  field(id) {
    return document.querySelector(`#${id} textarea, #${id} input[type=number], #${id} input`);
  },

  message(text, isError) {
    const place = document.querySelector("#txt2img_messages");
    if (!place) return;
    const box = document.createElement("div");
    box.className = `fw-message ${isError ? "fw-error" : "fw-note"}`;
    if (isError) box.setAttribute("role", "alert");
    box.textContent = text;
    place.append(box);
  },

  clearMessages() {
    document.querySelector("#txt2img_messages")?.replaceChildren();
  },
};
