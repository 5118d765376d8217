// The units of ControlNet: fields are built when the section is opened, and written as JSON into one hidden field.
(() => {
  const fw = window.featherweight;
  const NUMBERS = [
    ["weight", fw.t`Control weight`, 0, 2, 0.05, 1],
    ["guidance_start", fw.t`Starting step`, 0, 1, 0.01, 0],
    ["guidance_end", fw.t`Ending step`, 0, 1, 0.01, 1],
  ];
  const CHOICES = [
    ["control_mode", fw.t`Control mode`, [fw.t`Balanced`, fw.t`My prompt is more important`, fw.t`ControlNet is more important`]],
    ["resize_mode", fw.t`Resize mode`, [fw.t`Just Resize`, fw.t`Crop and Resize`, fw.t`Resize and Fill`], "Crop and Resize"],
    ["hr_option", fw.t`Hires fix`, [fw.t`Both`, fw.t`Low res only`, fw.t`High res only`]],
    ["union_control_type", fw.t`Type of a union model`, ["Unknown", "OpenPose", fw.t`Depth`, fw.t`Soft Edge`, fw.t`Hard Edge`, fw.t`Normal Map`, fw.t`Segmentation`, fw.t`Tile`, fw.t`Inpaint`]],
  ];
  const SIMPLE = "simple";
  const MODES = [
    [SIMPLE, fw.t`One image`],
    ["batch", fw.t`One after the other, each makes images`],
    ["merge", fw.t`All together, they share the weight`],
  ];
  const SIDE = { processor_res: fw.t`Resolution` };

  const { element, labelled, options, select, slider, asText, imageAt, imageField } = fw.control;
  const FITS = { "Just Resize": "fill", "Crop and Resize": "cover", "Resize and Fill": "contain" }; // how an image lies in what is made
  const NONE = "None";

  // What modules and models there are: asked once, when the first section is opened, and again when one is looked for.
  let lists = null;
  const known = (again = false) => {
    if (again) lists = null;
    lists ??= Promise.all([fw.get("controlnet/module_list?alias_names=true"), fw.get("controlnet/model_list?shipped=true")]);
    return lists;
  };

  // The size of what the form of a tab makes, in pixels.
  const sizeOf = (tab) => ["width", "height"].map((side) => Math.floor(Number(fw.field(`${tab}_${side}`)?.value || 512) / 8) * 8);

  // The short side at which pixel perfect has an image processed; `pixel_perfect` of fitting.py is the same for jobs.
  const perfectSide = (image, [width, height], resizeMode) => {
    const scales = [height / image.naturalHeight, width / image.naturalWidth];
    const scale = resizeMode === "Resize and Fill" ? Math.min(...scales) : Math.max(...scales);
    return Math.round(scale * Math.min(image.naturalWidth, image.naturalHeight));
  };

  // One unit: its fields, how they are read, and how they are filled.
  const unitOf = (tab, modules, models, changed) => {
    const state = {};
    let images = []; // one, or several where input_mode has them
    const button = (textContent, icon = "") => element("button", { type: "button", textContent, className: `controlnet-button ${icon}`.trim() });
    const fields = {
      enabled: element("input", { type: "checkbox" }),
      module: select(modules.module_list, "none"),
      model: select([NONE, ...models.model_list], NONE),
      pixel_perfect: element("input", { type: "checkbox" }),
      input_mode: select(MODES, SIMPLE),
    };
    const numbers = NUMBERS.map(([key, text, min, max, step, value]) => {
      const { field, root } = slider(text, { min, max, step, value });
      fields[key] = field;
      return root;
    });
    for (const [key, , names, value] of CHOICES) fields[key] = select(names, value ?? names[0]);
    const choice = (key) => labelled(CHOICES.find(([name]) => name === key)[1], fields[key]);
    const sliders = element("div", { className: "controlnet-row" });
    const preview = element("img", { alt: fw.t`Map of the preprocessor`, className: "controlnet-image", hidden: true });
    const map = element("div", { className: "controlnet-map" }, element("span", { textContent: fw.t`Map of the preprocessor` }), preview);
    const look = button(fw.t`Preview`, "fw-icon-eye");
    look.title = fw.t`Show what the preprocessor makes of the image`;
    const result = button(fw.t`Use the result`);
    result.title = fw.t`Take the image on the stage`;
    const clear = button(fw.t`Remove image`);
    clear.ariaLabel = "Clear"; // editors of poses that people have know it by this name, and the fields around it by theirs
    const posing = button(fw.t`Edit pose`, "fw-icon-edit");
    posing.title = fw.t`Place the body points of people; a preview of openpose gives those of the image`;
    const editor = element("div", { className: "controlnet-editor" });
    let posed = {}; // the pose that the unit's image shows, and what lies below it in the editor
    const problem = element("p", { className: "controlnet-problem", role: "status" });

    const refresh = element("button", { type: "button", textContent: "↻", className: "controlnet-button", title: fw.t`Look for new files` });
    refresh.ariaLabel = fw.t`Look for new files`;
    const getModels = button(fw.t`Get models`);
    const lacking = element("p", { className: "controlnet-lacking", hidden: true }, element("span"), getModels);

    const maskFile = element("input", { type: "file", accept: "image/*" });
    const region = element("img", { alt: fw.t`Mask of where the unit counts`, className: "controlnet-image", hidden: true });
    const paint = button(fw.t`Paint mask`, "fw-icon-brush");
    const everywhere = button(fw.t`Remove mask`);

    // What is refused is said below the images.
    const trying = async (act) => {
      problem.textContent = "";
      try {
        await act();
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    const onClick = (pressed, act) =>
      pressed.addEventListener("click", async () => {
        pressed.disabled = true;
        await trying(act);
        pressed.disabled = false;
      });

    const curve = element("div", { className: "controlnet-curve", title: fw.t`Weight over the steps` });
    const showCurve = () => {
      const [weight, start, end] = ["weight", "guidance_start", "guidance_end"].map((key) => Number(fields[key].value));
      const height = 36 - 16 * Math.min(Math.max(weight, 0), 2);
      const [from, to] = [start, end].map((share) => 200 * Math.min(Math.max(share, 0), 1));
      const line = `M0 36H${from}V${height}H${to}V36H200`;
      curve.innerHTML = `<svg viewBox="0 0 200 40" aria-hidden="true" preserveAspectRatio="none"><path d="${line}"/></svg>`;
    };

    const showSliders = () => {
      sliders.replaceChildren();
      for (const key of ["processor_res", "threshold_a", "threshold_b"]) delete fields[key];
      const own = modules.module_detail[fields.module.value]?.sliders ?? [];
      const thresholds = ["threshold_a", "threshold_b"];
      for (const { name, min, max, step, value } of own) {
        const key = name === SIDE.processor_res ? "processor_res" : thresholds.shift();
        const { field, root } = slider(name, { min, max, step: step ?? 1, value: state[key] ?? value });
        fields[key] = field;
        field.addEventListener("change", changed);
        sliders.append(root);
      }
    };

    // What the unit lacks before it can be used, with the way to get it.
    const showLacking = () => {
      const chosen = fields.model.selectedOptions[0];
      const isFree = modules.module_detail[fields.module.value]?.model_free;
      const isGone = chosen?.dataset.gone !== undefined;
      lacking.hidden = !isGone && (isFree || !fields.enabled.checked || fields.model.value !== NONE);
      lacking.firstChild.textContent = isGone ? fw.t`Control model '${chosen.value}' is not here.` : fw.t`The unit needs a control model.`;
      getModels.hidden = fw.me.role !== "admin";
    };
    const chooseModel = (name) => {
      for (const gone of fields.model.querySelectorAll("[data-gone]")) gone.remove();
      const found = [...fields.model.options].map((one) => one.value).find((one) => one.startsWith(name));
      if (found === undefined) {
        const gone = options([name])[0];
        gone.dataset.gone = "";
        fields.model.append(gone);
      }
      fields.model.value = found ?? name;
    };
    const showPosing = () => {
      posing.hidden = !posed.pose && !/pose/i.test(`${fields.module.value} ${fields.model.value}`);
    };
    const hasSeveral = () => fields.input_mode.value !== SIMPLE;
    const body = element("div");
    const { drop, image, others, show } = imageField(body, trying, (found) => take(found));
    const given = element("div", { className: "cnet-image", "data-testid": "image" }, drop); // as their units have it
    const showImage = () => {
      show(images, hasSeveral());
      if (images.length) given.append(clear);
      else clear.remove();
      preview.hidden = true;
    };
    const setImages = (found) => {
      images = found;
      showPosing();
      showLacking();
      showImage();
      changed();
    };
    // Images from outside: the unit is meant to be used.
    const take = (found) => {
      posed = {};
      fields.enabled.checked = true;
      setImages(found);
    };
    const showRegion = () => {
      const mask = state.effective_region_mask;
      region.hidden = everywhere.hidden = !mask;
      if (mask) region.src = mask.startsWith("data:") ? mask : `data:image/png;base64,${mask}`;
    };
    const setRegion = (mask) => {
      state.effective_region_mask = mask;
      showRegion();
      changed();
    };
    const read = () => {
      const unit = { save_detected_map: true };
      for (const [key, field] of Object.entries(fields)) {
        unit[key] = field.type === "checkbox" ? field.checked : field.type === "number" ? Number(field.value) : field.value;
      }
      if (images.length) unit.image = hasSeveral() ? images.map((image) => ({ image })) : images[0];
      if (state.effective_region_mask) unit.effective_region_mask = state.effective_region_mask;
      return unit;
    };
    const fill = (unit) => {
      Object.assign(state, unit);
      if (unit.image) images = [unit.image].flat().map((one) => one.image ?? one);
      for (const [key, value] of Object.entries(unit)) {
        const field = fields[key];
        if (!field || key === "module") continue;
        if (key === "model") chooseModel(String(value));
        else if (field.type === "checkbox") field.checked = Boolean(value);
        else if (field.tagName === "SELECT") field.value = [...field.options].map((one) => one.value).find((name) => name.startsWith(String(value))) ?? field.value;
        else field.value = value;
        field.show?.();
      }
      if (unit.module) fields.module.value = modules.module_list.find((name) => name === unit.module || name.startsWith(`${unit.module} `)) ?? unit.module;
      showSliders();
      posed = {};
      showPosing();
      showImage();
      showRegion();
      showCurve();
      showLacking();
    };

    clear.addEventListener("click", () => {
      posed = {};
      setImages([]);
    });
    onClick(result, async () => {
      const item = fw.tab(tab).selectedImage();
      if (!item) throw new Error(fw.t`There is no image on the stage yet.`);
      take([await imageAt(item.url)]);
    });
    onClick(refresh, async () => {
      const now = fields.model.value;
      const [, found] = await known(true);
      fields.model.replaceChildren(...options([NONE, ...found.model_list], NONE));
      chooseModel(now);
      showLacking();
    });
    getModels.addEventListener("click", () => fw.getModels());
    fields.input_mode.addEventListener("change", showImage);
    fields.module.addEventListener("change", showSliders);
    for (const field of [fields.module, fields.model]) field.addEventListener("change", showPosing);
    for (const field of [fields.module, fields.model, fields.enabled]) field.addEventListener("change", showLacking);
    onClick(look, async () => {
      const unit = read();
      preview.hidden = true;
      if (!images.length) throw new Error(fw.t`This unit has no image to look at. Choose one first.`);
      await image.decode();
      const perfect = unit.pixel_perfect && perfectSide(image, sizeOf(tab), unit.resize_mode);
      const found = await fw.post("controlnet/detect", {
        controlnet_module: unit.module,
        controlnet_input_images: [images[0]],
        controlnet_processor_res: perfect || (unit.processor_res ?? -1),
        controlnet_threshold_a: unit.threshold_a ?? -1,
        controlnet_threshold_b: unit.threshold_b ?? -1,
      });
      preview.src = `data:image/png;base64,${found.images[0]}`;
      preview.hidden = false;
      if (found.poses?.[0]) posed = { pose: found.poses[0], image: images[0] };
      showPosing();
    });
    onClick(posing, async () => {
      if (images.length) await image.decode();
      const size = images.length ? [image.naturalWidth, image.naturalHeight] : sizeOf(tab);
      const below = posed.pose ? posed.image : images[0];
      const pose = await fw.editPose({ pose: posed.pose, size, image: below, place: editor });
      if (!pose) return;
      const found = await fw.post("controlnet/render_openpose_json", [pose]);
      posed = { pose, image: below };
      fields.module.value = "none";
      fields.enabled.checked = true;
      showSliders();
      setImages([`data:image/png;base64,${found.images[0]}`, ...images.slice(1)]);
    });

    maskFile.addEventListener("change", async () => {
      if (maskFile.files.length) setRegion(await asText(maskFile.files[0]));
    });
    onClick(paint, async () => {
      const fit = FITS[fields.resize_mode.value];
      const mask = await fw.paintRegion({ size: sizeOf(tab), image: images[0], fit, mask: region.hidden ? null : region.src });
      if (mask) setRegion(mask);
    });
    everywhere.addEventListener("click", () => {
      maskFile.value = "";
      setRegion(null);
    });

    const row = (...children) => element("div", { className: "controlnet-row" }, ...children);
    const check = (text, field) => element("label", { className: "controlnet-check" }, field, element("span", { textContent: text }));
    body.append(
      row(check(fw.t`Enable`, fields.enabled), check(fw.t`Pixel perfect`, fields.pixel_perfect)),
      element("div", { className: "controlnet-images" }, element("div", { className: "cnet-input-image-group" }, given), map),
      others,
      row(look, result, posing),
      editor,
      problem,
      row(labelled(fw.t`Preprocessor`, fields.module), labelled(fw.t`Control model`, fields.model), refresh),
      lacking,
      sliders,
      row(...numbers),
      curve,
      row(choice("control_mode"), choice("resize_mode")),
      element("details", {},
        element("summary", { textContent: fw.t`More` }),
        row(labelled(fw.t`Images`, fields.input_mode), choice("hr_option"), choice("union_control_type")),
        row(labelled(fw.t`Mask: where the unit counts (white)`, maskFile), paint, everywhere),
        row(region),
      ),
    );
    for (const field of Object.values(fields)) field.addEventListener("change", changed);
    for (const [key] of NUMBERS) fields[key].addEventListener("input", showCurve);
    showSliders();
    showPosing();
    showRegion();
    showCurve();
    return { body, read, fill, take, turnOff: () => (fields.enabled.checked = false) };
  };

  const build = async (place) => {
    if (place.dataset.built) return;
    place.dataset.built = "yes";
    const found = () => document.querySelector(`#${place.dataset.tab}_controlnet_units :is(textarea, input)`);
    const [modules, models] = await known();
    for (let tries = 0; tries < 50 && !found(); tries += 1) await new Promise((resolve) => setTimeout(resolve, 100)); // Gradio builds it next
    const holder = found();
    const units = [];
    const heads = [];
    let written = holder?.value ?? "";
    const changed = () => {
      const found = units.map((unit) => unit.read());
      heads.forEach((head, number) => head.classList.toggle("is-on", found[number].enabled));
      written = found.some((unit) => unit.enabled) ? JSON.stringify(found) : "";
      holder.value = written;
      holder.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const fill = () => {
      const given = written ? JSON.parse(written) : [];
      units.forEach((unit, number) => (given[number] ? unit.fill({ enabled: false, ...given[number] }) : unit.turnOff()));
      heads.forEach((head, number) => head.classList.toggle("is-on", Boolean(given[number]?.enabled)));
    };
    const choose = (chosen) =>
      heads.forEach((head, number) => {
        head.setAttribute("aria-selected", String(number === chosen));
        head.tabIndex = number === chosen ? 0 : -1;
        units[number].body.hidden = number !== chosen;
      });
    const bar = element("div", { className: "controlnet-tabs", role: "tablist", ariaLabel: fw.t`ControlNet units` });
    place.append(bar);
    for (let number = 0; number < Number(place.dataset.units); number += 1) {
      const unit = unitOf(place.dataset.tab, modules, models, changed);
      const id = `${place.dataset.tab}_controlnet_unit_${number}`;
      const head = element("button", { type: "button", id: `${id}_head`, role: "tab", textContent: fw.t`Unit ${number}`, "aria-controls": id });
      head.addEventListener("click", () => choose(number));
      Object.assign(unit.body, { id, className: "tabitem", role: "tabpanel" });
      unit.body.setAttribute("aria-labelledby", head.id);
      units.push(unit);
      heads.push(head);
      bar.append(head);
      place.append(unit.body);
    }
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (heads.indexOf(document.activeElement) + step + heads.length) % heads.length;
      choose(next);
      heads[next].focus();
    });
    choose(0);
    place.take = (image) => units[Math.max(heads.findIndex((head) => head.tabIndex === 0), 0)].take([image]);
    fill();
    // A pasted infotext and a kept form write the field; there is no event for that.
    setInterval(() => {
      if (holder && holder.value !== written) {
        written = holder.value;
        fill();
      }
    }, 700);
  };

  const watch = () => {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) build(entry.target);
    });
    const begun = new WeakSet();
    new MutationObserver(() => {
      for (const place of document.querySelectorAll(".controlnet-units")) {
        if (!begun.has(place)) {
          begun.add(place);
          seen.observe(place);
          place.addEventListener("fw-wanted", () => build(place)); // scripts of extensions look for its fields unseen
          // A script that opens the fold looks for the units at once, wherever the form is scrolled to.
          const head = place.closest(".fw-script")?.querySelector(":scope > .label-wrap");
          if (head?.classList.contains("open")) build(place);
          else head?.addEventListener("click", () => build(place), { once: true });
        }
      }
    }).observe(document.body, { childList: true, subtree: true });
  };
  watch();

  // An image from elsewhere becomes that of the unit that is shown, in the form that was shown last.
  const MOUNT_MS = 100;
  const until = async (found, tries = 100) => {
    for (; !found() && tries; tries -= 1) await new Promise((resolve) => setTimeout(resolve, MOUNT_MS));
    return found();
  };
  let last = fw.tabs[0]?.prefix;
  document.addEventListener("click", () => (last = fw.tabs.find((tab) => tab.isShown)?.prefix ?? last), true);
  fw.addTarget("controlnet", {
    label: "ControlNet",
    take: async ({ url }) => {
      const image = await imageAt(url);
      await fw.showTab(last);
      const places = () => document.querySelector(`.controlnet-units[data-tab=${last}]`);
      const folds = () => [...(fw.tab(last).find("script_container")?.querySelectorAll(".label-wrap") ?? [])];
      document.querySelector(`#${last}_group_control [aria-expanded=false]`)?.click(); // the group of its fold
      const fold = folds().find((one) => fw.sourceText(one.firstElementChild).trim() === "ControlNet");
      if (fold && !fold.classList.contains("open")) fold.click();
      const place = await until(places);
      if (!place) throw new Error(fw.t`The tab was not built in time; open it and try again.`);
      await build(place);
      await until(() => place.take);
      place.take(image);
      place.scrollIntoView({ block: "nearest" });
    },
  });
})();
