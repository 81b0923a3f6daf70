// Images by drop, by paste and by choosing: files and folders in, plain lists out.

const isZip = (file) => file.type === "application/zip" || file.name.toLowerCase().endsWith(".zip");
export const zipIn = (files) => files.find(isZip);

/** What was dropped: {files: […], folders: {name: […]}}. Entries must be taken before the event is over. */
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some((entry) => entry.isDirectory)) return { files: [...transfer.files], folders: {} };
  const found = { files: [], folders: {} };
  for (const entry of entries) {
    if (entry.isDirectory) await intoFolders(entry, found.folders);
    else found.files.push(await fileOf(entry));
  }
  return found;
}

/** A folder is a category; a folder of folders is one for each of them. */
async function intoFolders(folder, folders) {
  for (const entry of await entriesOf(folder)) {
    if (entry.isDirectory) await intoFolders(entry, folders);
    else if (!entry.name.startsWith(".")) (folders[folder.name] ??= []).push(await fileOf(entry));
  }
}

const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));

async function entriesOf(folder) {
  const reader = folder.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found.sort((a, b) => a.name.localeCompare(b.name));
    found.push(...some); // a reader gives a hundred at a time
  }
}

const bringsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
const EXAMPLE = "application/x-ppa-example";

/** Let an element take files, and examples that are dragged within the page. */
export function dropZone(element, { onFiles, onExample }) {
  let inside = 0;
  const wanted = (event) => bringsFiles(event) || (onExample && event.dataTransfer?.types.includes(EXAMPLE));
  const leave = () => { inside = 0; element.classList.remove("over"); };
  element.addEventListener("dragenter", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    inside += 1;
    element.classList.add("over");
  });
  element.addEventListener("dragover", (event) => { if (wanted(event)) event.preventDefault(); });
  element.addEventListener("dragleave", () => { inside -= 1; if (inside <= 0) leave(); });
  element.addEventListener("drop", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    event.stopPropagation();
    leave();
    const began = performance.now();
    if (bringsFiles(event)) dropped(event.dataTransfer).then((found) => onFiles(found, began));
    else onExample(event.dataTransfer.getData(EXAMPLE));
  });
}

export function draggable(element, key) {
  element.draggable = true;
  element.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(EXAMPLE, key);
    event.dataTransfer.effectAllowed = "move";
  });
}

/** Images that were pasted. */
export const pasted = (event) => [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
