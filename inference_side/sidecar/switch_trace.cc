#include "inference_side/sidecar/switch_trace.h"

#include <utility>

#include "shared/base/format.h"

namespace wsync::agent {

using trace::Category;
using trace::Stage;

std::string traced_name(const std::string& replica, std::uint32_t world_size, std::uint32_t rank) {
  return world_size == 1 ? replica : fmt::format("{} rank {}", replica, rank);
}

void SwitchTrace::enter(const std::string& replica, Switch& open, std::string part, TimePoint at) {
  if (!open.part.empty()) {
    std::vector<trace::Arg> args = {{.name = "engine", .value = replica}};
    if (!open.version.none())
      args.push_back({.name = "version", .value = open.version.to_string()});
    recorder_.record({.name = std::move(open.part),
                      .lane = "switch of " + replica,
                      .category = Category::kOther,
                      .begin = open.part_begin,
                      .end = at,
                      .label = {},
                      .args = std::move(args)});
  }
  open.part = std::move(part);
  open.part_begin = at;
}

void SwitchTrace::sent(const std::string& replica, const reload::SendPause& /*command*/,
                       TimePoint at) {
  if (!recorder_.wanted()) return;
  enter(replica, open_[replica], "pause", at);
}

void SwitchTrace::sent(const std::string& replica, const reload::BeginLoad& command, TimePoint at) {
  if (!recorder_.wanted()) return;
  Switch& open = open_[replica];
  open.version = command.version;
  enter(replica, open, "load", at);
  // A second load attempt inside one switch continues the pause of the first attempt.
  if (!std::exchange(open.loading, true)) open.pause_begin = at;
}

void SwitchTrace::sent(const std::string& replica, const reload::SendCommit& /*command*/,
                       TimePoint at) {
  if (!recorder_.wanted()) return;
  Switch& open = open_[replica];
  if (open.part != "commit") enter(replica, open, "commit", at);  // once for all ranks
}

void SwitchTrace::sent(const std::string& replica, const reload::SendResume& /*command*/,
                       TimePoint at) {
  const auto found = open_.find(replica);
  if (found == open_.end()) return;
  Switch& open = found->second;
  if (std::exchange(open.loading, false))
    recorder_.record({.name = "paused for " + open.version.to_string(),
                      .lane = "replica " + replica,
                      .category = Category::kPause,
                      .begin = open.pause_begin,
                      .end = at,
                      .label = {},
                      .args = {{.name = "version", .value = open.version.to_string()},
                               {.name = "engine", .value = replica}}});
  enter(replica, open, "resume", at);
}

void SwitchTrace::heard(const std::string& replica, std::uint32_t world_size,
                        const staging::RankEvent& event, std::uint64_t arena_bytes, TimePoint at) {
  const auto found = open_.find(replica);
  if (found == open_.end()) return;
  Switch& open = found->second;
  if (std::holds_alternative<reload::RankDetached>(event)) {
    open_.erase(found);  // spans without an end are not recorded
  } else if (std::holds_alternative<reload::RankResumed>(event)) {
    enter(replica, open, {}, at);
    open_.erase(found);
  } else if (const auto* loaded = std::get_if<reload::RankLoaded>(&event)) {
    if (!loaded->failure.empty() || arena_bytes == 0 || loaded->version != open.version) return;
    const std::string name = traced_name(replica, world_size, loaded->rank);
    std::vector<trace::Arg> args =
        trace::stage_args(Stage::kLoad, {.version = loaded->version.to_string(),
                                         .bucket = std::nullopt,
                                         .offset = 0,
                                         .bytes = arena_bytes});
    args.push_back({.name = "loaded_bytes", .value = static_cast<std::int64_t>(loaded->bytes)});
    args.push_back(
        {.name = "written_bytes", .value = static_cast<std::int64_t>(loaded->written_bytes)});
    args.push_back({.name = "engine", .value = name});
    recorder_.record({.name = fmt::format("{} of {}", loaded->by_patch ? "patch" : "load",
                                          loaded->version.to_string()),
                      .lane = "engine " + name,
                      .category = Category::kReload,
                      .begin = open.part_begin,
                      .end = at,
                      .label = {},
                      .args = std::move(args)});
  }
}

void SwitchTrace::received(const trace::PartOfVersion& part, TimePoint begin, TimePoint end) {
  if (!recorder_.wanted()) return;
  recorder_.record({.name = part.bucket ? fmt::format("bucket {} received", *part.bucket)
                                        : "mapping of " + part.version,
                    .lane = "receiving",
                    .category = Category::kStage,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = trace::stage_args(Stage::kReceive, part)});
}

void SwitchTrace::staged(const Version& version, std::uint64_t bytes, TimePoint begin,
                         TimePoint end) {
  if (!recorder_.wanted()) return;
  recorder_.record({.name = "staging of " + version.to_string(),
                    .lane = "staging",
                    .category = Category::kStage,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {{.name = "version", .value = version.to_string()},
                             {.name = "bytes", .value = static_cast<std::int64_t>(bytes)}}});
}

void SwitchTrace::record_stored(const Version& target, TimePoint begin, TimePoint end) {
  if (!recorder_.wanted() || target.none()) return;  // no update
  recorder_.record({.name = "record with target " + target.to_string(),
                    .lane = "record",
                    .category = Category::kOther,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {{.name = "version", .value = target.to_string()}}});
}

void SwitchTrace::led(const char* lane, std::string name, const Version& base,
                      const Version& version, std::uint64_t bytes, TimePoint begin, TimePoint end) {
  recorder_.record({.name = std::move(name),
                    .lane = lane,
                    .category = Category::kStage,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {{.name = "version", .value = version.to_string()},
                             {.name = "base", .value = base.to_string()},
                             {.name = "bytes", .value = static_cast<std::int64_t>(bytes)}}});
}

void SwitchTrace::patch_made(const Version& base, const Version& target, std::uint64_t bytes,
                             TimePoint begin, TimePoint end) {
  if (!recorder_.wanted()) return;
  led("patches",
      fmt::format("{} patch {} to {}", bytes == 0 ? "no" : "making", base.to_string(),
                  target.to_string()),
      base, target, bytes, begin, end);
}

void SwitchTrace::completed(const Version& version, const Version& base, std::uint64_t bytes,
                            bool in_place, TimePoint begin, TimePoint end) {
  if (!recorder_.wanted()) return;
  led("staging",
      fmt::format("{} {} to {}", in_place ? "changing" : "copying", base.to_string(),
                  version.to_string()),
      base, version, bytes, begin, end);
}

void SwitchTrace::verified(TimePoint begin, TimePoint end) {
  recorder_.record({.name = "verify",
                    .lane = "verifying",
                    .category = Category::kOther,
                    .begin = begin,
                    .end = end,
                    .label = {},
                    .args = {}});
}

}  // namespace wsync::agent
