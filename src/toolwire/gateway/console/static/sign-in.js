// Signing in leads back to the view that was asked for: a redirect keeps the part of the address behind #.
// The script is loaded before the form is, so that no form is sent without it.

document.addEventListener("submit", ({ target }) => { target.action = new URL(location.hash, target.action); });
