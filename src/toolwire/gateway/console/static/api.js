// Requests to the gateway. A viewer whose sign-in has expired is sent to the sign-in page.

import { say } from "./dom.js";

const PATIENCE = 60000;

// The gateway may be mounted under a prefix, so URLs are relative to that of this file: /…/console/static/api.js.
export function urlOf(path) {
  return new URL(`../${path}`, import.meta.url).href;
}

export async function get(path) {
  return read(ask(path, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE) }));
}

export async function post(path, value, signal) {
  const done = await read(stream(path, JSON.stringify(value ?? {}), signal));
  say("");
  return done;
}

export function stream(path, body, signal) {
  return ask(path, { method: "POST", body, signal, headers: { "content-type": "application/json" } });
}

async function ask(path, options) {
  try {
    return await fetch(urlOf(`api/${path}`), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the gateway does not answer.");
  }
}

async function read(asked) {
  const response = await asked;
  if (response.status === 401) {
    location.reload(); // leads to the sign-in page; the address keeps the view
    await new Promise(() => {});
  }
  const value = await response.json().catch(() => undefined);
  if (!response.ok || value === undefined) throw new Error(value?.error?.message ?? `the gateway answers with status ${response.status}.`);
  return value;
}

let known;

export function me() {
  known ??= get("me").catch((error) => { known = undefined; throw error; });
  return known;
}
