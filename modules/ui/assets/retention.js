// The retention meter: how much of the effect of each LoRA is kept in the weights of the image that was just made.
(() => {
  const fw = window.featherweight;
  const PLENTY = 0.9;
  const LITTLE = 0.5;

  fw.percent = (share) => (share >= 0.9995 && share < 1.0005 ? "100 %" : `${(share * 100).toFixed(1)} %`);

  for (const tab of fw.tabs) {
    tab.showRetention = (retention) => {
      const place = tab.find("messages");
      if (!place || !retention) return;
      const box = fw.element("div", { className: "fw-message fw-note fw-retention", attributes: { role: "status" } });
      for (const [name, share] of retention.adapters) {
        const meter = fw.element("meter", { min: 0, max: 1, low: LITTLE, high: PLENTY, optimum: 1 });
        meter.value = Math.max(0, Math.min(share, 1));
        meter.setAttribute("aria-label", fw.t`How much of the effect of ${name} was kept`);
        box.append(
          fw.element("span", { textContent: fw.t`LoRA ${name}: applied, ${fw.percent(share)} of its effect kept` }),
          meter,
          fw.element("span", { textContent: retention.noise >= 0.005 ? fw.t`noise ${fw.percent(retention.noise)}` : "" }),
        );
      }
      const weak = retention.worst.filter(([, share]) => share < PLENTY);
      if (weak.length > 0) {
        const listed = weak.map(([layer, share]) => `${layer} ${fw.percent(share)}`).join(", ");
        const worst = fw.element("span", { className: "fw-retention-worst", textContent: fw.t`Worst layers: ${listed}` });
        box.append(worst);
      }
      place.append(box);
    };
  }
})();
