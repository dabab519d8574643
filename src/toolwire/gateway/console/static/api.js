// Asks the gateway. Whoever is no longer signed in is sent to the sign-in page.

export async function get(path) {
  return read(await fetch(`/console/api/${path}`, { headers: { accept: "application/json" } }));
}

export async function post(path, value) {
  const body = JSON.stringify(value ?? {});
  return read(await fetch(`/console/api/${path}`, { method: "POST", body, headers: { "content-type": "application/json" } }));
}

export function stream(path, body, signal) {
  return fetch(`/console/api/${path}`, { method: "POST", body, signal, headers: { "content-type": "application/json" } });
}

async function read(response) {
  if (response.status === 401) {
    location.replace("/");
    await new Promise(() => {});
  }
  const value = await response.json();
  if (!response.ok) throw new Error(value?.error?.message ?? `status ${response.status}`);
  return value;
}

let known;

export async function me() {
  known ??= get("me");
  return known;
}
