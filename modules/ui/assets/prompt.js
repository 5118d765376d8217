// The prompt boxes: token counters, bracket check, Ctrl+Up/Down weights, Alt+Left/Right, dropping images.
(() => {
  const fw = window.featherweight;
  const BOXES = ["prompt", "neg_prompt", "hires_prompt", "hires_neg_prompt"];
  const COUNTED = ["prompt", "neg_prompt"];

  for (const tab of fw.tabs) {
    const timers = {};
    const counted = {}; // what the counters show, by box

    const chosenStyles = () =>
      [...(tab.find("styles")?.querySelectorAll(".token > span") || [])].map((token) => token.textContent);

    const stateOf = (name) => JSON.stringify([tab.field(name)?.value, tab.field("steps")?.value, chosenStyles()]);

    function counterOf(name) {
      const holder = tab.find(name);
      if (!holder) return null;
      let counter = holder.querySelector(".fw-counter");
      if (!counter) {
        counter = document.createElement("span");
        counter.className = "fw-counter";
        counter.id = holder.id.replace(/_neg_prompt$/, "_negative_token_counter").replace(/_prompt$/, "_token_counter");
        counter.textContent = "0/75";
        holder.append(counter);
      }
      return counter;
    }

    async function count(name) {
      const field = tab.field(name);
      const counter = counterOf(name);
      if (!field || !counter || fw.settings.disable_token_counters) return;
      const state = (counted[name] = stateOf(name));
      const problem = fw.unbalanced(field.value);
      counter.classList.toggle("fw-bad", problem !== "");
      counter.title = problem || fw.t`Tokens used of those in full chunks of 75`;
      const steps = Number(tab.field("steps")?.value) || 20;
      try {
        const asked = { text: field.value, steps, styles: chosenStyles(), is_negative: name === "neg_prompt" };
        const reply = await fw.post("internal/token-count", asked);
        if (counted[name] === state) counter.textContent = reply.text; // else of an older text, overtaken by a newer one
      } catch {
        if (counted[name] === state) counter.textContent = "?";
      }
    }

    // Also what was filled in without a key press: pasted parameters, examples, chosen styles.
    tab.countTokens = () => COUNTED.filter((name) => counted[name] !== stateOf(name)).forEach(count);

    document.addEventListener("input", (event) => {
      const name = COUNTED.find((box) => tab.holds(event.target, box));
      if (!name) return;
      clearTimeout(timers[name]);
      timers[name] = setTimeout(() => count(name), 250);
    });
  }

  // -- weights -------------------------------------------------------------------------------------------------------

  document.addEventListener("keydown", (event) => {
    const area = event.target;
    if (area.tagName !== "TEXTAREA" || !fw.tabAround(area, ...BOXES)) return;
    const withControl = event.ctrlKey || event.metaKey;
    if (withControl && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      const direction = event.key === "ArrowUp" ? 1 : -1;
      write(area, fw.reweighted(area.value, area.selectionStart, area.selectionEnd, direction, fw.settings));
    } else if (event.altKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      if (fw.settings.keyedit_move === false) return;
      event.preventDefault();
      write(area, fw.withElementMoved(area.value, area.selectionStart, event.key === "ArrowRight" ? 1 : -1));
    }
  });

  // Whether an element is one of the boxes that prompts are typed into.
  fw.isPromptBox = (element) =>
    element?.tagName === "TEXTAREA" && Boolean(fw.tabAround(element, ...BOXES, "styles_edit"));

  // Change the text of a box as if it were typed, so that Ctrl+Z takes it back: `edited` is {text, start, end}.
  fw.writePrompt = write;

  function write(area, edited) {
    if (!edited || edited.text === area.value) return;
    const { text, start, end } = edited;
    const change = fw.difference(area.value, text);
    area.focus();
    area.setSelectionRange(change.start, change.end);
    if (change.inserted) document.execCommand("insertText", false, change.inserted);
    else document.execCommand("delete");
    area.setSelectionRange(start, end);
    requestAnimationFrame(() => {
      // Gradio writes the value once more, which sets the cursor behind it; any other selection is the user's.
      const isBehindText = area.value === text && area.selectionStart === text.length;
      if (isBehindText) area.setSelectionRange(start, end);
    });
  }

  // -- dropped images ------------------------------------------------------------------------------------------------

  document.addEventListener("dragover", (event) => {
    if (fw.tabAround(event.target, ...COUNTED)) event.preventDefault();
  });

  document.addEventListener("drop", async (event) => {
    const file = event.dataTransfer && event.dataTransfer.files[0];
    const tab = fw.tabAround(event.target, ...COUNTED);
    if (!file || !tab) return;
    event.preventDefault();
    try {
      const reply = await fw.post("sdapi/v1/png-info", { image: await fw.dataUri(file) });
      if (!reply.info) throw new Error(fw.t`This image holds no parameters.`);
      tab.take(reply.info);
    } catch (error) {
      tab.clearMessages();
      tab.message(error.message, true);
    }
  });
})();
