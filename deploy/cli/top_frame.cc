#include "deploy/cli/top_frame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "deploy/cli/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

using control::ReplicaReport;
using control::ReplicaState;
using control::SidecarReport;
using control::StatusReply;

constexpr std::size_t kTableRowsMin = 3;
constexpr std::size_t kProblemsMax = 4;
constexpr std::size_t kNoteCellsMin = 12;
constexpr std::size_t kSentenceLines = 5;  // below a table that needs the whole screen
constexpr unsigned kBarMax = 30;

enum class Column : std::uint8_t {
  kReplica,
  kSidecar,
  kVersion,
  kState,
  kReady,
  kPaused,
  kBehind,
  kNote
};
constexpr std::size_t kColumnCount = 8;
constexpr std::array<std::string_view, kColumnCount> kHeadings = {
    "REPLICA", "SIDECAR", "VERSION", "STATE", "READY", "PAUSED LAST", "BEHIND", "NOTE"};
// In order of importance. The note gets the remaining width.
constexpr std::array<Column, kColumnCount - 1> kNeeded = {
    Column::kReplica, Column::kVersion, Column::kState, Column::kReady,
    Column::kSidecar, Column::kBehind,  Column::kPaused};
constexpr std::array<std::size_t, kColumnCount> kWidthMax = {24, 16, 14, 9, 5, 11, 10, 0};

struct TableRow {
  std::array<std::string, kColumnCount> cells;
  Style style = Style::kPlain;
};

std::string time_of(std::uint64_t ns) {
  return trace::format_duration(std::chrono::nanoseconds(ns));
}

Style style_of(const ReplicaReport& replica) {
  if (replica.state == ReplicaState::kTainted) return Style::kBad;
  if (replica.state == ReplicaState::kLoading || replica.state == ReplicaState::kPaused)
    return Style::kWarning;
  if (!replica.ready) return Style::kBad;
  return replica.state == ReplicaState::kBehind ? Style::kWarning : Style::kPlain;
}

TableRow row_of(const SidecarReport& sidecar, const ReplicaReport& replica, const Version& target) {
  std::string note = replica.reason;
  if (replica.loaded_bytes > 0)
    note =
        trace::format_bytes(replica.loaded_bytes) + " loaded" + (note.empty() ? "" : "; ") + note;
  if (!sidecar.connected) note = "its sidecar is not connected";
  return {.cells = {replica.replica, sidecar.name, version_text(replica.version),
                    std::string(state_name(replica.state)), replica.ready ? "yes" : "NO",
                    replica.paused_ns == 0 ? "-" : time_of(replica.paused_ns),
                    behind_text(replica.version, target), note},
          .style = style_of(replica)};
}

std::vector<TableRow> table_of(const StatusReply& status) {
  std::vector<TableRow> rows;
  for (const SidecarReport& sidecar : status.sidecars) {
    for (const ReplicaReport& replica : sidecar.replicas)
      rows.push_back(row_of(sidecar, replica, status.target));
    if (sidecar.replicas.empty())
      rows.push_back({.cells = {"-", sidecar.name, "-", "-", "-", "-", "-",
                                sidecar.connected ? "no engine is attached to this sidecar"
                                                  : "this sidecar is not connected"},
                      .style = sidecar.connected ? Style::kDim : Style::kBad});
  }
  return rows;
}

// ---- heading ----

std::string bar_text(double share, unsigned cells) {
  const auto full = static_cast<unsigned>(share * cells);
  return "[" + std::string(full, '#') + std::string(cells - full, '.') + "]";
}

// The bar uses the width that the text leaves. It is left out if there is no room.
ScreenLine running_line(const control::UpdateProgress& running, std::size_t columns) {
  ScreenLine line = {{.text = fmt::format("{}{} {}", running.rollback ? "rollback: " : "",
                                          phase_text(running.phase), running.version.to_string()),
                      .style = Style::kBold}};
  std::string tail;
  const std::optional<double> share = progress_share(running);
  if (share) tail += fmt::format("  {:.0f} %", std::floor(*share * 100));
  if (running.bytes_per_s > 0)
    tail += "  " + trace::format_rate(running.bytes_per_s, std::chrono::seconds(1));
  if (running.remaining_known)
    tail += "  about " + time_of(running.remaining_ns) + " left";
  else
    tail += "  " + time_of(running.elapsed_ns) + " so far";
  if (running.total_bytes > 0)
    tail += fmt::format("  {} of {}", trace::format_bytes(running.done_bytes),
                        trace::format_bytes(running.total_bytes));
  if (running.waiting > 0) tail += fmt::format("  {} waiting", running.waiting);
  const std::size_t taken = line_width(line) + tail.size() + 4;
  if (share && taken + 8 <= columns) {
    const auto cells = static_cast<unsigned>(std::min<std::size_t>(kBarMax, columns - taken));
    line.push_back({.text = "  " + bar_text(*share, cells), .style = Style::kGood});
  }
  line.push_back({.text = tail});
  return line;
}

// Shows for each sidecar how many bytes of the next version are staged.
ScreenLine staged_line(const StatusReply& status) {
  std::string text = "staged:";
  for (const SidecarReport& sidecar : status.sidecars)
    if (sidecar.connected)
      text += fmt::format("  {} {}", sidecar.name, trace::format_bytes(sidecar.staged_bytes));
  return {{.text = text, .style = Style::kDim}};
}

ScreenLine counts_line(const StatusReply& status) {
  std::size_t connected = 0;
  std::size_t replicas = 0;
  std::size_t ready = 0;
  for (const SidecarReport& sidecar : status.sidecars) {
    connected += sidecar.connected ? 1 : 0;
    replicas += sidecar.replicas.size();
    for (const ReplicaReport& replica : sidecar.replicas) ready += replica.ready ? 1 : 0;
  }
  ScreenLine line = {{.text = fmt::format("replicas ready {}/{}", ready, replicas),
                      .style = ready == replicas ? Style::kGood : Style::kBad},
                     {.text = "  "},
                     {.text = fmt::format("sidecars up {}/{}", connected, status.sidecars.size()),
                      .style = connected == status.sidecars.size() ? Style::kGood : Style::kBad}};
  if (status.role == "coordinator")
    line.push_back({.text = fmt::format("  {} updates served, {} failed, {} cancelled",
                                        status.updates.committed, status.updates.failed,
                                        status.updates.cancelled)});
  return line;
}

std::vector<ScreenLine> heading_of(const FleetView& view, std::size_t columns, TimePoint at) {
  std::vector<ScreenLine> lines;
  const auto add_wrapped = [&](const ScreenLine& line) {
    for (ScreenLine& part : wrapped(line, columns)) lines.push_back(std::move(part));
  };
  lines.push_back({{.text = "wsync top", .style = Style::kBold}, {.text = "  " + view.address}});
  if (!view.trouble.empty()) {
    const auto silent =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, (at - view.answered).count()));
    const std::string since = view.status ? " for " + age_text(silent) : "";
    add_wrapped(
        {{.text = fmt::format("NO ANSWER{}: {}", since, view.trouble), .style = Style::kBad}});
  }
  if (!view.status) {
    if (view.trouble.empty()) lines.push_back({{.text = "connecting"}});
    return lines;
  }
  const StatusReply& status = *view.status;
  add_wrapped({{.text = fmt::format(
                    "{} {}  target {}  rollback target {}", status.role, activity_text(status),
                    version_text(status.target),
                    status.can_roll_back ? version_text(status.rollback_target) : "none")}});
  add_wrapped(counts_line(status));
  if (!status.running.version.none()) {
    lines.push_back(running_line(status.running, columns));
    if (status.running.phase == control::ProgressPhase::kStage)
      lines.push_back(staged_line(status));
  } else if (std::string last = to_text(status.last); !last.empty()) {
    add_wrapped({{.text = last, .style = status.last.ok ? Style::kPlain : Style::kWarning}});
  }
  if (std::string changes = status::changes_text(status); !changes.empty())
    add_wrapped({{.text = changes, .style = Style::kDim}});
  return lines;
}

// ---- table ----

struct Layout {
  std::array<std::size_t, kColumnCount> cells{};  // 0: column is hidden
};

Layout layout_of(const std::vector<TableRow>& rows, std::size_t columns) {
  Layout layout;
  std::size_t taken = 0;
  for (const Column column : kNeeded) {
    const auto c = static_cast<std::size_t>(column);
    std::size_t widest = text_width(kHeadings[c]);
    for (const TableRow& row : rows) widest = std::max(widest, text_width(printable(row.cells[c])));
    widest = std::min(widest, std::max(kWidthMax[c], text_width(kHeadings[c])));
    const std::size_t gap = taken == 0 ? 0 : 2;
    if (taken == 0) widest = std::min(widest, columns);
    if (taken + gap + widest > columns) break;
    layout.cells[c] = widest;
    taken += gap + widest;
  }
  if (taken + 2 + kNoteCellsMin <= columns)
    layout.cells[static_cast<std::size_t>(Column::kNote)] = columns - taken - 2;
  return layout;
}

template <class Cells>
std::string row_text(const Layout& layout, const Cells& cells) {
  std::string text;
  for (std::size_t c = 0; c < kColumnCount; ++c) {
    if (layout.cells[c] == 0) continue;
    if (!text.empty()) text += "  ";
    text += padded(cells[c], layout.cells[c]);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

// Sentences below the table: notes of replicas for which their column is too narrow, then the
// newest problems. A sentence is shown whole or not at all; `height` is how many lines there are.
std::vector<ScreenLine> sentences_of(const StatusReply& status, const std::vector<TableRow>& rows,
                                     std::size_t columns, std::size_t height) {
  std::vector<ScreenLine> lines;
  const auto add = [&](const std::string& heading, const ScreenLine& sentence, bool& begun) {
    const std::vector<ScreenLine> parts = wrapped(sentence, columns);
    if (lines.size() + parts.size() + (begun ? 0 : 1) > height) return false;
    if (!std::exchange(begun, true)) lines.push_back({{.text = heading, .style = Style::kBold}});
    lines.insert(lines.end(), parts.begin(), parts.end());
    return true;
  };
  const std::size_t note = layout_of(rows, columns).cells[static_cast<std::size_t>(Column::kNote)];
  bool notes = false;
  for (const TableRow& row : rows) {
    const std::string& text = row.cells[static_cast<std::size_t>(Column::kNote)];
    if (text_width(printable(text)) <= note) continue;
    const std::string& replica = row.cells[static_cast<std::size_t>(Column::kReplica)];
    const std::string& name =
        replica == "-" ? row.cells[static_cast<std::size_t>(Column::kSidecar)] : replica;
    if (!add("NOTES", {{.text = name + ": ", .style = Style::kDim}, {.text = text}}, notes)) break;
  }
  bool problems = false;
  std::size_t shown = 0;
  for (const control::Incident& incident : status.incidents) {
    if (shown++ == kProblemsMax) break;
    if (!add("RECENT PROBLEMS",
             {{.text = age_text(incident.ago_ns) + " ago  ", .style = Style::kDim},
              {.text = incident.text}},
             problems))
      break;
  }
  return lines;
}

ScreenLine keys_line(const TopFrame& frame) {
  std::string text = "q quit";
  if (frame.rows_shown < frame.rows)
    text += fmt::format("   arrows, PgUp, PgDn scroll   rows {}-{} of {}", frame.first_row + 1,
                        frame.first_row + frame.rows_shown, frame.rows);
  return {{.text = text, .style = Style::kReverse}};
}

}  // namespace

TopFrame top_frame(const FleetView& view, ScreenSize size, std::size_t scroll, TimePoint at,
                   bool keys) {
  TopFrame frame;
  std::vector<ScreenLine> heading = heading_of(view, size.columns, at);
  std::vector<TableRow> rows;
  std::vector<ScreenLine> problems;
  if (view.status) {
    rows = table_of(*view.status);
  }
  frame.rows = rows.size();
  // Distributes the height: first to the table with its headings and three rows, then to the
  // heading, then to the problems.
  const std::size_t height = size.rows - std::min<std::size_t>(size.rows, keys ? 1 : 0);
  const std::size_t min = std::min(rows.size(), kTableRowsMin) + (rows.empty() ? 0 : 1);
  heading.resize(std::min(heading.size(), height > min ? height - min : 0));
  std::size_t left = height - std::min(height, heading.size());
  if (view.status && left > min + 1) {
    // What the whole table leaves, and a few lines of a table that scrolls.
    const std::size_t table = std::min(rows.size() + 1, left - 1);
    const std::size_t height_max =
        std::max(left - 1 - table, std::min(left - min - 1, kSentenceLines));
    problems = sentences_of(*view.status, rows, size.columns, height_max);
  }
  const bool blank = left > rows.size() + problems.size() + 3;
  if (!problems.empty()) left -= problems.size() + (blank ? 2 : 1);
  frame.rows_shown = std::min(rows.size(), left > 1 ? left - 1 : 0);
  frame.first_row = std::min(scroll, rows.size() - frame.rows_shown);

  frame.lines = std::move(heading);
  if (blank && !rows.empty()) frame.lines.push_back({});
  if (frame.rows_shown > 0) {
    const Layout layout = layout_of(rows, size.columns);
    frame.lines.push_back({{.text = row_text(layout, kHeadings), .style = Style::kBold}});
    for (std::size_t i = 0; i < frame.rows_shown; ++i) {
      const TableRow& row = rows[frame.first_row + i];
      frame.lines.push_back({{.text = row_text(layout, row.cells), .style = row.style}});
    }
  } else if (view.status && rows.empty() && frame.lines.size() < height) {
    frame.lines.push_back({{.text = "no sidecar has connected", .style = Style::kWarning}});
  }
  if (!problems.empty()) {
    frame.lines.push_back({});
    for (ScreenLine& line : problems) frame.lines.push_back(std::move(line));
  }
  if (keys && size.rows > 0) {
    if (frame.lines.size() < height && size.rows > 1) frame.lines.resize(height);
    frame.lines.push_back(keys_line(frame));
  }
  for (ScreenLine& line : frame.lines) line = clipped(line, size.columns);
  return frame;
}

}  // namespace wsync::cli
