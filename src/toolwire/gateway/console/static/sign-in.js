// Signing in leads back to the requested view: a redirect keeps the part of the address after the #.
// The script is loaded before the form, so that no form is sent without it.

document.addEventListener("submit", ({ target }) => { target.action = new URL(location.hash, target.action); });
