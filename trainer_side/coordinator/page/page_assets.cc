#include "trainer_side/coordinator/page/status_page.h"

namespace wsync::page {
namespace {

constexpr std::string_view kCss = R"css(
:root {
  color-scheme: light dark;
  --back: #fcfcfd; --card: #ffffff; --text: #1b1f24; --soft: #57606a; --line: #c9d1d9;
  --link: #0b57b0; --good: #14642c; --bad: #a4161a; --focus: #0b57b0;
  --snapshot: #f2c14e; --announce: #b9a5e0; --stage: #8fbfe6; --switch: #8fd19e; --on-bar: #1b1f24;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171b; --card: #1c2127; --text: #e8ebef; --soft: #a9b3be; --line: #3b444e;
    --link: #7fb8ff; --good: #7ddc96; --bad: #ff9a9d; --focus: #7fb8ff;
    --snapshot: #d9a93a; --announce: #a892d8; --stage: #79acd6; --switch: #78bd88; --on-bar: #14171b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 72rem; padding: 0 1rem 2rem;
  background: var(--back); color: var(--text); font: 1rem/1.5 system-ui, sans-serif;
}
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
main:focus { outline: none; }
.skip { position: absolute; left: -100rem; padding: .5rem 1rem; background: var(--card); }
.skip:focus { left: 1rem; top: .5rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1.5rem; padding-top: 1rem; }
h1 { margin: 0; font-size: 1.5rem; }
h2 { margin: 0 0 .5rem; font-size: 1.2rem; }
h3 { margin: 1rem 0 0; font-size: 1rem; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.fresh { margin: 0; color: var(--soft); }
section {
  margin-top: 1rem; padding: 1rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card);
}
p { margin: .25rem 0; overflow-wrap: anywhere; }
#verdict { padding-left: .75rem; border-left-width: .4rem; border-left-style: solid; font-size: 1.1rem; }
.good { border-color: var(--good); }
.bad { border-color: var(--bad); }
.good strong { color: var(--good); }
.bad strong, p.bad, td strong { color: var(--bad); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .5rem 1rem; margin: .75rem 0 0; }
dt { color: var(--soft); font-size: .875rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
progress { width: 100%; height: 1.1rem; accent-color: var(--link); }
.phases { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .5rem 0; padding-left: 1.5rem; }
.phases li { margin-right: 1rem; }
.phases span { color: var(--soft); }
.phases .now { font-weight: bold; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
td:last-child { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
thead th { color: var(--soft); font-weight: normal; }
tbody th { font-weight: bold; white-space: normal; min-width: 7rem; max-width: 18rem; overflow-wrap: anywhere; }
.unwell th { border-left: .3rem solid var(--bad); padding-left: .4rem; }
summary { cursor: pointer; color: var(--link); padding: .25rem 0; }
ul { margin: 0; padding-left: 1.25rem; }
li { overflow-wrap: anywhere; }
button { font: inherit; padding: .1rem .75rem; color: var(--text); background: var(--card); border: 1px solid var(--soft); border-radius: .3rem; }
svg.round { display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); }
svg .lane { text-anchor: end; }
svg .tick { text-anchor: middle; fill: var(--soft); }
svg .bar { text-anchor: middle; fill: var(--on-bar); }
svg .grid { stroke: var(--line); }
svg rect { stroke: var(--text); stroke-width: .5; }
svg .snapshot { fill: var(--snapshot); }
svg .announce { fill: var(--announce); }
svg .stage { fill: var(--stage); }
svg .switch { fill: var(--switch); }
footer { color: var(--soft); font-size: .875rem; margin-top: 1rem; }
)css";

// Takes what the server would show now and changes only what differs, so that focus, scroll
// positions and opened details stay.
constexpr std::string_view kJs = R"js(
"use strict";
(() => {
  const interval = 1000, patience = 8000;
  const hold = document.getElementById("hold");
  const fresh = document.getElementById("fresh");
  let held = false;

  const say = (text) => { if (fresh.textContent !== text) fresh.textContent = text; };
  const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id : "";
  const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  const takeAttributes = (old, now) => {
    for (const { name } of [...old.attributes])
      if (!now.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    for (const { name, value } of now.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };

  const take = (old, now) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    takeAttributes(old, now);
    let at = old.firstChild;
    for (const child of [...now.childNodes]) {
      let found = at;
      while (found && !alike(found, child)) found = found.nextSibling;
      if (!found) {
        old.insertBefore(document.importNode(child, true), at);
        continue;
      }
      // What lies between has gone, or comes later: what has a name is looked for by it.
      if (found === at) at = at.nextSibling;
      else old.insertBefore(found, at);
      take(found, child);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  const look = async () => {
    const answer = await fetch("/", { cache: "no-store", signal: AbortSignal.timeout(patience) });
    if (!answer.ok) throw new Error("no answer");
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.getElementById("main");
    if (!main) throw new Error("no page");
    if (held) return;
    const focused = document.activeElement;
    take(document.getElementById("main"), main);
    document.title = page.title;
    if (focused && focused !== document.body && document.activeElement !== focused)
      (focused.isConnected ? focused : document.getElementById("main")).focus({ preventScroll: true });
    say("follows the coordinator");
  };

  let since = new Date();
  const again = async () => {
    try {
      if (!held && !document.hidden) {
        await look();
        since = new Date();
      }
    } catch {
      say("NO ANSWER: what is shown is of " + since.toLocaleTimeString());
      document.title = "wsync NO ANSWER";
    }
    setTimeout(again, interval);
  };

  hold.hidden = false;
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    say(held ? "held still, as of " + new Date().toLocaleTimeString() : "follows the coordinator");
  });
  setTimeout(again, interval);
})();
)js";

}  // namespace

std::string_view page_css() noexcept { return kCss; }
std::string_view page_js() noexcept { return kJs; }

}  // namespace wsync::page
