// Polls until it is stopped, even after errors, and shows when the page is out of date.

import { clear, clock, h } from "./dom.js";

export function polled(every, work) {
  const stale = h("p", { class: "note stale", role: "status" });
  let timer;
  let ended = false;
  let at = 0;

  async function tick() {
    clearTimeout(timer);
    try {
      if (!document.hidden || !at) {
        await work();
        at = Date.now();
        clear(stale);
      }
    } catch (error) {
      clear(stale, at ? `Last updated at ${clock(at / 1000)}: ${error.message}` : error.message);
    } finally {
      if (!ended) timer = setTimeout(tick, every);
    }
  }

  return {
    stale,
    now: tick,
    stop: () => { ended = true; clearTimeout(timer); },
  };
}
