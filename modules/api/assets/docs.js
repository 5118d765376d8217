// "Send" of each route: the body as typed, the parameters as filled in, the reply below.
document.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const place = form.querySelector("output");
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const input of form.querySelectorAll("input[name]")) {
    if (path.includes(`{${input.name}}`)) path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(input.name, input.value);
  }
  const body = form.querySelector("textarea");
  const options = { method: form.dataset.method };
  if (body) Object.assign(options, { body: body.value, headers: { "Content-Type": "application/json" } });
  place.textContent = "waiting ...";
  try {
    const reply = await fetch(path + (query.size ? `?${query}` : ""), options);
    const isJson = (reply.headers.get("content-type") || "").includes("json");
    const text = isJson ? JSON.stringify(await reply.json(), null, 2) : `(${reply.headers.get("content-type")})`;
    const pre = document.createElement("pre");
    pre.textContent = `${reply.status}\n${text.slice(0, 20000)}`;
    place.replaceChildren(pre);
  } catch (error) {
    place.textContent = String(error);
  }
});
