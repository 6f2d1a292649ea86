// SwitchTrace: the parts of a sidecar's trace that the pipeline does not record: how each bucket
// arrived and was verified, how long each replica was paused, and the phases of its switch.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/sidecar.h"
#include "shared/observe/trace/recorder.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::agent {

// The name of a rank in spans: "r0", or "r0 rank 1" if its replica has several ranks.
[[nodiscard]] std::string traced_name(const std::string& replica, std::uint32_t world_size,
                                      std::uint32_t rank);

class SwitchTrace {
 public:
  // `recorder` must outlive this object. Does nothing if the recorder is disabled.
  explicit SwitchTrace(trace::Recorder& recorder) : recorder_(recorder) {}

  // A command of a replica's switch was sent. The pause span lasts from the load to the resume. The
  // phases are the wait for the pause, load, commit and resume; each ends when the next one begins.
  void sent(const std::string& replica, const reload::SendPause& command, TimePoint at);
  void sent(const std::string& replica, const reload::BeginLoad& command, TimePoint at);
  void sent(const std::string& replica, const reload::SendCommit& command, TimePoint at);
  void sent(const std::string& replica, const reload::SendResume& command, TimePoint at);
  template <class Other>
  void sent(const std::string& /*replica*/, const Other& /*command*/, TimePoint /*at*/) {}
  // A rank has sent this event. `arena_bytes`: size of the version that it loads; 0 if its buckets
  // are traced individually.
  void heard(const std::string& replica, std::uint32_t world_size, const staging::RankEvent& event,
             std::uint64_t arena_bytes, TimePoint at);

  // The replica is no longer known: its spans without an end are not recorded.
  void forget(const std::string& replica) { open_.erase(replica); }

  // A part of a version has arrived: a bucket, or the whole version at once.
  void received(const trace::PartOfVersion& part, TimePoint begin, TimePoint end);
  // A version was staged, and the engines have been prepared for it.
  void staged(const Version& version, std::uint64_t bytes, TimePoint begin, TimePoint end);
  // The sidecar's record, with this target, was stored durably. A record without target makes no
  // span.
  void record_stored(const Version& target, TimePoint begin, TimePoint end);
  // A patch was made, or it turned out not to be worth making (0 bytes).
  void patch_made(const Version& base, const Version& target, std::uint64_t bytes, TimePoint begin,
                  TimePoint end);
  // A version of which only what changes from its base was here is complete.
  void completed(const Version& version, const Version& base, std::uint64_t bytes, bool in_place,
                 TimePoint begin, TimePoint end);
  // The engines' weights were read back and compared.
  void verified(TimePoint begin, TimePoint end);

 private:
  // A span of what leads from one version to another one.
  void led(const char* lane, std::string name, const Version& base, const Version& version,
           std::uint64_t bytes, TimePoint begin, TimePoint end);
  struct Switch {
    Version version;
    bool loading = false;  // the pause has begun
    TimePoint pause_begin{};
    std::string part;  // empty: no span is open
    TimePoint part_begin{};
  };
  void enter(const std::string& replica, Switch& open, std::string part, TimePoint at);

  trace::Recorder& recorder_;
  std::map<std::string, Switch> open_;  // by replica
};

}  // namespace wsync::agent
