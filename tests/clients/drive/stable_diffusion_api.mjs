// Everything that stable-diffusion-api and a1111-webui-api offer and that has a meaning here; prints JSON.
import { createRequire } from "node:module";

const [, , name, host, port, user, password] = process.argv;
const { StableDiffusionApi } = createRequire(import.meta.url)(name);
const api = new StableDiffusionApi({ host, port: Number(port), defaultSampler: "Euler", defaultStepCount: 2 });
if (user) api.setAuth(user, password);

const result = await api.txt2img({ prompt: "a cat", seed: 3, width: 64, height: 64, batch_size: 2 });
const size = await result.image.metadata();
const infotext = (await api.pngInfo(result.image)).info;
const options = await api.getOptions();
await api.setOptions({ CLIP_stop_at_last_layers: 2 });
const changed = (await api.getOptions()).CLIP_stop_at_last_layers;
await api.setOptions(options);
const models = await api.getSdModels();
// stable-diffusion-api looks for `name`, which /sd-models never had; its successor reads `model_name`.
if (name === "a1111-webui-api") await api.setModel(models[0].model_name);
else await api.setOptions({ sd_model_checkpoint: models[0].title });
await api.refreshCheckpoints();
await api.waitForReady(0.05);
const lists = {
  samplers: await api.getSamplers(),
  upscalers: await api.getUpscalers(),
  hypernetworks: await api.getHypernetworks(),
  faceRestorers: await api.getFaceRestorers(),
  realesrgan: await api.getRealesrganModels(),
  styles: await api.getPromptStyles(),
};
console.log(
  JSON.stringify({
    images: result.images.length,
    info: result.info,
    size: [size.width, size.height],
    infotext,
    changed,
    restored: (await api.getOptions()).CLIP_stop_at_last_layers,
    model: await api.getCurrentModel(),
    flags: await api.getCmdFlags(),
    progress: await api.getProgress(),
    lists,
  }),
);
