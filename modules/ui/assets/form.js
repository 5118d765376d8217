// The form outlives the page: its values are kept whenever one changes, and put back when the page is opened.
(() => {
  const fw = window.featherweight;

  for (const tab of fw.tabs) {
    const KEY = `form.${tab.prefix}`;
    const earlier = fw.kept(KEY) || "";
    let isOpen = false; // before that, values that arrive are those of an empty form

    // What the page that stood here before kept, as JSON; empty where there is nothing.
    tab.keptForm = () => earlier;

    // Called when the fields of the page are filled: from now on each change is kept.
    tab.formOpened = (values) => {
      isOpen = true;
      tab.hasKeptForm = earlier !== "";
      tab.keepForm(values);
    };

    tab.keepForm = (values) => {
      tab.form = fw.namedValues(tab.fields, values);
      const others = values.slice(tab.fields.length).map((value) => (isFile(value) ? null : value));
      if (isOpen) fw.keep(KEY, JSON.stringify({ fields: tab.form, others }));
      tab.describeForm();
    };

    // What a model for few steps asks for: steps, CFG scale, sampler and schedule type, put into the form at once.
    tab.takeSteps = (asked) => {
      tab.askedSteps = asked;
      tab.press("take_steps");
    };

    // In the order of `names`; what a file does not ask for stays as it is.
    tab.wantedSteps = (names) => names.map((name) => tab.askedSteps[name] || tab.form[name]);

    tab.hasSteps = (asked) => ["steps", "cfg_scale", "sampler", "scheduler"].every((name) => !asked[name] || asked[name] === tab.form[name]);

    tab.describeForm = () => {
      describe("hr", tab.form.hires_enabled ? fw.hiresLine(tab.form) : "");
      describe("refiner", fw.refinerLine(tab.form));
      const size = tab.find("hr_size");
      if (size) size.textContent = tab.form.hires_enabled ? "" : fw.hiresLine(tab.form); // else the head says it
    };

    function describe(name, text) {
      const head = tab.find(name, ".label-wrap > span");
      if (head) head.dataset.state = text;
    }
  }

  const isFile = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  fw.namedValues = (names, values) => Object.fromEntries(names.map((name, index) => [name, values[index]]));

  // What hires fix makes of the size: "from 512x512 to 1024x1024".
  fw.hiresLine = (form) => {
    const number = (name) => Number(form[name]) || 0;
    const [width, height, scale] = [number("width"), number("height"), number("hires_scale")];
    const [wantWidth, wantHeight] = [number("hires_resize_width"), number("hires_resize_height")];
    let size = [width * scale, height * scale];
    if (wantWidth && wantHeight) size = [wantWidth, wantHeight];
    else if (wantWidth) size = [wantWidth, (wantWidth * height) / width];
    else if (wantHeight) size = [(wantHeight * width) / height, wantHeight];
    return `from ${width}x${height} to ${size.map(Math.floor).join("x")}`;
  };

  // "sharp.safetensors at 0.8"; empty where no refiner is chosen.
  fw.refinerLine = (form) => {
    const name = form.refiner_checkpoint;
    return !name || name === "None" ? "" : `${name.replace(/ \[\w+\]$/, "")} at ${form.refiner_switch_at}`;
  };
})();
