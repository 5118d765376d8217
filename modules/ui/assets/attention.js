// Around a job: the screen stays awake while it runs, and a sound says that it is done.
(() => {
  const fw = window.featherweight;
  const NOTES = [[523.25, 0], [783.99, 0.14]]; // hertz, and seconds after the first
  let lock = null;
  let context = null;

  fw.keepAwake = async () => {
    if (lock || fw.settings.prevent_screen_sleep_during_generation === false || !navigator.wakeLock) return;
    lock = await navigator.wakeLock.request("screen").catch(() => null); // refused, for example on an empty battery
    if (lock && !fw.isRunning()) fw.letSleep();
  };

  fw.letSleep = () => {
    lock?.release();
    lock = null;
  };

  fw.chime = () => {
    if (document.hidden && window.Notification?.permission === "granted") {
      const note = new Notification("Featherweight", { body: fw.text(fw.t`The images are done.`), tag: "featherweight" });
      note.addEventListener("click", () => window.focus());
    }
    const volume = (fw.settings.notification_volume ?? 100) / 100;
    if (fw.settings.notification_audio === false || volume <= 0 || !window.AudioContext) return;
    context = context || new AudioContext();
    for (const [pitch, delay] of NOTES) {
      const begin = context.currentTime + delay;
      const tone = new OscillatorNode(context, { frequency: pitch });
      const loudness = new GainNode(context, { gain: 0 });
      loudness.gain.setValueAtTime(0, begin);
      loudness.gain.linearRampToValueAtTime(0.25 * volume, begin + 0.02);
      loudness.gain.exponentialRampToValueAtTime(0.0001, begin + 0.5);
      tone.connect(loudness).connect(context.destination);
      tone.start(begin);
      tone.stop(begin + 0.55);
    }
  };
})();
