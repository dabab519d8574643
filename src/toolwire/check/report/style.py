"""How the HTML report looks, in light and in dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1c2330; --soft: #5b6473; --line: #dfe3ea; --well: #f2f4f7;
  --red: #c62828; --red-well: #fdecea; --amber: #9a5b00; --amber-well: #fff3dc;
  --green: #1b7a3d; --green-well: #e5f5ea; --blue: #2563b8; --violet: #7a44c0; --teal: #0b7a75;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151b; --card: #1a1f27; --ink: #e4e8ee; --soft: #9aa4b2; --line: #2e3643; --well: #232a35;
    --red: #ff7b72; --red-well: #3b1f22; --amber: #e3a94a; --amber-well: #38290f;
    --green: #62c584; --green-well: #17301f; --blue: #79b0f5; --violet: #bd97f2; --teal: #4fc4bd;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { margin: .25rem 0 .5rem; font-size: 1.6rem; line-height: 1.25; }
h2 { margin: 2.25rem 0 .75rem; font-size: 1.15rem; }
h3 { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; margin: 0 0 .5rem; font-size: 1rem; }
p { margin: .35rem 0; }
code, pre, .call, .url { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .92em; }
p code, li code, td code { padding: 0 .25em; border-radius: 4px; background: var(--well); }
.soft { color: var(--soft); }
.brand { margin: 0; color: var(--soft); font-size: .85rem; letter-spacing: .04em; text-transform: uppercase; }
.bad { color: var(--red); } .good { color: var(--green); }

dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .9rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1rem 0; padding: 0; }
.tiles li { list-style: none; padding: .6rem .8rem; border: 1px solid var(--line); border-radius: 10px; }
.tiles li { background: var(--card); }
.tiles b { display: block; font-size: 1.7rem; line-height: 1.2; }
.tiles .must b { color: var(--red); } .tiles .should b { color: var(--amber); }
.tiles .passed b { color: var(--green); } .tiles .none b { color: var(--soft); }
.note { padding: .5rem .8rem; border-left: 4px solid var(--amber); background: var(--amber-well); border-radius: 4px; }

.wide { overflow-x: auto; }
.areas { width: 100%; table-layout: fixed; border-collapse: collapse; border: 1px solid var(--line); }
.areas { background: var(--card); }
.areas th, .areas td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
.areas thead th { font-size: .85rem; color: var(--soft); }
.areas th { overflow-wrap: normal; } .areas tbody th { font-weight: 500; }
.chips { display: flex; flex-wrap: wrap; gap: .25rem; }
.chip, .badge {
  display: inline-block; padding: 0 .5em; border-radius: 999px; font-size: .8rem; line-height: 1.6; white-space: nowrap;
}
.chip.must, .badge.must { background: var(--red-well); color: var(--red); font-weight: 700; }
.chip.should, .badge.should { background: var(--amber-well); color: var(--amber); font-weight: 700; }
.chip.passed { background: var(--green-well); color: var(--green); }
.chip.none, .badge.api { background: var(--well); color: var(--soft); }
.legend { font-size: .85rem; }
a.chip { text-decoration: none; white-space: normal; } a.chip:hover { text-decoration: underline; }
mark { background: none; color: var(--red); font-weight: 700; text-decoration: underline; }
.list li:target { background: var(--amber-well); }

.index { margin: 0 0 1rem; padding: 0; list-style: none; columns: 2 20rem; font-size: .9rem; }
.index li { padding: .1rem 0; break-inside: avoid; }
.index a, .index a:visited { color: inherit; text-decoration-color: var(--line); }
article {
  margin: 0 0 1rem; padding: .9rem 1rem; border: 1px solid var(--line); border-left: 5px solid var(--amber);
  border-radius: 10px; background: var(--card);
}
article.must { border-left-color: var(--red); }
article.follows { margin-left: 1.5rem; }
.index .follows { padding-left: 1.2rem; }
article .sentence { font-size: 1.05rem; font-weight: 600; }
.seen { margin-top: .8rem; padding-top: .7rem; border-top: 1px solid var(--line); }
.seen ul { margin: .2rem 0 .5rem; padding-left: 1.2rem; }
.seen h4 { margin: 0; font-size: .85rem; font-weight: 500; color: var(--soft); }

figure { margin: .6rem 0; padding: .4rem 0 .2rem; overflow: hidden; }
figcaption { color: var(--soft); font-size: .8rem; }
.timeline { display: block; width: calc(100% - 5.2rem); margin-left: 5rem; overflow: visible; }
.timeline text { font-size: 11px; fill: var(--soft); }
.timeline .name { text-anchor: end; font-size: 12px; }
.timeline .lane { fill: var(--well); } .timeline .grid { fill: var(--line); }
.timeline .text rect { fill: var(--blue); } .timeline .reasoning rect { fill: var(--violet); }
.timeline .calls rect { fill: var(--teal); } .timeline .other rect { fill: var(--soft); }
.timeline .call { fill: var(--ink); stroke: var(--well); stroke-width: 3px; paint-order: stroke; }
.timeline .fault { fill: var(--red); opacity: .45; } .timeline .mark { fill: var(--red); }
.timeline .number { fill: var(--red); font-weight: 700; }

.box { max-height: 30rem; overflow: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--well); }
.box pre {
  margin: 0; padding: .5rem .7rem; font-size: .8rem; line-height: 1.45; white-space: pre-wrap; word-break: break-all;
}
.frames { margin: 0; padding: .3rem 0; list-style: none; font-size: .8rem; }
.frames li { display: flex; padding: .15rem .6rem; border-left: 4px solid transparent; color: var(--soft); }
.frames pre { flex: 1; padding: 0; font-size: inherit; }
.frames .at { flex: none; width: 8rem; font-variant-numeric: tabular-nums; }
.frames .near pre { display: -webkit-box; overflow: hidden; -webkit-box-orient: vertical; -webkit-line-clamp: 4; }
.frames .fault { color: var(--ink); background: var(--red-well); border-left-color: var(--red); }
.frames .fault .at { font-weight: 700; }
.frames .gap { font-style: italic; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--soft); }
section > details { padding: .6rem .9rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
section > details > summary { color: var(--ink); font-weight: 600; }
.list { margin: .6rem 0 0; padding: 0; list-style: none; }
.list li { padding: .4rem 0; border-top: 1px solid var(--line); font-size: .92rem; }
footer { margin: 2rem 0 1rem; color: var(--soft); font-size: .85rem; }

@media (max-width: 40rem) {
  main { padding: .75rem; }
  h1 { font-size: 1.35rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .areas, .areas thead th { font-size: .8rem; }
  .areas th, .areas td { padding: .35rem .3rem; }
  article { padding: .75rem; }
  .frames li { display: block; }
}
"""
