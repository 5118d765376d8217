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

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key in made) made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const labelled = (text, field) => element("label", { className: "controlnet-field" }, element("span", { textContent: text }), field);
  // What modules and models there are; asked once, when the first section is opened.
  let lists = null;
  const known = () => {
    lists ??= Promise.all([fw.get("controlnet/module_list?alias_names=true"), fw.get("controlnet/model_list?shipped=true")]);
    return lists;
  };

  const select = (names, value) => {
    const made = element("select");
    for (const name of names) {
      const [own, shown] = Array.isArray(name) ? name : [name, name];
      made.append(element("option", { value: own, textContent: shown, selected: own === value }));
    }
    return made;
  };

  const asText = (file) =>
    new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(String(reader.result));
      reader.readAsDataURL(file);
    });

  // The size of what the form of a tab makes, in pixels.
  const sizeOf = (tab) => ["width", "height"].map((side) => Math.floor(Number(fw.field(`${tab}_${side}`)?.value || 512) / 8) * 8);

  // The short side at which pixel perfect has an image processed; `pixel_perfect` of fitting.py is the same for jobs.
  const perfectSide = (image, [width, height], resizeMode) => {
    const scales = [height / image.naturalHeight, width / image.naturalWidth];
    const scale = resizeMode === "Resize and Fill" ? Math.min(...scales) : Math.max(...scales);
    return Math.round(scale * Math.min(image.naturalWidth, image.naturalHeight));
  };

  // How an image lies in what is made, by resize mode.
  const FITS = { "Just Resize": "fill", "Crop and Resize": "cover", "Resize and Fill": "contain" };

  // One unit: its fields, how they are read, and how they are filled.
  const unitOf = (tab, modules, models, changed) => {
    const state = {};
    let images = []; // one, or several where input_mode has them
    const fields = {
      enabled: element("input", { type: "checkbox" }),
      module: select(modules.module_list, "none"),
      model: select(["None", ...models.model_list], "None"),
      pixel_perfect: element("input", { type: "checkbox" }),
      input_mode: select(MODES, SIMPLE),
    };
    for (const [key, , low, high, step, value] of NUMBERS) {
      fields[key] = element("input", { type: "number", min: low, max: high, step, value });
    }
    for (const [key, , names, value] of CHOICES) fields[key] = select(names, value ?? names[0]);
    const sliders = element("div", { className: "controlnet-row" });
    const image = element("img", { alt: fw.t`Image of the unit`, className: "controlnet-image", hidden: true });
    const others = element("span", { className: "controlnet-others" });
    const preview = element("img", { alt: fw.t`Map of the preprocessor`, className: "controlnet-image", hidden: true });
    const file = element("input", { type: "file", accept: "image/*" });
    // Editors of poses that people have put their image here by these names; the button is there while an image is.
    const clear = element("button", { type: "button", textContent: fw.t`Remove image`, ariaLabel: "Clear", className: "controlnet-button" });
    const given = element("div", { className: "cnet-image" }, labelled(fw.t`Image`, file));
    given.dataset.testid = "image";
    const look = element("button", { type: "button", textContent: fw.t`Preview`, className: "controlnet-button fw-icon-eye" });
    look.title = fw.t`Show what the preprocessor makes of the image`;
    const posing = element("button", { type: "button", textContent: fw.t`Edit pose`, className: "controlnet-button fw-icon-edit" });
    posing.title = fw.t`Place the body points of people; a preview of openpose gives those of the image`;
    let posed = {}; // the pose that the unit's image shows, and what lies below it in the editor
    const problem = element("p", { className: "controlnet-problem", role: "status" });

    const maskFile = element("input", { type: "file", accept: "image/*" });
    const region = element("img", { alt: fw.t`Mask of where the unit counts`, className: "controlnet-image", hidden: true });
    const paint = element("button", { type: "button", textContent: fw.t`Paint mask`, className: "controlnet-button fw-icon-brush" });
    const everywhere = element("button", { type: "button", textContent: fw.t`Remove mask`, className: "controlnet-button" });

    // What a button does; what is refused is said below the images.
    const onClick = (button, act) =>
      button.addEventListener("click", async () => {
        problem.textContent = "";
        button.disabled = true;
        try {
          await act();
        } catch (error) {
          problem.textContent = error.message;
        } finally {
          button.disabled = false;
        }
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
      for (const slider of own) {
        const key = slider.name === SIDE.processor_res ? "processor_res" : thresholds.shift();
        const { min, max, step, value } = slider;
        fields[key] = element("input", { type: "number", min, max, step: step ?? 1, value: state[key] ?? value });
        fields[key].addEventListener("change", changed);
        sliders.append(labelled(slider.name, fields[key]));
      }
    };
    const showPosing = () => {
      posing.hidden = !posed.pose && !/pose/i.test(`${fields.module.value} ${fields.model.value}`);
    };
    const hasSeveral = () => fields.input_mode.value !== SIMPLE;
    const showImage = () => {
      file.multiple = hasSeveral();
      image.hidden = !images.length;
      if (images.length) image.src = images[0];
      if (images.length) given.append(clear);
      else clear.remove();
      const rest = hasSeveral() ? images.slice(1) : [];
      others.replaceChildren(...rest.map((src, place) => element("img", { src, alt: fw.t`Image ${place + 2} of the unit`, className: "controlnet-image" })));
      preview.hidden = true;
    };
    const setImages = (found) => {
      images = found;
      showPosing();
      showImage();
      changed();
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
        if (field.type === "checkbox") field.checked = Boolean(value);
        else if (field.tagName === "SELECT") field.value = [...field.options].map((one) => one.value).find((name) => name.startsWith(String(value))) ?? field.value;
        else field.value = value;
      }
      if (unit.module) fields.module.value = modules.module_list.find((name) => name === unit.module || name.startsWith(`${unit.module} `)) ?? unit.module;
      showSliders();
      posed = {};
      showPosing();
      showImage();
      showRegion();
      showCurve();
    };

    file.addEventListener("change", async () => {
      if (!file.files.length) return;
      const found = await Promise.all([...file.files].map(asText));
      posed = {};
      fields.enabled.checked = true;
      setImages(found);
    });
    clear.addEventListener("click", () => {
      file.value = "";
      posed = {};
      setImages([]);
    });
    fields.input_mode.addEventListener("change", showImage);
    fields.module.addEventListener("change", showSliders);
    for (const field of [fields.module, fields.model]) field.addEventListener("change", showPosing);
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
      const pose = await fw.editPose({ pose: posed.pose, size, image: below });
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
    const body = element(
      "div",
      {},
      row(labelled(fw.t`Enable`, fields.enabled), labelled(fw.t`Pixel perfect`, fields.pixel_perfect)),
      row(element("div", { className: "cnet-input-image-group" }, given), look, posing),
      row(labelled(fw.t`Images`, fields.input_mode)),
      row(image, others, preview),
      problem,
      row(labelled(fw.t`Preprocessor`, fields.module), labelled(fw.t`Control model`, fields.model)),
      sliders,
      row(...NUMBERS.map(([key, text]) => labelled(text, fields[key]))),
      curve,
      row(...CHOICES.map(([key, text]) => labelled(text, fields[key]))),
      row(labelled(fw.t`Mask: where the unit counts (white)`, maskFile), paint, everywhere),
      row(region),
    );
    for (const field of Object.values(fields)) field.addEventListener("change", changed);
    for (const [key] of NUMBERS) fields[key].addEventListener("input", showCurve);
    showSliders();
    showPosing();
    showRegion();
    showCurve();
    return { body, read, fill };
  };

  const build = async (place) => {
    if (place.dataset.built) return;
    place.dataset.built = "yes";
    const found = () => document.querySelector(`#${place.dataset.tab}_controlnet_units :is(textarea, input)`);
    const [modules, models] = await known();
    for (let tries = 0; tries < 50 && !found(); tries += 1) await new Promise((resolve) => setTimeout(resolve, 100)); // Gradio builds it next
    const holder = found();
    const units = [];
    let written = holder?.value ?? "";
    const changed = () => {
      const found = units.map((unit) => unit.read());
      written = found.some((unit) => unit.enabled) ? JSON.stringify(found) : "";
      holder.value = written;
      holder.dispatchEvent(new Event("input", { bubbles: true }));
    };
    const fill = () => {
      const given = written ? JSON.parse(written) : [];
      given.forEach((unit, number) => units[number]?.fill(unit));
    };
    for (let number = 0; number < Number(place.dataset.units); number += 1) {
      const unit = unitOf(place.dataset.tab, modules, models, changed);
      units.push(unit);
      place.append(element("details", { open: number === 0, className: "tabitem" }, element("summary", { textContent: fw.t`Unit ${number}` }), unit.body));
    }
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
})();
