// Requests to the server: every answer is JSON, every refusal one sentence.

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("The server does not answer. Start `ppa teach` again: nothing that was answered is lost.");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `The server refused (${response.status}).`);
  return answer;
}

const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
const post = (path, values, body, type) =>
  call(`${path}?${query(values)}`, { method: "POST", body, headers: { "content-type": type } });
const BYTES = "application/octet-stream";

export const getState = (asked) => call(`/api/state?${query({ asked })}`);
export const getNames = () => call("/api/names");
export const act = (action, asked) => post("/api/actions", { asked }, JSON.stringify(action), "application/json");
export const addExample = (category, image, asked) => post("/api/examples", { category, name: image.name, asked }, image, BYTES);
export const ask = (image) => post("/api/ask", { name: image.name }, image, BYTES);
export const nearest = (key) => call(`/api/nearest/${key}`);
export const check = () => call("/api/check");
export const map = (way) => call(`/api/map?${query({ way })}`);
export const bring = (zip, asked) => post("/api/import", { asked }, zip, BYTES);
export const imageOf = (key) => `/api/images/${key}`;
export const baseImageOf = (row) => `/api/base/${row}`;
