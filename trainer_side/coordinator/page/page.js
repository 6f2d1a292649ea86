// Draws /status.json, once a second. Everything that comes from the network becomes text nodes and
// attribute values, never markup: element() is the only function that makes elements, and none of
// the names of elements and attributes comes from the network.
"use strict";
(() => {
  const INTERVAL_MS = 1000, DEADLINE_MS = 8000;
  const MAX_REPLICAS = 200;   // rows of the table
  const MAX_SENTENCE = 600;   // characters of a reason
  const PHASES = ["snapshot", "announce", "stage", "switch"];
  const DOING = { snapshot: "snapshot", announce: "announcing", stage: "staging", switch: "switching" };

  // ---- words and figures, as `wsync status` writes them ----

  const digits = (value) => value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  const bytes = (count) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    for (; count >= (unit ? 1023.5 : 1024) && unit + 1 < units.length; ++unit) count /= 1024;
    return (unit ? digits(count) : count) + " " + units[unit];
  };
  const rate = (perSecond) => perSecond < 1e6 ? digits(perSecond / 1e3) + " kB/s"
    : perSecond < 1e9 ? digits(perSecond / 1e6) + " MB/s" : digits(perSecond / 1e9) + " GB/s";
  const two = (number) => String(number).padStart(2, "0");
  const duration = (ns) => {
    const s = ns / 1e9;
    if (s < 0.9995) return (s * 1e3).toFixed(1) + " ms";
    if (s < 59.95) return s.toFixed(1) + " s";
    const whole = Math.round(s);
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole % 3600 / 60))} min`;
  };
  const age = (ns) => {
    const s = ns / 1e9;
    if (s < 9.95) return s.toFixed(1) + " s";
    if (s < 120) return s.toFixed(0) + " s";
    if (s < 7200) return (s / 60).toFixed(0) + " min";
    return s < 48 * 3600 ? (s / 3600).toFixed(0) + " h" : (s / 86400).toFixed(0) + " d";
  };
  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const none = (version) => version === "0.0";
  const versionText = (version) => none(version) ? "none" : version;
  // By characters, so that none is cut into halves.
  const shortened = (text, max) => {
    const characters = [...String(text)];
    return characters.length <= max ? String(text) : characters.slice(0, max).join("") + "\u2026";
  };
  const sentence = (text) => shortened(text, MAX_SENTENCE);
  const behind = (version, target) => {
    if (none(target) || version === target) return "-";
    if (none(version)) return "no version";
    const [epoch, step] = version.split("."), [wantedEpoch, wanted] = target.split(".");
    const steps = BigInt(wanted) - BigInt(step);
    return epoch !== wantedEpoch || steps < 0n ? "differs" : `${steps} step${steps === 1n ? "" : "s"}`;
  };
  const activity = (text) => ({ gathering: "waits for sidecars", claiming: "takes the fleet over" })[text] ?? sentence(text);
  const share = (running) => running.total_bytes === 0 ? null : Math.min(1, running.done_bytes / running.total_bytes);
  const percent = (running) => Math.floor(share(running) * 100);
  const runningText = (running) => {
    let text = `${running.rollback ? "rollback to" : "update"} ${running.version}: ${DOING[running.phase] ?? running.phase}`;
    if (share(running) !== null) text += `, ${percent(running)} % (${bytes(running.done_bytes)} of ${bytes(running.total_bytes)})`;
    if (running.bytes_per_s > 0) text += ", " + rate(running.bytes_per_s);
    text += `, ${duration(running.elapsed_ns)} so far`;
    if (running.remaining_ns !== null) text += `, about ${duration(running.remaining_ns)} left`;
    return running.waiting > 0 ? text + `; ${running.waiting} waiting behind it` : text;
  };
  const lastText = (last) => {
    const name = "last update" + (none(last.version) ? "" : " " + last.version);
    if (!last.ok) return `${name}: ${last.cancelled ? "cancelled" : last.partial ? "partial" : "failed"} ${age(last.ended_ago_ns)} ago: ${last.reason}`;
    const text = `${name}: served ${age(last.ended_ago_ns)} ago, longest pause ${duration(last.paused_ns)}, switched in ${duration(last.switch_ns)}`;
    return last.bytes === 0 ? text
      : text + `, staged in ${duration(last.staged_ns)}, snapshot ${duration(last.snapshot_ns)}, ${bytes(last.bytes)}`;
  };

  // How the target has come and was loaded, if less than all of it was needed; empty if there is nothing to say.
  const changesText = ({ target, sidecars }) => {
    const copies = sidecars.map((sidecar) => sidecar.last_copy).filter((copy) => copy && copy.version === target);
    const changes = copies.filter((copy) => !none(copy.base));
    const replicas = sidecars.flatMap((sidecar) => sidecar.replicas).filter((replica) => !none(target) && replica.version === target);
    const patched = replicas.filter((replica) => replica.last_load?.kind === "patch").length;
    const sum = (field) => bytes(changes.reduce((total, copy) => total + copy[field], 0));
    let text = changes.length === 0 ? ""
      : `${target} came as changes to ${changes.length} of ${counted(copies.length, "sidecar")} (${sum("travelled_bytes")} of ${sum("bytes")})`;
    if (patched > 0) text += `${text ? ", and" : target} was loaded by a patch in ${patched} of ${counted(replicas.length, "replica")}`;
    return text;
  };

  // ---- elements ----

  const SVG = "http://www.w3.org/2000/svg";
  const element = (space, name, attributes, ...children) => {
    const made = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(attribute, value);
    made.append(...children.flat().filter((child) => child !== null).map((child) => child instanceof Node ? child : String(child)));
    return made;
  };
  const html = (name, attributes, ...children) => element(null, name, attributes, ...children);
  const svg = (name, attributes, ...children) => element(SVG, name, attributes, ...children);
  // A name may be written from right to left, and must not turn what stands around it.
  const named = (name) => html("bdi", {}, sentence(name));
  const wide = (attributes, ...children) => html("div", { class: "wide", role: "region", tabindex: "0", ...attributes }, ...children);
  const table = (caption, headings, rows) => html("table", {}, html("caption", {}, caption),
    html("thead", {}, html("tr", {}, headings.map((heading) => html("th", { scope: "col" }, heading)))),
    html("tbody", {}, rows));
  const row = (attributes, first, ...cells) =>
    html("tr", attributes, html("th", { scope: "row" }, first), cells.map((cell) => html("td", {}, cell)));

  // ---- the parts of the page: facts to elements ----

  const stateFacts = (facts, counts) => html("dl", {}, [
    ["Coordinator", activity(facts.activity)],
    ["Target version", versionText(facts.target)],
    ["Rollback target", facts.can_roll_back ? versionText(facts.rollback_target) : "none"],
    ["Replicas ready", `${counts.ready} of ${counts.replicas}`],
    ["Sidecars connected", `${counts.connected} of ${facts.sidecars.length}`],
    ["Updates", `${facts.updates.committed} served, ${facts.updates.failed} failed, ${facts.updates.cancelled} cancelled`],
    ["Decision", `${facts.decision} under fence epoch ${facts.fence_epoch}`],
  ].map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));

  const phaseList = (running) => html("ol", { class: "phases", "aria-label": "Phases of the update" }, PHASES.map((phase, i) => {
    const at = PHASES.indexOf(running.phase);
    const isNow = i === at;
    return html("li", { class: isNow ? "now" : "other", "aria-current": isNow ? "step" : null }, phase + " ",
      html("span", {}, isNow ? "now" : i < at ? "done" : "to come"));
  }));

  const updateFacts = ({ update: running, last_update: last, ...facts }) => [
    html("p", { id: "running" }, running ? runningText(running) : "No update is running."),
    running && share(running) !== null
      ? html("progress", { max: "100", value: percent(running), "aria-label": "Share of this phase" }, `${percent(running)} %`) : null,
    running && !running.rollback ? phaseList(running) : null,
    last ? html("p", { id: "last", class: last.ok ? "plain" : "bad" }, sentence(lastText(last))) : null,
    changesText(facts) ? html("p", { id: "changes" }, sentence(changesText(facts))) : null,
  ];

  const isWell = ({ sidecar, replica }) => replica && sidecar.connected && replica.ready && replica.state === "serving";
  const replicaRow = ({ sidecar, replica }, target) => {
    const attributes = { class: isWell({ sidecar, replica }) ? "well" : "unwell", "data-key": `${sidecar.name}/${replica?.replica ?? ""}` };
    if (!replica)
      return row(attributes, "none", named(sidecar.name), ...Array(6).fill("-"),
        sidecar.connected ? "no engine is attached to this sidecar" : "this sidecar is not connected");
    const progress = replica.loaded_bytes > 0 ? bytes(replica.loaded_bytes) + " loaded"
      : sidecar.staged_bytes > 0 ? bytes(sidecar.staged_bytes) + " staged" : "-";
    return row(attributes, named(replica.replica), named(sidecar.name), versionText(replica.version), replica.state,
      replica.ready ? "yes" : html("strong", {}, "NO"), behind(replica.version, target),
      replica.paused_ns === 0 ? "-" : duration(replica.paused_ns), progress,
      sidecar.connected ? sentence(replica.reason) : "its sidecar is not connected");
  };
  const replicaFacts = (facts, counts) => {
    let rows = facts.sidecars.flatMap((sidecar) =>
      sidecar.replicas.length ? sidecar.replicas.map((replica) => ({ sidecar, replica })) : [{ sidecar, replica: null }]);
    if (!rows.length) return [html("p", {}, "No sidecar has connected.")];
    const all = rows.length;
    if (all > MAX_REPLICAS) rows = [...rows.filter((r) => !isWell(r)), ...rows.filter(isWell)].slice(0, MAX_REPLICAS);
    const caption = all > MAX_REPLICAS
      ? `${MAX_REPLICAS} of ${all} rows, those with a problem first; ${all - MAX_REPLICAS} more are left out`
      : `${counted(counts.replicas, "replica")} on ${counted(facts.sidecars.length, "sidecar")}`;
    return [wide({ id: "replicas-table", "aria-labelledby": "replicas-title" }, table(caption,
      ["Replica", "Sidecar", "Version", "State", "Ready", "Behind", "Paused last", "Progress", "Note"],
      rows.map((r) => replicaRow(r, facts.target))))];
  };

  // A row for the coordinator and one for each sidecar, time to the right.
  const picture = (round, title) => {
    const width = 860, left = 150, right = 32, rowHeight = 26, barHeight = 20, axis = 28, character = 7.2, maxName = 19;
    const total = Math.max(1e3, round.duration_ns);
    const x = (ns) => left + Math.min(total, Math.max(0, ns)) / total * (width - left - right);
    const lanes = [{ name: "coordinator", stages: round.phases }, ...round.sidecars];
    const bottom = rowHeight * lanes.length;
    // One, two or five times a power of ten, about six times along the axis.
    const rough = total / 6, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * (rough / power <= 1 ? 1 : rough / power <= 2 ? 2 : rough / power <= 5 ? 5 : 10);
    const parts = [];
    for (let at = 0; at <= total; at += step)
      parts.push(svg("path", { class: "grid", d: `M${x(at).toFixed(1)} 0V${bottom + 4}` }),
        svg("text", { class: "tick", x: x(at).toFixed(1), y: bottom + axis - 8 }, at === 0 ? "0" : duration(at)));
    lanes.forEach((lane, i) => {
      const y = i * rowHeight;
      parts.push(svg("text", { class: "lane", x: left - 8, y: y + barHeight / 2 + 5 },
        shortened(lane.name, maxName - 1), svg("title", {}, sentence(lane.name))));
      for (const stage of lane.stages) {
        const begin = x(stage.begin_ns), wideness = Math.max(2, x(stage.end_ns) - begin);
        const took = duration(stage.end_ns - stage.begin_ns);
        const kind = PHASES.includes(stage.name) ? stage.name : null;
        parts.push(svg("rect", { class: kind, x: begin.toFixed(1), y: y + 3, width: wideness.toFixed(1), height: barHeight, rx: 2 },
          svg("title", {}, `${stage.name}: ${took}`)));
        const label = [`${stage.name} ${took}`, stage.name].find((text) => text.length * character < wideness);
        if (label) parts.push(svg("text", { class: "bar", x: (begin + wideness / 2).toFixed(1), y: y + barHeight / 2 + 8 }, label));
      }
    });
    const height = bottom + axis;
    return svg("svg", { class: "round", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title }, parts);
  };

  const roundFacts = (round, key) => {
    const what = `${round.rollback ? "Rollback to" : "Update"} ${none(round.version) ? "without a version" : round.version}`;
    const runs = round.result === null, took = duration(round.duration_ns);
    const ended = round.began_ago_ns - round.duration_ns;
    const stages = (name, list) => list.map((stage) =>
      row({}, name, stage.name, duration(Math.max(0, stage.begin_ns)), duration(stage.end_ns - stage.begin_ns)));
    const outcome = (replica) => row({}, named(replica.replica), replica.outcome, duration(replica.wait_ns), duration(replica.paused_ns),
      duration(replica.load_ns), replica.load_ns > 0 ? rate(replica.bytes / (replica.load_ns / 1e9)) : "-", sentence(replica.reason));
    return html("article", { "data-key": key, "aria-labelledby": key },
      html("h3", { id: key }, `${what}: ${runs ? "running" : round.result}`),
      html("p", {}, runs ? `For ${took} so far`
        : `In ${took}, ${age(Math.max(0, ended))} ago${round.reason ? ": " + sentence(round.reason) : ""}`),
      wide({ "aria-label": "Picture of " + what }, picture(round,
        `${what}: when the coordinator and each sidecar were in which stage; the table below has the same figures`)),
      html("details", {}, html("summary", {}, what + " in figures"),
        wide({ "aria-label": "Stages of " + what }, table("Stages", ["Who", "Stage", "Began at", "Took"],
          [stages("coordinator", round.phases), ...round.sidecars.map((lane) => stages(named(lane.name), lane.stages))].flat())),
        round.sidecars_left_out > 0 ? html("p", {}, `${round.sidecars_left_out} answers of more sidecars are left out.`) : null,
        round.replicas.length ? wide({ "aria-label": "Replicas of this update" }, table(
          "Replicas" + (round.replicas_left_out > 0 ? `, ${round.replicas_left_out} more are left out` : ""),
          ["Replica", "Outcome", "Waited", "Paused", "Loaded in", "Speed", "Reason"], round.replicas.map(outcome))) : null));
  };
  // A round has no number, and its place changes when a newer one begins. When it began, by the clock
  // of this browser, tells it from the others: answers differ by how long they were on their way.
  const known = [];
  const SAME_ROUND_MS = 2000;
  let rounds = 0;
  const roundKeys = (list, at) => {
    const free = known.splice(0);
    return list.map((round) => {
      const began = at - round.began_ago_ns / 1e6;
      const away = (k) => k.version === round.version || none(k.version) ? Math.abs(k.began - began) : Infinity;
      const nearest = free.reduce((best, k, i) => away(k) < away(free[best] ?? { version: "" }) ? i : best, -1);
      const found = nearest >= 0 && away(free[nearest]) < SAME_ROUND_MS ? nearest : -1;
      const key = found >= 0 ? free.splice(found, 1)[0].key : `round-${++rounds}`;
      known.push({ key, began, version: round.version });
      return key;
    });
  };
  const allRounds = (facts, at) => {
    const keys = roundKeys(facts.rounds, at);
    return [html("p", {}, facts.rounds.length
      ? "Stages in their order: snapshot, announce, stage, switch. A rollback is a switch alone."
      : "This coordinator has not made an update yet."), ...facts.rounds.map((round, i) => roundFacts(round, keys[i]))];
  };

  const problems = (facts) => facts.incidents.length
    ? [html("ul", {}, facts.incidents.map((incident) => html("li", {}, `${age(incident.ago_ns)} ago: ${sentence(incident.text)}`)))]
    : [html("p", {}, "None since this coordinator started.")];

  // ---- what is shown changes only where it differs, so that focus, scroll positions and opened
  // details stay ----

  const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id : "";
  const isSame = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
  const updateAttributes = (old, wanted) => {
    for (const { name } of [...old.attributes])
      if (!wanted.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    for (const { name, value } of wanted.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  };
  const updateNode = (old, wanted) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
      return;
    }
    updateAttributes(old, wanted);
    updateChildren(old, [...wanted.childNodes]);
  };
  const updateChildren = (parent, wanted) => {
    let at = parent.firstChild;
    for (const child of wanted) {
      let found = at;
      while (found && !isSame(found, child)) found = found.nextSibling;
      if (!found) {
        parent.insertBefore(child, at);
        continue;
      }
      // What lies between has gone or comes later: a node with a key is found by it.
      if (found === at) at = at.nextSibling;
      else parent.insertBefore(found, at);
      updateNode(found, child);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };
  const show = (id, nodes) => updateChildren(document.getElementById(id), nodes.filter((node) => node !== null));
  const verdict = (good, word, text) => {
    const shown = document.getElementById("verdict");
    shown.className = good ? "good" : "bad";
    updateChildren(shown, [html("strong", {}, word), document.createTextNode(" " + text)]);
  };

  const draw = (facts, at) => {
    const replicas = facts.sidecars.flatMap((sidecar) => sidecar.replicas);
    const counts = { replicas: replicas.length, ready: replicas.filter((replica) => replica.ready).length,
      connected: facts.sidecars.filter((sidecar) => sidecar.connected).length };
    const focused = document.activeElement;
    verdict(facts.ready, facts.ready ? "Ready." : "Not ready.",
      facts.ready ? `Requests may be routed to ${counts.ready} of ${counts.replicas} replicas.` : sentence(facts.not_ready));
    show("state-facts", [stateFacts(facts, counts)]);
    show("update-facts", updateFacts(facts));
    show("replicas-facts", replicaFacts(facts, counts));
    show("rounds-facts", allRounds(facts, at));
    show("problems-facts", problems(facts));
    document.title = `wsync ${facts.ready ? "ready" : "NOT READY"}: ${counts.ready} of ${counts.replicas} replicas ready, target ${versionText(facts.target)}`;
    // An element that was moved loses the focus, and one that has gone leaves it to the content.
    if (focused && focused !== document.body && document.activeElement !== focused)
      (focused.isConnected ? focused : document.getElementById("main")).focus({ preventScroll: true });
  };

  // ---- asking ----

  const hold = document.getElementById("hold"), fresh = document.getElementById("fresh");
  let held = false, since = null;
  const say = (text) => { if (fresh.textContent !== text) fresh.textContent = text; };

  const ask = async () => {
    const response = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) });
    const facts = await response.json();
    if (held) return;
    if (response.ok) {
      draw(facts, performance.now());
      say("follows the coordinator");
    } else {
      verdict(false, "No answer.", sentence(facts.error));
      throw new Error("no facts");
    }
    since = new Date();
  };
  const again = async () => {
    try {
      if (!held && !document.hidden) await ask();
    } catch {
      say(since ? "NO ANSWER: the page shows the state at " + since.toLocaleTimeString() : "NO ANSWER yet");
      document.title = "wsync NO ANSWER";
    }
    setTimeout(again, INTERVAL_MS);
  };

  hold.hidden = false;
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
    say(held ? "not refreshed since " + new Date().toLocaleTimeString() : "follows the coordinator");
  });
  again();
})();
