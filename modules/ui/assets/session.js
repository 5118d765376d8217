// Who uses the page: name and Log out in the header, what their role may not use, and a word when their login has ended.
(() => {
  const fw = window.featherweight;
  const addedFor = (role) => Object.keys(fw.tabRoles).filter((name) => fw.tabRoles[name] === role);
  const TABS_FOR_ADMINS = ["settings", "getmodels", ...addedFor("admin")];
  const TABS_FOR_USERS = [...fw.tabs.map((tab) => tab.prefix), "extras", "queue", ...addedFor("user")];
  const FOR_ADMINS = [
    "#refresh_sd_model_checkpoint, #quicksettings_more",
    "[id$=_styles_edit_save], [id$=_styles_edit_delete], [id$=_open_folder], #fw_history [data-do=import]",
    "#fw_queue [data-do=pause], #fw_queue label:has(#fw_queue_done), [id$=_batch_dir_tab-button], #extras_batch_directory_tab-button",
    "[id$=_batch_output_dir], [id$=_batch_inpaint_mask_dir], [id$=_batch_png_info_dir], [data-for=admin]",
  ].join(", ");
  const FOR_USERS = "[data-for=user]";
  // These stay in sight, because they say what is in use.
  const SHOWN_TO_ALL = ["setting_sd_model_checkpoint", "setting_fp8_storage"];
  const ONLY_ADMINS = fw.t`Only an admin can change the model and its precision, because all users share them.`;
  const ENDED = fw.t`Your login has ended. Log in again; what you typed stays here.`;

  fw.me = { name: "", role: "admin", sees: "all", can_log_out: false };
  // Whether something of this user is theirs to change.
  fw.mayChange = (owner) => fw.me.role === "admin" || (fw.me.role === "user" && owner === fw.me.name);

  // A tab whose name is hidden may still be reached, by the menu of a narrow page: it says why it is empty.
  function hide(selectors, tabs) {
    const names = tabs.flatMap((tab) => [`#tab_${tab}-button`, `#tab_${tab} > *`]);
    const hidden = `${[selectors, ...names].join(", ")} { display: none !important; }`;
    const said = `${tabs.map((tab) => `#tab_${tab}::before`).join(", ")} { content: "Your role may not use this."; }`;
    document.head.append(fw.element("style", { textContent: `${hidden}\n${said}` }));
  }

  // What a viewer came for, as soon as the page is built.
  function showHistory(tries = 40) {
    if (document.querySelector("#fw_history")?.offsetParent) return;
    document.querySelector("#tab_history-button")?.click();
    if (tries) setTimeout(showHistory, 250, tries - 1);
  }

  function disable(id) {
    const field = document.getElementById(id);
    if (!field || field.inert) return;
    field.inert = true;
    field.title = ONLY_ADMINS;
    field.classList.add("fw-not-yours");
    // An inert element has no title of its own.
    if (field.parentElement) field.parentElement.title = ONLY_ADMINS;
  }

  function apply() {
    document.documentElement.dataset.role = fw.me.role;
    const user = document.querySelector("#fw_user");
    if (user && fw.me.name) {
      user.hidden = false;
      user.querySelector("b").textContent = fw.me.name;
      user.title = `${fw.me.name}: ${fw.me.role}`;
      user.querySelector("button").hidden = !fw.me.can_log_out;
    }
    if (fw.me.role === "admin") return;
    for (const id of SHOWN_TO_ALL) disable(id);
  }

  async function start() {
    try {
      fw.me = await fw.get("internal/me");
    } catch {
      return; // without an answer nothing is hidden; the server asks for the role in any case
    }
    if (fw.me.role !== "admin") hide(FOR_ADMINS, TABS_FOR_ADMINS);
    if (fw.me.role === "viewer") hide(FOR_USERS, TABS_FOR_USERS);
    apply();
    document.dispatchEvent(new CustomEvent("fw:me"));
    // The page may still be built, or be built again.
    for (const wait of [500, 2000, 5000]) setTimeout(apply, wait);
    if (fw.me.role === "viewer") showHistory();
  }

  // A call was answered 401.
  fw.loggedOut = () => {
    if (!fw.me.name || document.querySelector("#fw_logged_out")) return;
    const link = fw.element("a", { href: "login", target: "_blank", textContent: fw.t`Log in` });
    const box = fw.element("div", { id: "fw_logged_out", className: "fw-message fw-error", attributes: { role: "alert" } });
    box.append(fw.element("span", { textContent: `${ENDED} ` }), link);
    (document.querySelector("#fw_notices") || document.body).append(box);
  };
  fw.answered = () => document.querySelector("#fw_logged_out")?.remove();

  start();
})();
