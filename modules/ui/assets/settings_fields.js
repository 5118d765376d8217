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

    choice: ({ choices, label, id, is_open }) => {
      if (choices.length <= FEW && !is_open) return radios(choices, label, id);
      const select = element("select");
      select.translate = false;
      let known = choices;
      let none = false; // the setting may be null
      const set = (value) => {
        none = value === null;
        const gone = known.includes(value) || none ? [] : [value]; // a file that is gone stays named
        select.replaceChildren(...options([...known, ...gone]));
        select.value = value;
      };
      const value = () => (select.value || !none ? select.value : null);
      const setChoices = (found) => {
        const chosen = value();
        known = found;
        set(chosen);
      };
      return { parts: [select], value, set, setChoices };
    },

    list: ({ choices, label }) => {
      let chosen = [];
      const chips = element("span", { className: "fw-chips" });
      let names = choices;
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
        known.replaceChildren(...options(names.filter((text) => !chosen.includes(text))));
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
      more.addEventListener("input", () => names.includes(more.value) && take());
      more.addEventListener("keydown", (event) => {
        if (event.key === "Enter") take();
        if (event.key === "Backspace" && !more.value) change(chosen.slice(0, -1));
      });
      more.setAttribute("aria-label", label);
      const setChoices = (found) => {
        names = found;
        show(chosen);
      };
      return { parts: [chips, more, known], value: () => chosen, set: show, setChoices, isGroup: true };
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

  // A button that has an extension look again for what a setting shows, and what keeps it from that.
  function refreshing({ key }, field) {
    const problem = element("small", { attributes: { role: "alert" } });
    const button = element("button", { type: "button", className: "fw-refresh", textContent: fw.t`Refresh` });
    button.addEventListener("click", async () => {
      button.disabled = true;
      problem.textContent = "";
      try {
        const { choices } = await fw.post("internal/settings/refresh", { key });
        field.setChoices?.(choices);
      } catch (error) {
        problem.textContent = error.message;
      }
      button.disabled = false;
    });
    return [button, problem];
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
    const refresh = setting.refreshes ? refreshing(setting, field) : [];
    root.append(element(holder, { className: "fw-setting-label" }, ...place), ...refresh, ...hint);
    for (const input of root.querySelectorAll("input, select, textarea, button")) {
      input.disabled = setting.is_locked;
      if (hint.length) input.setAttribute("aria-describedby", `${setting.id}_hint`);
    }
    field.set(setting.value);
    return { key: setting.key, initial: setting.initial, element: root, value: field.value, set: field.set };
  };
})();
