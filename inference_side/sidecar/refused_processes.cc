#include "inference_side/sidecar/refused_processes.h"

namespace wsync::agent {

pid_t RefusedProcesses::watch(const EngineRank& rank) {
  const std::pair name(rank.replica, rank.rank);
  if (const auto known = watched_.find(name);
      known != watched_.end() && known->second.pid == rank.pid && !known->second.watch->has_ended())
    return rank.pid;
  watched_.erase(name);
  if (!rank.process || rank.replica.empty()) return 0;
  auto watch = ProcessWatch::create(loop_, rank.pid, [this, name, pid = rank.pid] {
    watched_.erase(name);
    on_end_(name.first, name.second, pid);
  });
  // Its number may belong to another process by now, unless the first watch says that it lives.
  if (!watch || rank.process->has_ended()) return 0;
  watched_[name] = {.pid = rank.pid, .watch = std::move(*watch)};
  return rank.pid;
}

}  // namespace wsync::agent
