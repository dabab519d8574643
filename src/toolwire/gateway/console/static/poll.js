// Asks again and again, whatever happens, and says in the page when what is shown is old.

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
      clear(stale, at ? `What is shown is from ${clock(at / 1000)}: ${error.message}` : error.message);
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
