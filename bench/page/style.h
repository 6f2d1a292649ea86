// How a report looks. In this folder only.
#pragma once

#include <string_view>

namespace wsync::bench::page {

inline constexpr std::string_view kStyle = R"(
:root{--paper:#fff;--ink:#1b1f24;--dim:#57606a;--line:#d5dae0;--field:#f6f8fa;--good:#00664a;--bad:#a33200;--accent:#0b5c94}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e3e7ec;--dim:#9aa4af;--line:#363d46;--field:#1b2027;--good:#4fcf9f;--bad:#ff9a6b;--accent:#6db8ea}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.7rem;margin:0 0 4px}
h2{font-size:1.3rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:20px 0 6px}
p{margin:6px 0;max-width:80ch}
a{color:var(--accent)}
nav ul,.plain{list-style:none;margin:8px 0;padding:0}
nav li{display:inline-block;margin:0 16px 4px 0}
.dim,.what,figcaption,dt{color:var(--dim)}
.what{font-size:.84rem;max-width:52ch}
code{font:.9em/1.4 ui-monospace,monospace;background:var(--field);border:1px solid var(--line);border-radius:4px;padding:0 4px;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;margin:10px 0;font-size:.93rem}
th,td{text-align:left;vertical-align:top;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{font-weight:600;color:var(--dim);overflow-wrap:normal}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal;white-space:nowrap}
.cases td:first-child{font-weight:600}.cases .what{font-weight:400}
.met{color:var(--good);font-weight:600}
.missed{color:var(--bad);font-weight:600}
dl{display:grid;grid-template-columns:minmax(9em,max-content) 1fr;gap:2px 16px;margin:8px 0;font-size:.93rem}
dd{margin:0;overflow-wrap:anywhere}
.notes{margin:8px 0;padding:8px 12px 8px 30px;background:var(--field);border-left:3px solid var(--bad);overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:20px;align-items:start}
figure{margin:0;padding:8px 10px 12px;border:1px solid var(--line);border-radius:6px;break-inside:avoid}
figure svg{display:block;width:100%;height:auto;max-width:560px;margin:0 auto}
figcaption{font-size:.84rem;padding:0 6px}
svg .paper{fill:none}svg .field{fill:var(--field);stroke:var(--line)}
svg text.ink{fill:var(--ink)}svg text.dim{fill:var(--dim)}svg line.grid{stroke:var(--line)}
svg line.dim,svg .whisker{stroke:var(--dim)}svg .whisker{stroke:var(--ink)}
@media (max-width:700px){
main{padding:16px 12px 32px}
thead{position:absolute;left:-9999px}
table,tbody,tr,td{display:block}
tr{padding:8px 0;border-bottom:1px solid var(--line)}
td,td.n{border:0;padding:1px 0;text-align:left;white-space:normal}
td:empty{display:none}
td.n.m,td.u{display:inline-block;margin-right:.4em}
td[data-is]::before{content:attr(data-is) ": ";color:var(--dim)}
dl{grid-template-columns:8em 1fr}
figure{padding:6px 2px 10px}
}
@media print{
body{font-size:11px}main{max-width:none;padding:0}h2{break-after:avoid}tr{break-inside:avoid}
.plots{grid-template-columns:1fr 1fr}nav{display:none}
}
)";

}  // namespace wsync::bench::page
