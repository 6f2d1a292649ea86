#include "inference_side/sidecar/refused_processes.h"

namespace wsync::agent {

pid_t RefusedProcesses::watch(const EngineRank& rank) {
  const Name name(rank.replica, rank.rank);
  const auto known = pids_.find(name);
  const bool is_watched = known != pids_.end() && known->second == rank.pid;
  if (is_watched && !watched_.at(rank.pid).watch->has_ended()) return rank.pid;
  forget(rank.replica, rank.rank);
  if (!rank.process || rank.replica.empty()) return 0;
  Watched& watched = watched_[rank.pid];
  if (!watched.watch || watched.watch->has_ended()) {
    auto watch = ProcessWatch::create(loop_, rank.pid, [this, pid = rank.pid] { end(pid); });
    // Its number may belong to another process by now, unless the first watch says that it lives.
    if (!watch || rank.process->has_ended()) {
      if (watched.names.empty()) watched_.erase(rank.pid);
      return 0;
    }
    watched.watch = std::move(*watch);
  }
  watched.names.insert(name);
  pids_[name] = rank.pid;
  return rank.pid;
}

void RefusedProcesses::forget(const std::string& replica, std::uint32_t rank) {
  const auto known = pids_.find(Name(replica, rank));
  if (known == pids_.end()) return;
  const auto watched = watched_.find(known->second);
  watched->second.names.erase(known->first);
  if (watched->second.names.empty()) watched_.erase(watched);
  pids_.erase(known);
}

void RefusedProcesses::end(pid_t pid) {
  const auto ended = watched_.extract(pid);  // the watch lives until this call is over
  if (ended.empty()) return;
  for (const Name& name : ended.mapped().names) {
    pids_.erase(name);
    on_end_(name.first, name.second, pid);
  }
}

}  // namespace wsync::agent
