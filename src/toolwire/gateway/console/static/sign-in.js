// Signing in leads back to the view that was asked for: a redirect keeps the part of the address behind #.

const form = document.querySelector("form");
form.addEventListener("submit", () => { form.action = `/console/sign-in${location.hash}`; });
