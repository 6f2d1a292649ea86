#include "shared/observe/status/status_report.h"

#include <algorithm>
#include <cmath>

#include "shared/base/format.h"
#include "shared/control/progress_phase.h"
#include "shared/observe/trace/progress.h"

namespace wsync::status {
namespace {

using nlohmann::json;

constexpr std::size_t kIncidentsShown = 5;

json version_list_json(const std::vector<Version>& versions) {
  json list = json::array();
  for (const Version& version : versions) list.push_back(version.to_string());
  return list;
}

std::string version_list_text(const std::vector<Version>& versions) {
  std::string text;
  for (const Version& version : versions) text += (text.empty() ? "" : " ") + version.to_string();
  return text.empty() ? "none" : text;
}

std::string time_text(std::uint64_t ns) {
  return trace::format_duration(std::chrono::nanoseconds(ns));
}

std::string_view load_name(control::LoadKind kind) noexcept {
  switch (kind) {
    case control::LoadKind::kNone:
      return "none";
    case control::LoadKind::kFull:
      return "full";
    case control::LoadKind::kPatch:
      return "patch";
  }
  return "unknown";
}

// Of all bytes of its ranks, those that the last load has written.
double written_share(const control::ReplicaReport& replica) {
  return replica.last_load_bytes == 0 ? 0
                                      : static_cast<double>(replica.last_written_bytes) /
                                            static_cast<double>(replica.last_load_bytes);
}

std::string_view controller_name(control::ControllerState controller) noexcept {
  switch (controller) {
    case control::ControllerState::kNone:
      return "none";
    case control::ControllerState::kMissing:
      return "missing";
    case control::ControllerState::kAttached:
      return "attached";
  }
  return "unknown";
}

// What the processes of a replica are, where one of them is the controller of the others.
std::string controller_text(const control::ReplicaReport& replica) {
  switch (replica.controller) {
    case control::ControllerState::kNone:
      break;
    case control::ControllerState::kMissing:
      return " (the controller is missing)";
    case control::ControllerState::kAttached:
      return replica.world_size == 2
                 ? " (1 rank and its controller)"
                 : fmt::format(" ({} ranks and their controller)", replica.world_size - 1);
  }
  return {};
}

json replica_json(const control::ReplicaReport& replica) {
  return {{"replica", replica.replica},
          {"world_size", replica.world_size},
          {"ranks_attached", replica.ranks_attached},
          {"controller", controller_name(replica.controller)},
          {"state", state_name(replica.state)},
          {"ready", replica.ready},
          {"version", replica.version.to_string()},
          {"reason", replica.reason},
          {"loaded_bytes", replica.loaded_bytes},
          {"paused_ns", replica.paused_ns},
          {"turn", turn_name(replica.turn)},
          {"last_load",
           {{"kind", load_name(replica.last_load)},
            {"written_bytes", replica.last_written_bytes},
            {"bytes", replica.last_load_bytes},
            {"written_share", written_share(replica)}}},
          {"proof",
           {{"version", replica.proved.to_string()},
            {"ago_ns", replica.proved_ago_ns},
            {"not_scrubbed", replica.not_scrubbed},
            {"mismatches", replica.mismatches},
            {"last_mismatch", replica.last_mismatch}}}};
}

// When all of its bytes were compared last, and whether that will be repeated.
std::string proof_text(const control::ReplicaReport& replica) {
  std::string text;
  if (!replica.proved.none())
    text = fmt::format("  proved at {}, {} ago", replica.proved.to_string(),
                       age_text(replica.proved_ago_ns));
  if (!replica.not_scrubbed.empty())
    text += fmt::format("{} not scrubbed: {}", text.empty() ? " " : ";", replica.not_scrubbed);
  if (replica.mismatches > 0)
    text +=
        fmt::format("{} DAMAGED {} time{}, last {}", text.empty() ? " " : ";", replica.mismatches,
                    replica.mismatches == 1 ? "" : "s", replica.last_mismatch);
  return text;
}

json running_json(const control::UpdateProgress& running) {
  if (running.version.none()) return nullptr;
  return {{"version", running.version.to_string()},
          {"rollback", running.rollback},
          {"phase", control::phase_name(running.phase)},
          {"done_bytes", running.done_bytes},
          {"total_bytes", running.total_bytes},
          {"elapsed_ns", running.elapsed_ns},
          {"phase_ns", running.phase_ns},
          {"bytes_per_s", running.bytes_per_s},
          {"remaining_ns", running.remaining_known ? json(running.remaining_ns) : json(nullptr)},
          {"waiting", running.waiting}};
}

bool has_ended(const control::UpdateOutcome& last) {
  return !last.version.none() || !last.reason.empty();
}

json last_json(const control::UpdateOutcome& last) {
  if (!has_ended(last)) return nullptr;
  return {{"version", last.version.to_string()},
          {"ok", last.ok},
          {"cancelled", last.cancelled},
          {"partial", is_partial(last)},
          {"reason", last.reason},
          {"bytes", last.bytes},
          {"snapshot_ns", last.snapshot_ns},
          {"staged_ns", last.staged_ns},
          {"switch_ns", last.switch_ns},
          {"paused_ns", last.paused_ns},
          {"ended_ago_ns", last.ended_ago_ns}};
}

// Null before the first copy.
json copy_json(const control::CopyReport& copy) {
  if (copy.version.none()) return nullptr;
  return {{"version", copy.version.to_string()},
          {"base", copy.base.to_string()},
          {"bytes", copy.bytes},
          {"travelled_bytes", copy.travelled_bytes}};
}

std::string sidecar_text(const control::SidecarReport& s, const std::string& note,
                         bool has_trainer) {
  std::string text =
      fmt::format("sidecar {} (pid {} on {}): {}; staged {}", s.name, s.pid, s.host,
                  s.connected ? "connected" : "NOT CONNECTED", version_list_text(s.staged));
  if (s.connected && s.transport.empty() && has_trainer)
    text += "; NO TRANSPORT in common with the trainer";
  if (s.staged_bytes > 0)
    text += fmt::format("; {} of the next version", trace::format_bytes(s.staged_bytes));
  if (const control::CopyReport& copy = s.last_copy; !copy.base.none() && copy.version == s.target)
    text += fmt::format("; {} came as changes from {} ({} of {})", copy.version.to_string(),
                        copy.base.to_string(), trace::format_bytes(copy.travelled_bytes),
                        trace::format_bytes(copy.bytes));
  if (!note.empty()) text += "; " + note;
  text += "\n";
  for (const control::ReplicaReport& r : s.replicas) {
    text += fmt::format("  replica {:<16} {:<8} {:<9} {} processes {}/{}{}", r.replica,
                        version_text(r.version), state_name(r.state),
                        r.ready ? "ready    " : "NOT READY", r.ranks_attached, r.world_size,
                        controller_text(r));
    if (r.paused_ns > 0) text += fmt::format("  paused {} last", time_text(r.paused_ns));
    if (r.last_load == control::LoadKind::kPatch)
      text += fmt::format(" by a patch ({}, {:.2g} %)", trace::format_bytes(r.last_written_bytes),
                          100 * written_share(r));
    text += proof_text(r);
    if (r.loaded_bytes > 0) text += fmt::format("  {} loaded", trace::format_bytes(r.loaded_bytes));
    if (!r.reason.empty()) text += "  (" + r.reason + ")";
    text += "\n";
  }
  return text;
}

}  // namespace

std::string version_text(const Version& version) {
  return version.none() ? "none" : version.to_string();
}

std::string_view state_name(control::ReplicaState state) noexcept {
  switch (state) {
    case control::ReplicaState::kAbsent:
      return "absent";
    case control::ReplicaState::kServing:
      return "serving";
    case control::ReplicaState::kBehind:
      return "behind";
    case control::ReplicaState::kPaused:
      return "paused";
    case control::ReplicaState::kLoading:
      return "loading";
    case control::ReplicaState::kTainted:
      return "tainted";
  }
  return "unknown";
}

std::string_view turn_name(control::ReplicaTurn turn) noexcept {
  switch (turn) {
    case control::ReplicaTurn::kNone:
      return "none";
    case control::ReplicaTurn::kWaiting:
      return "waiting";
    case control::ReplicaTurn::kHeld:
      return "held";
  }
  return "unknown";
}

std::string_view outcome_name(control::SwitchOutcome outcome) noexcept {
  switch (outcome) {
    case control::SwitchOutcome::kCommitted:
      return "committed";
    case control::SwitchOutcome::kBehind:
      return "behind";
    case control::SwitchOutcome::kRolledBack:
      return "rolled_back";
    case control::SwitchOutcome::kTainted:
      return "tainted";
    case control::SwitchOutcome::kFailed:
      return "failed";
  }
  return "unknown";
}

json outcomes_json(const std::vector<control::ReplicaOutcome>& outcomes) {
  json list = json::array();
  for (const control::ReplicaOutcome& o : outcomes)
    list.push_back({{"replica", o.replica},
                    {"outcome", outcome_name(o.outcome)},
                    {"version", o.version.to_string()},
                    {"reason", o.reason},
                    {"wait_ns", o.wait_ns},
                    {"paused_ns", o.paused_ns},
                    {"load_ns", o.load_ns},
                    {"bytes", o.bytes}});
  return list;
}

std::string_view phase_text(control::ProgressPhase phase) noexcept {
  switch (phase) {
    case control::ProgressPhase::kSnapshot:
      return "snapshot";
    case control::ProgressPhase::kAnnounce:
      return "announcing";
    case control::ProgressPhase::kStage:
      return "staging";
    case control::ProgressPhase::kSwitch:
      return "switching";
  }
  return "unknown";
}

std::optional<double> progress_share(const control::UpdateProgress& running) noexcept {
  if (running.total_bytes == 0) return std::nullopt;
  return std::min(
      1.0, static_cast<double>(running.done_bytes) / static_cast<double>(running.total_bytes));
}

std::string changes_text(const control::StatusReply& status) {
  std::size_t copies = 0;
  std::size_t of_changes = 0;
  std::uint64_t travelled = 0;
  std::uint64_t bytes = 0;
  std::size_t replicas = 0;
  std::size_t patched = 0;
  for (const control::SidecarReport& sidecar : status.sidecars) {
    const control::CopyReport& copy = sidecar.last_copy;
    if (!copy.version.none() && copy.version == status.target) {
      ++copies;
      if (!copy.base.none()) {
        ++of_changes;
        travelled += copy.travelled_bytes;
        bytes += copy.bytes;
      }
    }
    for (const control::ReplicaReport& replica : sidecar.replicas) {
      if (replica.version.none() || replica.version != status.target) continue;
      ++replicas;
      if (replica.last_load == control::LoadKind::kPatch) ++patched;
    }
  }
  std::string text;
  if (of_changes > 0)
    text = fmt::format("{} came as changes to {} of {} ({} of {})", status.target.to_string(),
                       of_changes, counted(copies, "sidecar"), trace::format_bytes(travelled),
                       trace::format_bytes(bytes));
  if (patched > 0)
    text += text.empty()
                ? fmt::format("{} was loaded by a patch in {} of {}", status.target.to_string(),
                              patched, counted(replicas, "replica"))
                : fmt::format(", and was loaded by a patch in {} of {}", patched,
                              counted(replicas, "replica"));
  return text;
}

std::string behind_text(const Version& version, const Version& target) {
  if (target.none() || version == target) return "-";
  if (version.none()) return "no version";
  if (version.epoch != target.epoch || version > target) return "differs";
  const std::uint64_t steps = target.step - version.step;
  return fmt::format("{} step{}", steps, steps == 1 ? "" : "s");
}

std::string activity_text(const control::StatusReply& status) {
  if (status.activity == "gathering") return "waits for sidecars";
  if (status.activity == "claiming") return "takes the fleet over";
  return status.activity;
}

std::string age_text(std::uint64_t ago_ns) {
  const double s = static_cast<double>(ago_ns) * 1e-9;
  if (s < 9.95) return fmt::format("{:.1f} s", s);
  if (s < 120) return fmt::format("{:.0f} s", s);
  if (s < 7200) return fmt::format("{:.0f} min", s / 60);
  if (s < 48 * 3600) return fmt::format("{:.0f} h", s / 3600);
  return fmt::format("{:.0f} d", s / 86400);
}

std::string to_text(const control::UpdateProgress& running) {
  if (running.version.none()) return {};
  std::string text = fmt::format("{} {}: {}", running.rollback ? "rollback to" : "update",
                                 running.version.to_string(), phase_text(running.phase));
  if (const auto share = progress_share(running))
    text += fmt::format(", {:.0f} % ({} of {})", std::floor(*share * 100),
                        trace::format_bytes(running.done_bytes),
                        trace::format_bytes(running.total_bytes));
  if (running.bytes_per_s > 0)
    text += ", " + trace::format_rate(running.bytes_per_s, std::chrono::seconds(1));
  text += ", " + time_text(running.elapsed_ns) + " so far";
  if (running.remaining_known) text += ", about " + time_text(running.remaining_ns) + " left";
  if (running.waiting > 0) text += fmt::format("; {} waiting behind it", running.waiting);
  return text;
}

std::string to_text(const control::UpdateOutcome& last) {
  if (!has_ended(last)) return {};
  const std::string name = last.version.none() ? "" : " " + last.version.to_string();
  if (!last.ok)
    return fmt::format("last update{}: {} {} ago: {}", name,
                       last.cancelled     ? "cancelled"
                       : is_partial(last) ? "partial"
                                          : "failed",
                       age_text(last.ended_ago_ns), last.reason);
  std::string text = fmt::format("last update{}: served {} ago, longest pause {}, switched in {}",
                                 name, age_text(last.ended_ago_ns), time_text(last.paused_ns),
                                 time_text(last.switch_ns));
  if (last.bytes > 0)
    text += fmt::format(", staged in {}, snapshot {}, {}", time_text(last.staged_ns),
                        time_text(last.snapshot_ns), trace::format_bytes(last.bytes));
  return text;
}

json to_json(const control::StatusReply& reply) {
  json sidecars = json::array();
  for (const control::SidecarReport& s : reply.sidecars) {
    json replicas = json::array();
    for (const control::ReplicaReport& r : s.replicas) replicas.push_back(replica_json(r));
    sidecars.push_back({{"name", s.name},
                        {"host", s.host},
                        {"pid", s.pid},
                        {"connected", s.connected},
                        {"transport", s.transport},
                        {"target", s.target.to_string()},
                        {"staged", version_list_json(s.staged)},
                        {"staged_bytes", s.staged_bytes},
                        {"last_copy", copy_json(s.last_copy)},
                        {"replicas", std::move(replicas)}});
  }
  json incidents = json::array();
  for (const control::Incident& incident : reply.incidents)
    incidents.push_back({{"ago_ns", incident.ago_ns}, {"text", incident.text}});
  return {{"role", reply.role},
          {"fleet_id", reply.fence.fleet.none() ? "" : reply.fence.fleet.to_string()},
          {"fence_epoch", reply.fence.epoch},
          {"decision", reply.decision},
          {"target", reply.target.to_string()},
          {"can_roll_back", reply.can_roll_back},
          {"rollback_target", reply.rollback_target.to_string()},
          {"withdrawn", version_list_json(reply.withdrawn)},
          {"activity", reply.activity},
          {"sidecars", std::move(sidecars)},
          {"update", running_json(reply.running)},
          {"last_update", last_json(reply.last)},
          {"updates",
           {{"committed", reply.updates.committed},
            {"failed", reply.updates.failed},
            {"cancelled", reply.updates.cancelled}}},
          {"incidents", std::move(incidents)},
          {"data_security", reply.data_security}};
}

namespace {

// How many replicas serve the target, if some do not.
std::string served_text(const control::StatusReply& reply) {
  std::size_t known = 0;
  std::size_t serving = 0;
  for (const control::SidecarReport& sidecar : reply.sidecars)
    for (const control::ReplicaReport& replica : sidecar.replicas) {
      ++known;
      if (replica.version == reply.target) ++serving;
    }
  if (reply.target.none() || serving == known) return {};
  return fmt::format(", served by {} of {}", serving, counted(known, "replica"));
}

}  // namespace

std::string to_text(const control::StatusReply& reply, const SidecarNote& note) {
  std::string text = fmt::format(
      "{}: {}; target {} (decision {}, fence epoch {}){}; rollback target {}; withdrawn {}\n",
      reply.role, reply.activity, version_text(reply.target), reply.decision, reply.fence.epoch,
      served_text(reply), reply.can_roll_back ? version_text(reply.rollback_target) : "none",
      version_list_text(reply.withdrawn));
  if (reply.data_security == "trusted_network")
    text += "weights go to other hosts without encryption (data_security: trusted_network)\n";
  if (const std::string running = to_text(reply.running); !running.empty()) text += running + "\n";
  for (const control::SidecarReport& s : reply.sidecars)
    text += sidecar_text(s, note ? note(s) : std::string(),
                         !reply.activity.ends_with(control::kNoTrainer));
  if (reply.sidecars.empty()) text += "no sidecar has connected\n";
  if (const std::string last = to_text(reply.last); !last.empty()) text += last + "\n";
  // The line of the last update has said its incident.
  bool is_said = reply.last.ok || reply.last.reason.empty();
  std::size_t shown = 0;
  for (const control::Incident& incident : reply.incidents) {
    if (shown == kIncidentsShown) break;
    if (!is_said && incident.text.ends_with(reply.last.reason)) {
      is_said = true;
      continue;
    }
    text += fmt::format("{} ago: {}\n", age_text(incident.ago_ns), incident.text);
    ++shown;
  }
  return text;
}

}  // namespace wsync::status
