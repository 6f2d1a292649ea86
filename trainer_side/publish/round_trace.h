// What a coordinator's trace shows: the snapshot of each version and the phases of its round.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shared/control/messages.h"
#include "shared/trace/recorder.h"

namespace wsync::publish {

class RoundTrace {
 public:
  // Nothing is recorded, and write() does nothing, when `path` is empty.
  explicit RoundTrace(std::string path) : path_(std::move(path)) {}

  void snapshot_taken(const Version& version, std::uint64_t bytes, TimePoint begin, TimePoint end);
  // The round of a request enters a phase; the one before it ends.
  void entered(std::uint64_t request, const Version& version, control::ProgressPhase phase,
               TimePoint at);
  void ended(std::uint64_t request, TimePoint at);
  // Writes <path>.json, a Chrome trace. Says in the log when it cannot.
  void write() const;

 private:
  struct Phase {
    std::string name;
    TimePoint begin{};
  };
  std::string path_;
  trace::Recorder recorder_;
  std::map<std::uint64_t, Phase> open_;  // by request
};

}  // namespace wsync::publish
