// RoundTrace: the spans of a coordinator. They show the snapshot of each version, bucket by bucket,
// the phases of its round, and what each sidecar was asked and how long it took to answer.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shared/config/defaults.h"
#include "shared/control/messages.h"
#include "shared/observe/trace/recorder.h"
#include "trainer_side/publish/served_versions.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {

class RoundTrace {
 public:
  // Keeps the latest `spans` spans; with 0 it records none. write() does nothing if `path` is
  // empty.
  explicit RoundTrace(std::string path, std::uint64_t spans = config::kTraceSpansDefault)
      : path_(std::move(path)), recorder_(spans, trace::WhenFull::kDropOldest) {}

  // What comes before the first byte and after the last one has spans of its own: the opening of
  // the source, the wait for an arena, the creation of one, and digests and header.
  void snapshot_taken(const Snapshot& snapshot, TimePoint begin, TimePoint end);
  // A version that was held as its changes got an arena.
  void version_completed(const ServedVersions::Completed& completed);
  // The coordinator's record, with this target, was stored durably. A record without target makes
  // no span.
  void record_stored(const Version& target, TimePoint begin, TimePoint end);
  // The round of a request enters a phase; its previous phase ends.
  void entered(std::uint64_t request, const Version& version, control::ProgressPhase phase,
               TimePoint at);
  void ended(std::uint64_t request, TimePoint at);
  // A message to a sidecar. Announce, Stage and Decide each begin a span of that sidecar; other
  // messages are ignored.
  void sent(const std::string& sidecar, const control::Message& message, TimePoint at);
  // A message from a sidecar. Accept or Refuse, Staged, and Switched end those spans. The result
  // says what has ended, if anything, even if no spans are recorded.
  struct Answered {
    std::string_view stage;  // "announce", "stage", "switch"
    Version version;
    TimePoint begin{};
  };
  std::optional<Answered> received(const std::string& sidecar, const control::Message& message,
                                   TimePoint at);

  // The sidecar is no longer known.
  void forget(const std::string& sidecar) { asked_.erase(sidecar); }

  [[nodiscard]] const trace::Recorder& recorder() const noexcept { return recorder_; }
  // Writes <path>.json, a Chrome trace. A failure is logged.
  void write() const;

 private:
  struct Phase {
    control::ProgressPhase phase = control::ProgressPhase::kSnapshot;
    Version version;
    TimePoint begin{};
  };
  void close(const std::string& lane, const Phase& phase, TimePoint at);

  std::string path_;
  trace::Recorder recorder_;
  std::map<std::uint64_t, Phase> open_;  // by request
  std::map<std::string, Phase> asked_;   // by sidecar
};

}  // namespace wsync::publish
