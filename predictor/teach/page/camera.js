// The webcam: single frames, or many while a button is held. Closed, it is off.

import { byId, count } from "./dom.js";

const EVERY = 300; // milliseconds between frames while the button is held
let stream = null;
let use = () => {};
let timer = null;

async function frame() {
  const video = byId("video");
  if (!video.videoWidth) return null;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return new File([blob], `camera ${new Date().toISOString().slice(11, 23)}.jpg`, { type: "image/jpeg" });
}

async function shoot() {
  const taken = await frame();
  if (taken) await use(taken);
}

/** send: called with each frame, one at a time. many: examples are counted; else each frame is asked about. */
export async function openCamera(title, send, many) {
  const dialog = byId("camera");
  let taken = 0;
  use = async (image) => {
    await send(image);
    taken += 1;
    byId("camera-said").textContent = many ? `${count(taken, "example")} taken` : "Asked";
    if (!many && !timer) dialog.close();
  };
  byId("camera-title").textContent = title;
  byId("camera-said").textContent = "";
  byId("burst").textContent = many ? "Hold to take many" : "Hold to ask all the time";
  dialog.showModal();
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" }, audio: false });
    byId("video").srcObject = stream;
  } catch {
    byId("camera-said").textContent = "No camera, or it may not be used: allow it in the browser and open this again.";
  }
}

export function startCamera() {
  const dialog = byId("camera");
  const burst = byId("burst");
  const begin = (event) => {
    event.preventDefault();
    if (timer) return;
    const again = async () => { await shoot(); if (timer) timer = setTimeout(again, EVERY); };
    timer = setTimeout(again);
  };
  const end = () => { clearTimeout(timer); timer = null; };
  byId("shoot").addEventListener("click", shoot);
  burst.addEventListener("pointerdown", begin);
  for (const name of ["pointerup", "pointerleave", "pointercancel", "blur"]) burst.addEventListener(name, end);
  burst.addEventListener("keydown", (event) => { if (event.key === " " || event.key === "Enter") begin(event); });
  burst.addEventListener("keyup", end);
  dialog.addEventListener("close", () => {
    end();
    for (const track of stream?.getTracks() ?? []) track.stop();
    stream = null;
    byId("video").srcObject = null;
  });
}
