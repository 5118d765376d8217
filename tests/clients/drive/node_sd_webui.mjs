// Everything node-sd-webui offers that has a meaning here; prints what came back as JSON.
import sdwebui from "node-sd-webui";

const client = sdwebui({ apiUrl: process.argv[2] });
const plain = await client.txt2img({
  prompt: "a cat",
  negativePrompt: "ugly",
  seed: 3,
  samplingMethod: "DPM++ 2M Karras",
  batchSize: 2,
  steps: 2,
  width: 64,
  height: 64,
  cfgScale: 5,
});
const hires = await client.txt2img({
  prompt: "a dog",
  steps: 2,
  width: 64,
  height: 64,
  hires: { upscaler: "Latent", steps: 2, denoisingStrength: 0.5, upscaleBy: 2 },
});
const read = await client.pngInfo({ imageData: plain.images[0] });
console.log(JSON.stringify({ plain, hires: hires.images.length, read }));
