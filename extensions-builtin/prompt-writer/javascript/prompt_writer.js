// Write: has the server write a longer prompt from the words in the prompt box. Pressed again while it writes, it stops;
// pressed again afterwards, it writes another one from the same words.
(() => {
  const fw = window.featherweight;

  function follow(tab) {
    let stopping = null;

    const recordBox = () => document.querySelector(`#${tab.prefix}_write_record textarea`);

    function keepRecord(text) {
      const box = recordBox();
      if (!box) return;
      box.value = text;
      box.dispatchEvent(new Event("input", { bubbles: true }));
    }

    function wordsOf(prompt) {
      try {
        const record = JSON.parse(recordBox()?.value || "{}");
        return record.text === prompt ? record.from : prompt;
      } catch {
        return prompt;
      }
    }

    async function write(button) {
      if (stopping) {
        stopping.abort();
        return;
      }
      tab.clearMessages();
      stopping = new AbortController();
      button.setAttribute("aria-busy", "true");
      try {
        const body = JSON.stringify({ prompt: wordsOf(tab.field("prompt").value) });
        const headers = { "Content-Type": "application/json" };
        const reply = await fetch("featherweight/v1/write", { method: "POST", headers, body, signal: stopping.signal });
        const data = await reply.json().catch(() => ({}));
        if (!reply.ok) throw new Error(data.errors || fw.t`The server answered ${reply.status}.`);
        tab.set("prompt", data.text);
        keepRecord(data.record);
        if (!data.is_whole) tab.message(fw.t`The prompt was cut off at its longest.`);
      } catch (error) {
        if (error.name !== "AbortError") tab.message(fw.t`No prompt was written: ${error.message}`, true);
      } finally {
        button.removeAttribute("aria-busy");
        stopping = null;
      }
    }

    document.addEventListener("click", (event) => {
      const button = event.target.closest?.(`#${tab.prefix}_write`);
      if (button) write(button);
    });
  }

  fw.tabs.forEach(follow);
})();
