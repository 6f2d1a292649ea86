// RefusedProcesses: watches the processes of engines that were refused, which try to attach again
// and again, so that a refusal is no longer reported when its process has ended.
//
// Thread: the loop's. The loop must outlive this object.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <sys/types.h>
#include <utility>

#include "inference_side/sidecar/engine_rank.h"
#include "shared/loop/loop.h"
#include "shared/loop/process_watch.h"

namespace wsync::agent {

class RefusedProcesses {
 public:
  using OnEnd = std::function<void(const std::string& replica, std::uint32_t rank, pid_t pid)>;
  // `on_end` is called once for each process that watch() has returned, unless another process or
  // forget() has taken its place. It is called on the loop, never inside watch().
  RefusedProcesses(Loop& loop, OnEnd on_end) : loop_(loop), on_end_(std::move(on_end)) {}
  RefusedProcesses(const RefusedProcesses&) = delete;
  RefusedProcesses& operator=(const RefusedProcesses&) = delete;

  // Watches the process of this connection, in place of the last one that was refused as the same
  // rank. Returns its number; 0 if it cannot be known when it ends.
  [[nodiscard]] pid_t watch(const EngineRank& rank);
  void forget(const std::string& replica, std::uint32_t rank);

 private:
  using Name = std::pair<std::string, std::uint32_t>;  // replica and rank
  // One watch for each process, whatever it calls itself.
  struct Watched {
    std::unique_ptr<ProcessWatch> watch;
    std::set<Name> names;
  };
  void end(pid_t pid);
  Loop& loop_;
  const OnEnd on_end_;
  std::map<pid_t, Watched> watched_;
  std::map<Name, pid_t> pids_;  // of each name in watched_
};

}  // namespace wsync::agent
