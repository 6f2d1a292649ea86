// What a sidecar's trace shows beside the pipeline: staging, and the time that each replica was
// paused.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "inference_side/reload/replica_switch.h"
#include "shared/trace/recorder.h"

namespace wsync::agent {

class SwitchTrace {
 public:
  // `recorder` may be null (nothing is recorded) and outlives this.
  explicit SwitchTrace(trace::Recorder* recorder) : recorder_(recorder) {}

  // A command of a replica's switch is sent. The pause is shown from its load to its resume.
  void sent(const std::string& replica, const reload::BeginLoad& command, TimePoint at);
  void sent(const std::string& replica, const reload::SendResume& command, TimePoint at);
  template <class Other>
  void sent(const std::string& /*replica*/, const Other& /*command*/, TimePoint /*at*/) {}
  // A rank was lost: the pause that was open has no end.
  void lost(const std::string& replica) { open_.erase(replica); }
  // A version was staged and the engines were told of it.
  void staged(const Version& version, std::uint64_t bytes, TimePoint begin, TimePoint end);

 private:
  struct Pause {
    Version version;
    TimePoint begin{};
  };
  trace::Recorder* recorder_;
  std::map<std::string, Pause> open_;  // by replica
};

}  // namespace wsync::agent
