// The fields of the Settings tab: one for each setting, made of what the server says of it.
(() => {
  const fw = window.featherweight;
  const FEW = 4; // so many names are shown side by side, more in a list
  let lists = 0;

  const element = (...parts) => fw.element(...parts);
  const options = (choices) => choices.map((text) => element("option", { value: text, textContent: text }));

  // Each gives the elements of a field, what it holds, and how to set it.
  const FIELDS = {
    bool: () => {
      const box = element("input", { type: "checkbox" });
      return { parts: [box], value: () => box.checked, set: (value) => { box.checked = value; } };
    },

    color: () => text(element("input", { type: "color" })),

    text: ({ value }) => text(value.includes("\n") ? element("textarea", { rows: 4 }) : element("input", { type: "text" })),

    choice: ({ choices, label, id }) => {
      if (choices.length <= FEW) return radios(choices, label, id);
      const select = element("select", {}, ...options(choices));
      select.translate = false;
      const set = (value) => {
        if (!choices.includes(value)) select.append(...options([value])); // a file that is gone stays named
        select.value = value;
      };
      return { parts: [select], value: () => select.value, set };
    },

    list: ({ choices, label }) => {
      let chosen = [];
      const chips = element("span", { className: "fw-chips" });
      const id = `settings_choices_${(lists += 1)}`;
      const more = element("input", { type: "text", attributes: { list: id, autocomplete: "off" } });
      const known = element("datalist", { id }, ...options(choices));
      chips.translate = false;
      const show = (values) => {
        chosen = [...values];
        chips.replaceChildren(...chosen.map((text, place) => chip(text, () => {
          more.focus();
          change(chosen.filter((_, index) => index !== place));
        })));
        known.replaceChildren(...options(choices.filter((text) => !chosen.includes(text))));
      };
      const change = (values) => {
        show(values);
        more.dispatchEvent(new Event("input", { bubbles: true }));
      };
      const take = () => {
        const text = more.value.trim();
        if (!text) return;
        more.value = "";
        if (!chosen.includes(text)) change([...chosen, text]);
      };
      more.addEventListener("change", take);
      more.addEventListener("input", () => choices.includes(more.value) && take());
      more.addEventListener("keydown", (event) => {
        if (event.key === "Enter") take();
        if (event.key === "Backspace" && !more.value) change(chosen.slice(0, -1));
      });
      more.setAttribute("aria-label", label);
      return { parts: [chips, more, known], value: () => chosen, set: show, isGroup: true };
    },

    int: (setting) => number(setting),
    float: (setting) => number(setting),
  };

  function text(input) {
    return { parts: [input], value: () => input.value, set: (value) => { input.value = value ?? ""; } };
  }

  function chip(shown, remove) {
    const button = element("button", { type: "button", textContent: "×", title: `${fw.text(fw.t`Remove`)}: ${shown}` });
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", remove);
    return element("span", { className: "fw-chip" }, shown, button);
  }

  function radios(choices, label, id) {
    const all = choices.map((value) => element("input", { type: "radio", name: id, value }));
    const parts = all.map((input) => element("label", {}, input, element("span", { textContent: input.value })));
    const group = element("span", { className: "fw-radios", attributes: { role: "radiogroup", "aria-label": label } }, ...parts);
    const set = (value) => all.forEach((input) => { input.checked = input.value === value; });
    return { parts: [group], value: () => all.find((input) => input.checked)?.value ?? null, set, isGroup: true };
  }

  function number({ type, minimum, maximum, step, label }) {
    const limits = { min: minimum ?? "", max: maximum ?? "", step: step ?? (type === "int" ? 1 : "any") };
    const input = element("input", { type: "number", ...limits });
    const value = () => (input.value === "" || Number.isNaN(input.valueAsNumber) ? null : input.valueAsNumber);
    const parts = [input];
    let slider = null;
    if (minimum !== null && maximum !== null && step !== null) {
      slider = element("input", { type: "range", ...limits, attributes: { "aria-label": label } });
      slider.addEventListener("input", () => { input.value = slider.value; });
      input.addEventListener("input", () => { slider.value = input.value; });
      parts.unshift(slider);
    }
    const set = (wanted) => {
      input.value = wanted ?? "";
      if (slider) slider.value = wanted ?? minimum;
    };
    return { parts, value, set };
  }

  // The field of a setting, as `described` of settings_form.py gives it: its element, `value()` and `set(value)`.
  fw.settingField = (setting) => {
    const field = FIELDS[setting.type](setting);
    const name = element("span", { className: "fw-setting-name", textContent: setting.label });
    const hint = setting.hint ? [element("small", { textContent: setting.hint, id: `${setting.id}_hint` })] : [];
    const row = element("span", { className: "fw-setting-field" }, ...field.parts);
    const holder = field.isGroup ? "div" : "label";
    const place = setting.type === "bool" ? [row, name] : [name, row];
    const root = element("div", { id: setting.id, className: `fw-setting fw-setting-${setting.type}` });
    root.append(element(holder, { className: "fw-setting-label" }, ...place), ...hint);
    for (const input of root.querySelectorAll("input, select, textarea, button")) {
      input.disabled = setting.is_locked;
      if (hint.length) input.setAttribute("aria-describedby", `${setting.id}_hint`);
    }
    field.set(setting.value);
    return { key: setting.key, initial: setting.initial, element: root, value: field.value, set: field.set };
  };
})();
