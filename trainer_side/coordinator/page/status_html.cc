#include <algorithm>
#include <cmath>
#include <iterator>

#include "shared/base/format.h"
#include "shared/control/progress_phase.h"
#include "shared/observe/status/status_report.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/svg.h"
#include "trainer_side/coordinator/page/status_page.h"

namespace wsync::page {
namespace {

using control::ProgressPhase;
using control::ReplicaReport;
using control::ReplicaState;
using control::SidecarReport;
using control::StatusReply;

constexpr std::size_t kSentenceShown = 600;  // bytes of a reason

std::string ns_text(std::uint64_t ns) {
  return trace::format_duration(std::chrono::nanoseconds(ns));
}

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// Text as it may stand in an element or between double quotes, cut to a length that fits.
std::string escaped(std::string_view text) {
  std::string_view shown = text.substr(0, kSentenceShown);
  while (shown.size() < text.size() && !shown.empty() &&
         (static_cast<unsigned char>(text[shown.size()]) & 0xc0U) == 0x80U)
    shown.remove_suffix(1);  // in the middle of a character
  return trace::svg_escaped(shown) + (shown.size() < text.size() ? "\u2026" : "");
}

// A name, whose direction of writing is its own affair.
std::string named(std::string_view name) { return "<bdi>" + escaped(name) + "</bdi>"; }

// One row of the table of replicas; without `replica`: a sidecar that has none.
struct ReplicaRow {
  const SidecarReport* sidecar = nullptr;
  const ReplicaReport* replica = nullptr;
  [[nodiscard]] bool well() const {
    return replica != nullptr && sidecar->connected && replica->ready &&
           replica->state == ReplicaState::kServing;
  }
};

struct PageCounts {
  std::size_t sidecars = 0;
  std::size_t connected = 0;
  std::size_t replicas = 0;
  std::size_t ready = 0;
};

class PageWriter {
 public:
  explicit PageWriter(const PageFacts& facts) : facts_(facts), status_(facts.status) {
    for (const SidecarReport& sidecar : status_.sidecars) {
      ++counts_.sidecars;
      counts_.connected += sidecar.connected ? 1 : 0;
      counts_.replicas += sidecar.replicas.size();
      if (sidecar.replicas.empty()) rows_.push_back({.sidecar = &sidecar});
      for (const ReplicaReport& replica : sidecar.replicas) {
        counts_.ready += replica.ready ? 1 : 0;
        rows_.push_back({.sidecar = &sidecar, .replica = &replica});
      }
    }
    if (rows_.size() > kReplicasShown)
      std::ranges::stable_partition(rows_, [](const ReplicaRow& row) { return !row.well(); });
  }

  std::string title() const {
    return fmt::format("{}: {} of {} replicas ready, target {}",
                       facts_.ready ? "ready" : "NOT READY", counts_.ready, counts_.replicas,
                       status::version_text(status_.target));
  }

  std::string content() {
    state();
    update();
    replicas();
    rounds();
    problems();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }
  void fact(std::string_view name, std::string_view escaped_value) {
    put("<div><dt>{}</dt><dd>{}</dd></div>", name, escaped_value);
  }

  void state();
  void update();
  void phases(const control::UpdateProgress& running);
  void replicas();
  void replica_row(const ReplicaRow& row);
  void rounds();
  void round(const RoundRecord& round);
  void stage_rows(std::string_view escaped_name, const std::vector<RoundStage>& stages,
                  TimePoint began);
  void outcomes(const RoundRecord& round);
  void problems();

  const PageFacts& facts_;
  const StatusReply& status_;
  PageCounts counts_;
  std::vector<ReplicaRow> rows_;
  std::string out_;
};

// What changes seldom is told by screen readers as it does; figures that run are not.
void PageWriter::state() {
  put(R"(<section id="state" aria-labelledby="state-title"><h2 id="state-title">State</h2>)");
  put(R"(<p id="verdict" class="{}" role="status"><strong>{}</strong> {}</p>)",
      facts_.ready ? "good" : "bad", facts_.ready ? "Ready." : "Not ready.",
      facts_.ready
          ? fmt::format("{} of {} replicas may be routed to.", counts_.ready, counts_.replicas)
          : escaped(facts_.not_ready));
  put("<dl>");
  fact("Coordinator", escaped(status::activity_text(status_)));
  fact("Target version", status::version_text(status_.target));
  fact("Rollback target",
       status_.can_roll_back ? status::version_text(status_.rollback_target) : "none");
  fact("Replicas ready", fmt::format("{} of {}", counts_.ready, counts_.replicas));
  fact("Sidecars connected", fmt::format("{} of {}", counts_.connected, counts_.sidecars));
  fact("Updates", fmt::format("{} served, {} failed, {} cancelled", status_.updates.committed,
                              status_.updates.failed, status_.updates.cancelled));
  fact("Decision", fmt::format("{} under fence epoch {}", status_.decision, status_.fence.epoch));
  put("</dl></section>");
}

void PageWriter::phases(const control::UpdateProgress& running) {
  put(R"(<ol class="phases" aria-label="Phases of the update">)");
  for (const ProgressPhase phase : control::kProgressPhases) {
    const char* where = phase < running.phase ? "done" : phase == running.phase ? "now" : "to come";
    put(R"(<li class="{}"{}>{} <span>{}</span></li>)", phase == running.phase ? "now" : "other",
        phase == running.phase ? R"( aria-current="step")" : "", control::phase_name(phase), where);
  }
  put("</ol>");
}

void PageWriter::update() {
  const control::UpdateProgress& running = status_.running;
  put(R"(<section id="update" aria-labelledby="update-title"><h2 id="update-title">Update</h2>)");
  if (running.version.none()) {
    put(R"(<p id="running">No update runs.</p>)");
  } else {
    put(R"(<p id="running">{}</p>)", escaped(status::to_text(running)));
    if (const auto share = status::progress_share(running))
      put(R"(<progress max="100" value="{0:.0f}" aria-label="Share of this phase">{0:.0f} %</progress>)",
          std::floor(*share * 100));
    if (!running.rollback) phases(running);
  }
  if (const std::string last = status::to_text(status_.last); !last.empty())
    put(R"(<p id="last" class="{}">{}</p>)", status_.last.ok ? "plain" : "bad", escaped(last));
  put("</section>");
}

void PageWriter::replicas() {
  const std::size_t shown = std::min(rows_.size(), kReplicasShown);
  put(R"(<section id="replicas" aria-labelledby="replicas-title"><h2 id="replicas-title">Replicas</h2>)");
  if (rows_.empty()) {
    put("<p>No sidecar has connected.</p></section>");
    return;
  }
  put(R"(<div id="replicas-table" class="wide" role="region" aria-labelledby="replicas-title" tabindex="0"><table>)");
  put("<caption>{}</caption>",
      shown < rows_.size()
          ? fmt::format("{} of {} rows, those that are not well first; {} more are left out", shown,
                        rows_.size(), rows_.size() - shown)
          : fmt::format("{} on {}", counted(counts_.replicas, "replica"),
                        counted(counts_.sidecars, "sidecar")));
  put("<thead><tr>");
  for (const char* heading : {"Replica", "Sidecar", "Version", "State", "Ready", "Behind",
                              "Paused last", "Progress", "Note"})
    put(R"(<th scope="col">{}</th>)", heading);
  put("</tr></thead><tbody>");
  for (std::size_t i = 0; i < shown; ++i) replica_row(rows_[i]);
  put("</tbody></table></div></section>");
}

void PageWriter::replica_row(const ReplicaRow& row) {
  const SidecarReport& sidecar = *row.sidecar;
  const std::string_view name =
      row.replica != nullptr ? std::string_view(row.replica->replica) : std::string_view();
  put(R"(<tr class="{}" data-key="{}/{}">)", row.well() ? "well" : "unwell", escaped(sidecar.name),
      escaped(name));
  if (row.replica == nullptr) {
    put(R"(<th scope="row">none</th><td>{}</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>-</td><td>{}</td></tr>)",
        named(sidecar.name),
        sidecar.connected ? "no engine is attached to this sidecar"
                          : "this sidecar is not connected");
    return;
  }
  const ReplicaReport& replica = *row.replica;
  std::string progress = "-";
  if (replica.loaded_bytes > 0)
    progress = trace::format_bytes(replica.loaded_bytes) + " loaded";
  else if (sidecar.staged_bytes > 0)
    progress = trace::format_bytes(sidecar.staged_bytes) + " staged";
  put(R"(<th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>)",
      named(replica.replica), named(sidecar.name), status::version_text(replica.version),
      status::state_name(replica.state), replica.ready ? "yes" : "<strong>NO</strong>",
      status::behind_text(replica.version, status_.target),
      replica.paused_ns == 0 ? "-" : ns_text(replica.paused_ns), progress,
      sidecar.connected ? escaped(replica.reason) : "its sidecar is not connected");
}

void PageWriter::rounds() {
  put(R"(<section id="rounds" aria-labelledby="rounds-title"><h2 id="rounds-title">Last updates</h2>)");
  put("<p>{}</p>",
      facts_.rounds.empty()
          ? "This coordinator has made no update yet."
          : "Stages in their order: snapshot, announce, stage, switch. A rollback is a "
            "switch alone.");
  for (const auto& kept : facts_.rounds) round(*kept);
  put("</section>");
}

void PageWriter::round(const RoundRecord& round) {
  const std::string what =
      fmt::format("{} {}", round.rollback ? "Rollback to" : "Update",
                  round.version.none() ? "without a version" : round.version.to_string());
  const std::string took = trace::format_duration(round.ended - round.began);
  const auto age =
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, (facts_.at - round.ended).count()));
  // A name that stays while rounds come before it.
  const std::string id = fmt::format("round-{}", static_cast<std::int64_t>(round.began));
  put(R"(<article data-key="{0}" aria-labelledby="{0}">)", id);
  put(R"(<h3 id="{}">{}: {}</h3>)", id, what, round.result.empty() ? "it runs" : round.result);
  put("<p>{} {}{}</p>", round.result.empty() ? "For" : "In", took,
      round.result.empty() ? " so far"
                           : fmt::format(", {} ago{}{}", status::age_text(age),
                                         round.reason.empty() ? "" : ": ", escaped(round.reason)));
  put(R"(<div class="wide" role="region" aria-label="Picture of {}" tabindex="0">{}</div>)", what,
      round_svg(round, fmt::format("{}: when the coordinator and each sidecar were in which stage; "
                                   "the table below has the same figures",
                                   what)));
  put("<details><summary>{} in figures</summary>", what);
  put(R"(<div class="wide" role="region" aria-label="Stages of {}" tabindex="0"><table><caption>Stages</caption><thead><tr><th scope="col">Who</th><th scope="col">Stage</th><th scope="col">Began at</th><th scope="col">Took</th></tr></thead><tbody>)",
      what);
  stage_rows("coordinator", round.phases, round.began);
  for (const RoundLane& lane : round.lanes)
    stage_rows(named(lane.sidecar), lane.stages, round.began);
  put("</tbody></table></div>");
  if (round.lanes_left_out > 0)
    put("<p>{} answers of more sidecars are left out.</p>", round.lanes_left_out);
  if (!round.outcomes.empty()) outcomes(round);
  put("</details></article>");
}

void PageWriter::stage_rows(std::string_view escaped_name, const std::vector<RoundStage>& stages,
                            TimePoint began) {
  for (const RoundStage& stage : stages)
    put(R"(<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>)", escaped_name,
        stage.name,
        trace::format_duration(std::max(std::chrono::nanoseconds(0), stage.begin - began)),
        trace::format_duration(stage.end - stage.begin));
}

void PageWriter::outcomes(const RoundRecord& round) {
  put(R"(<div class="wide" role="region" aria-label="Replicas of this update" tabindex="0"><table><caption>Replicas{}</caption><thead><tr><th scope="col">Replica</th><th scope="col">Outcome</th><th scope="col">Waited</th><th scope="col">Paused</th><th scope="col">Loaded in</th><th scope="col">Speed</th><th scope="col">Reason</th></tr></thead><tbody>)",
      round.outcomes_left_out > 0 ? fmt::format(", {} more are left out", round.outcomes_left_out)
                                  : "");
  for (const control::ReplicaOutcome& outcome : round.outcomes)
    put(R"(<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>)",
        named(outcome.replica), status::outcome_name(outcome.outcome), ns_text(outcome.wait_ns),
        ns_text(outcome.paused_ns), ns_text(outcome.load_ns),
        trace::format_rate(outcome.bytes, std::chrono::nanoseconds(outcome.load_ns)),
        escaped(outcome.reason));
  put("</tbody></table></div>");
}

void PageWriter::problems() {
  put(R"(<section id="problems" aria-labelledby="problems-title"><h2 id="problems-title">Recent problems</h2>)");
  if (status_.incidents.empty()) put("<p>None since this coordinator began.</p>");
  if (!status_.incidents.empty()) put("<ul>");
  for (const control::Incident& incident : status_.incidents)
    put("<li>{} ago: {}</li>", status::age_text(incident.ago_ns), escaped(incident.text));
  if (!status_.incidents.empty()) put("</ul>");
  put("</section>");
}

std::string whole_page(std::string_view title, std::string_view content, std::string_view program) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>wsync {0}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/page.css">
<script src="/page.js" defer></script>
</head>
<body>
<a class="skip" href="#main">Skip to the state of the fleet</a>
<header>
<h1>wsync</h1>
<nav aria-label="Parts of this page">
<a href="#update">Update</a>
<a href="#replicas">Replicas</a>
<a href="#rounds">Last updates</a>
<a href="#problems">Problems</a>
<a href="/status.json">JSON</a>
<a href="/metrics">Metrics</a>
</nav>
<p class="fresh"><a id="again" href="/">Load anew</a> <button id="hold" type="button" aria-pressed="false" hidden>Hold still</button> <span id="fresh" role="status">as of the moment it was loaded</span></p>
</header>
<main id="main" tabindex="-1">
{1}</main>
<footer><p>{2}. Times are those of the coordinator.</p></footer>
</body>
</html>
)",
                     escaped(title), content, program);
}

}  // namespace

std::string status_html(const PageFacts& facts, std::string_view program) {
  PageWriter writer(facts);
  const std::string title = writer.title();
  return whole_page(title, writer.content(), program);
}

std::string trouble_html(std::string_view why, std::string_view program) {
  return whole_page("NO ANSWER",
                    fmt::format("<section id=\"state\"><h2>State</h2><p id=\"verdict\" "
                                "class=\"bad\" role=\"status\"><strong>No answer.</strong> {}"
                                "</p></section>\n",
                                escaped(why)),
                    program);
}

}  // namespace wsync::page
