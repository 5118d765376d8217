// Images and strokes of the canvases, kept by the browser over a reload: IndexedDB, since they are too large for the
// stores that keep the form. Each page has its own; a new page begins with those of the page that was used last.
(() => {
  const fw = window.featherweight;
  const ID = "canvases";
  const STORE = "canvases";
  const KEPT_MS = 30 * 24 * 3600 * 1000;
  let opening = null;

  const earlier = fw.kept(ID) || "";
  const own = ownId();

  function ownId() {
    try {
      const id = window.sessionStorage.getItem(`featherweight.${ID}`);
      if (id) return id;
    } catch {
      // switched off by the user: the page keeps nothing
    }
    const id = Math.random().toString(36).slice(2) + Date.now().toString(36);
    fw.keep(ID, id);
    return id;
  }

  function open() {
    opening = opening || new Promise((resolve, reject) => {
      const request = window.indexedDB.open("featherweight", 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return opening;
  }

  async function run(mode, act) {
    const database = await open();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = act(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = () => reject(transaction.error);
    });
  }

  const warn = (error) => console.warn(fw.t`The browser cannot keep images over a reload: ${error?.message || error}`);

  fw.canvasStore = {
    // What was kept under a name; null where nothing was.
    async get(name) {
      try {
        for (const page of [own, earlier]) {
          const found = page && (await run("readonly", (store) => store.get(`${page}/${name}`)));
          if (found) return found;
        }
      } catch (error) {
        warn(error);
      }
      return null;
    },

    async put(name, value) {
      try {
        fw.keep(ID, own);
        await run("readwrite", (store) => store.put({ ...value, at: Date.now() }, `${own}/${name}`));
      } catch (error) {
        warn(error);
      }
    },

    async remove(name) {
      await run("readwrite", (store) => store.delete(`${own}/${name}`)).catch(warn);
    },

    // Take away what pages left that were not used for long.
    async sweep() {
      const limit = Date.now() - KEPT_MS;
      await run("readwrite", (store) => {
        const cursor = store.openCursor();
        cursor.onsuccess = () => {
          if (!cursor.result) return;
          if (cursor.result.value.at < limit) cursor.result.delete();
          cursor.result.continue();
        };
        return cursor;
      }).catch(warn);
    },
  };
})();
