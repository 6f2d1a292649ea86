#include "inference_side/sidecar/load_queue.h"

#include <algorithm>
#include <array>

#include "shared/base/format.h"

namespace wsync::agent {
namespace {

constexpr std::array<Transition<LoadState>, 19> kTransitions = {{
    {LoadState::kWaiting, "the load plan of a rank cannot be made", LoadState::kWaiting,
     "report the rank as failed, once"},
    {LoadState::kWaiting, "the devices have no streams or communicators", LoadState::kWaiting,
     "connect the devices"},
    {LoadState::kWaiting, "the devices have no buffers", LoadState::kWaiting,
     "allocate the buffers"},
    {LoadState::kWaiting, "everything is ready on separate devices or GPUs", LoadState::kQueued,
     "send Load to each rank"},
    {LoadState::kWaiting, "everything is ready on unified devices, or for a patch",
     LoadState::kSent, "send Load to each rank"},
    {LoadState::kWaiting, "the version is not staged here", LoadState::kFailed,
     "report each rank as failed"},
    {LoadState::kWaiting, "a rank is lost", LoadState::kFailed, ""},
    {LoadState::kWaiting, "the devices cannot be made ready for it", LoadState::kEnded,
     "report that it has not begun"},
    {LoadState::kWaiting, "it is cancelled or replaced", LoadState::kEnded,
     "send Abort to each rank if it is cancelled"},
    {LoadState::kQueued, "a run of its version starts", LoadState::kRunning, "start the run"},
    {LoadState::kQueued, "a rank is lost, or the version is released", LoadState::kFailed,
     "report each rank as failed if the version is released"},
    {LoadState::kQueued, "it is cancelled or replaced", LoadState::kEnded,
     "send Abort to each rank if it is cancelled"},
    {LoadState::kRunning, "the run ends and has lost none of its ranks", LoadState::kSent, ""},
    {LoadState::kRunning, "the run fails, or a rank is lost", LoadState::kFailed,
     "report the ranks that the run has lost as failed"},
    {LoadState::kRunning, "it is cancelled or replaced", LoadState::kEnded,
     "take its ranks out of the run; send Abort to each rank if it is cancelled"},
    {LoadState::kSent, "a rank is lost", LoadState::kFailed, ""},
    {LoadState::kSent, "every rank has loaded", LoadState::kEnded, ""},
    {LoadState::kSent, "it is cancelled or replaced", LoadState::kEnded,
     "send Abort to each rank if it is cancelled"},
    {LoadState::kFailed, "it is cancelled or replaced", LoadState::kEnded,
     "take its ranks out of the run; send Abort to each rank if it is cancelled"},
}};

}  // namespace

std::string_view load_state_name(LoadState state) noexcept {
  switch (state) {
    case LoadState::kWaiting:
      return "waiting";
    case LoadState::kQueued:
      return "queued";
    case LoadState::kRunning:
      return "running";
    case LoadState::kSent:
      return "sent";
    case LoadState::kFailed:
      return "failed";
    case LoadState::kEnded:
      return "ended";
  }
  return "unknown";
}

bool is_legal(LoadState from, LoadState to) noexcept {
  return allows<LoadState>(kTransitions, from, to);
}

TransitionTable load_transitions() {
  return describe<LoadState>("LoadQueue", "The load of one version into one replica.", kTransitions,
                             load_state_name);
}

// The only place where a state changes. A load that has ended is erased, so `load` is invalid
// afterwards.
void LoadQueue::move(const std::string& replica, Load& load, LoadState to) {
  if (!is_legal(load.state, to)) {
    if (!illegal_move_)
      illegal_move_ =
          Error(ErrorCode::kInternal,
                fmt::format("the load {} of replica '{}' cannot go from {} to {}", load.request,
                            replica, load_state_name(load.state), load_state_name(to)));
    return;
  }
  if (load.state == LoadState::kQueued && to != LoadState::kQueued) std::erase(order_, replica);
  if (load.state != LoadState::kQueued && to == LoadState::kQueued) order_.push_back(replica);
  load.state = to;
  if (to == LoadState::kEnded) loads_.erase(loads_.find(replica));
}

// These ranks may still owe acknowledgements of a failed run, and the next run would wait for them.
// Report them as gone even if no run is in progress.
void LoadQueue::leave_run(Load& load, const Error& reason, LoadCommands& out) {
  if (!runs_ || load.by_patch) return;
  for (const LoadRank& rank : load.ranks)
    if (load.left.insert(rank.engine).second)
      out.emplace_back(LeaveRun{.engine = rank.engine, .reason = reason});
}

LoadCommands LoadQueue::begin(const std::string& replica, const reload::BeginLoad& begin) {
  LoadCommands out;
  if (const auto old = loads_.find(replica); old != loads_.end()) {
    // Without this, the run in progress would wait for acknowledgements that carry the new request.
    if (old->second.state == LoadState::kRunning || old->second.state == LoadState::kFailed)
      leave_run(old->second, Error(ErrorCode::kCancelled, "its load was replaced"), out);
    move(replica, old->second, LoadState::kEnded);
  }
  loads_[replica] = {.request = begin.request,
                     .version = begin.version,
                     .deadline_ms = begin.deadline_ms,
                     .base = begin.base};
  return out;
}

LoadCommands LoadQueue::cancel(const std::string& replica, std::uint64_t request) {
  const auto found = loads_.find(replica);
  if (found == loads_.end() || found->second.request != request) return {};
  LoadCommands out;
  out.emplace_back(
      SendAbort{.replica = replica, .request = request, .version = found->second.version});
  leave_run(found->second, Error(ErrorCode::kCancelled, "its load was cancelled"), out);
  move(replica, found->second, LoadState::kEnded);
  return out;
}

std::optional<Version> LoadQueue::waiting_for(const std::string& replica) const {
  const auto found = loads_.find(replica);
  if (found == loads_.end() || found->second.state != LoadState::kWaiting) return std::nullopt;
  return found->second.version;
}

Version LoadQueue::base_of(const std::string& replica) const {
  const auto found = loads_.find(replica);
  return found == loads_.end() ? Version{} : found->second.base;
}

std::vector<std::string> LoadQueue::waiting() const {
  std::vector<std::string> replicas;
  for (const auto& [replica, load] : loads_)
    if (load.state == LoadState::kWaiting) replicas.push_back(replica);
  return replicas;
}

void LoadQueue::fail_ranks(const std::string& replica, Load& load, const std::string& why,
                           LoadCommands& out) {
  for (const LoadRank& rank : load.ranks)
    out.emplace_back(ReportLoadFailed{.replica = replica,
                                      .rank = rank.rank,
                                      .request = load.request,
                                      .version = load.version,
                                      .why = why});
  move(replica, load, LoadState::kFailed);
}

void LoadQueue::not_begun(const std::string& replica, const std::string& why, LoadCommands& out) {
  Load& load = loads_.at(replica);
  out.emplace_back(ReportLoadNotBegun{.replica = replica, .request = load.request, .why = why});
  move(replica, load, LoadState::kEnded);
}

// A rank that cannot be prepared must not delay the others. Their Load is sent, and the switch
// cancels the load as for any failed rank.
bool LoadQueue::ranks_prepared(const std::string& replica, Load& load, const LoadNeeds& needs,
                               LoadCommands& out) {
  bool complete = needs.whole;
  for (const LoadNeeds::Rank& rank : needs.ranks) {
    if (!rank.prepared) {
      complete = false;
    } else if (!*rank.prepared && load.cannot_prepare.insert(rank.rank.rank).second) {
      out.emplace_back(ReportLoadFailed{.replica = replica,
                                        .rank = rank.rank.rank,
                                        .request = load.request,
                                        .version = load.version,
                                        .why = rank.prepared->error().message()});
      move(replica, load, LoadState::kWaiting);
    }
  }
  return complete;
}

LoadCommands LoadQueue::advance(const std::string& replica, const LoadNeeds& needs) {
  LoadCommands out;
  if (!waiting_for(replica)) return out;
  Load& load = loads_.at(replica);
  if (!needs.staged) {
    for (const LoadNeeds::Rank& rank : needs.ranks) load.ranks.push_back(rank.rank);
    fail_ranks(replica, load, "the version is not staged here", out);
    return out;
  }
  if (!ranks_prepared(replica, load, needs, out)) return out;
  if (!needs.by_patch && !devices_ready(replica, load, needs, out)) return out;
  for (const LoadNeeds::Rank& rank : needs.ranks) load.ranks.push_back(rank.rank);
  load.by_patch = needs.by_patch;
  move(replica, load, runs_ && !load.by_patch ? LoadState::kQueued : LoadState::kSent);
  out.emplace_back(SendLoad{.replica = replica,
                            .request = load.request,
                            .version = load.version,
                            .deadline_ms = load.deadline_ms,
                            .ranks = load.ranks,
                            .base = load.base,
                            .by_patch = load.by_patch});
  return out;
}

// If not, requests what is missing, or gives the load up, which ends it.
bool LoadQueue::devices_ready(const std::string& replica, Load& load, const LoadNeeds& needs,
                              LoadCommands& out) {
  if (!needs.devices) return false;
  if (!*needs.devices) {
    not_begun(replica, needs.devices->error().message(), out);
    return false;
  }
  // Connect first, because the free GPU memory for buffers depends on the connections.
  if (!needs.connected) {
    load.waits_for = DeviceNeed::kConnection;
    move(replica, load, LoadState::kWaiting);
    out.emplace_back(ConnectDevices{});
    return false;
  }
  if (!needs.buffers) {
    load.waits_for = DeviceNeed::kBuffers;
    move(replica, load, LoadState::kWaiting);
    out.emplace_back(AllocateBuffers{});
    return false;
  }
  return true;
}

LoadCommands LoadQueue::made(DeviceNeed need, const Result<>& outcome) {
  LoadCommands out;
  for (const std::string& replica : waiting()) {
    Load& load = loads_.at(replica);
    if (load.waits_for != need) continue;
    load.waits_for.reset();
    if (!outcome) not_begun(replica, outcome.error().message(), out);
  }
  return out;
}

void LoadQueue::engine_lost(const std::string& replica, reload::EngineId engine) {
  const auto found = loads_.find(replica);
  if (found == loads_.end()) return;
  found->second.left.insert(engine);
  if (found->second.state != LoadState::kFailed) move(replica, found->second, LoadState::kFailed);
}

void LoadQueue::loaded(const std::string& replica, std::uint64_t request, std::uint32_t rank) {
  const auto found = loads_.find(replica);
  if (found == loads_.end() || found->second.request != request) return;
  Load& load = found->second;
  load.loaded.insert(rank);
  if (load.state == LoadState::kSent && load.loaded.size() == load.ranks.size())
    move(replica, load, LoadState::kEnded);
}

LoadCommands LoadQueue::release(const Version& version) {
  LoadCommands out;
  for (auto& [replica, load] : loads_)
    if (load.state == LoadState::kQueued && load.version == version)
      fail_ranks(replica, load,
                 fmt::format("version {} was released before its load began", version.to_string()),
                 out);
  return out;
}

// ---- runs ----

LoadCommands LoadQueue::start_run(TimePoint now) {
  if (more_expected_ || run_ || order_.empty()) return {};
  StartRun start;
  start.version = loads_.at(order_.front()).version;
  std::uint32_t deadline_ms = 0;
  const std::vector<std::string> queued = order_;
  for (const std::string& replica : queued) {
    Load& load = loads_.at(replica);
    if (load.version != start.version) continue;
    deadline_ms = std::max(deadline_ms, load.deadline_ms);
    for (const LoadRank& rank : load.ranks)
      start.seats.push_back({.rank = rank, .replica = replica, .request = load.request});
    move(replica, load, LoadState::kRunning);
  }
  start.deadline = now + std::chrono::milliseconds(deadline_ms);
  // Drop a silent engine early enough for the others to finish before the deadline.
  start.bucket_ack_deadline = std::chrono::milliseconds(deadline_ms) / 2;
  run_ = Run{.version = start.version, .seats = start.seats};
  return {std::move(start)};
}

LoadCommands LoadQueue::run_finished(const Result<LostEngines>& outcome) {
  LoadCommands out;
  if (!run_) {
    if (!illegal_move_)
      illegal_move_ = Error(ErrorCode::kInternal, "a run has ended, and none was started");
    return out;
  }
  const Run run = *std::exchange(run_, std::nullopt);
  // The replica may have another load since the run started.
  const auto in_run = [this](const RunSeat& seat) -> Load* {
    const auto found = loads_.find(seat.replica);
    const bool same = found != loads_.end() && found->second.request == seat.request;
    return same && found->second.state == LoadState::kRunning ? &found->second : nullptr;
  };
  const auto reason_of = [&](reload::EngineId engine) -> const Error* {
    if (!outcome) return &outcome.error();
    for (const auto& [lost, reason] : *outcome)
      if (lost == engine) return &reason;
    return nullptr;
  };
  std::set<std::string> failed;
  for (const RunSeat& seat : run.seats) {
    const Load* load = in_run(seat);
    const Error* reason = reason_of(seat.rank.engine);
    if (load == nullptr || reason == nullptr) continue;
    failed.insert(seat.replica);
    out.emplace_back(ReportLoadFailed{.replica = seat.replica,
                                      .rank = seat.rank.rank,
                                      .request = seat.request,
                                      .version = load->version,
                                      .why = reason->message()});
  }
  for (const RunSeat& seat : run.seats) {
    Load* load = in_run(seat);
    if (load == nullptr) continue;
    if (failed.contains(seat.replica)) {
      move(seat.replica, *load, LoadState::kFailed);
      continue;
    }
    move(seat.replica, *load, LoadState::kSent);
    // The ranks may have answered before the end of the run was reported.
    if (load->loaded.size() == load->ranks.size()) move(seat.replica, *load, LoadState::kEnded);
  }
  return out;
}

std::optional<RunSeat> LoadQueue::seat_of(reload::EngineId engine) const {
  if (!run_) return std::nullopt;
  const auto seat = std::ranges::find_if(
      run_->seats, [&](const RunSeat& one) { return one.rank.engine == engine; });
  if (seat == run_->seats.end() || !is_current(seat->replica, seat->request) ||
      loads_.at(seat->replica).left.contains(engine))
    return std::nullopt;
  return *seat;
}

bool LoadQueue::is_current(const std::string& replica, std::uint64_t request) const {
  const auto found = loads_.find(replica);
  return found != loads_.end() && found->second.request == request;
}

bool LoadQueue::needs_buffers() const {
  return run_ || std::ranges::any_of(loads_, [](const auto& entry) {
           const LoadState state = entry.second.state;
           return state == LoadState::kWaiting || state == LoadState::kQueued ||
                  state == LoadState::kRunning;
         });
}

std::optional<LoadState> LoadQueue::state(const std::string& replica) const {
  const auto found = loads_.find(replica);
  return found == loads_.end() ? std::nullopt : std::optional(found->second.state);
}

// ---- invariants ----

Result<> LoadQueue::invariants() const {
  if (illegal_move_) return fail(*illegal_move_);
  std::map<reload::EngineId, std::string> engines;
  for (const auto& [replica, load] : loads_) {
    const auto broken = [&, name = &replica](std::string_view rule) {
      return fail(ErrorCode::kInternal, fmt::format("the load of replica '{}' ({}) {}", *name,
                                                    load_state_name(load.state), rule));
    };
    const auto times = std::ranges::count(order_, replica);
    if (times != (load.state == LoadState::kQueued ? 1 : 0))
      return broken(fmt::format("is {} times in the queue", times));
    const bool sent = load.state == LoadState::kQueued || load.state == LoadState::kRunning ||
                      load.state == LoadState::kSent;
    if (sent && load.ranks.empty()) return broken("has no rank");
    if (load.state == LoadState::kWaiting && !load.ranks.empty())
      return broken("has ranks, but no Load was sent");
    for (const LoadRank& rank : load.ranks)
      if (!engines.emplace(rank.engine, replica).second)
        return broken(fmt::format("has engine {}, which is in another load as well",
                                  reload::number(rank.engine)));
    if (load.state == LoadState::kRunning && (!run_ || run_->version != load.version))
      return broken("is not a load of the version of the run");
  }
  for (const std::string& replica : order_)
    if (!loads_.contains(replica))
      return fail(ErrorCode::kInternal,
                  fmt::format("replica '{}' is queued but has no load", replica));
  return check_run();
}

Result<> LoadQueue::check_run() const {
  std::set<reload::EngineId> seated;
  std::set<std::string> replicas;
  if (run_)
    for (const RunSeat& seat : run_->seats) {
      if (!seated.insert(seat.rank.engine).second)
        return fail(ErrorCode::kInternal, fmt::format("engine {} takes part twice in the run",
                                                      reload::number(seat.rank.engine)));
      if (is_current(seat.replica, seat.request)) replicas.insert(seat.replica);
    }
  for (const auto& [replica, load] : loads_)
    if (load.state == LoadState::kRunning && !replicas.contains(replica))
      return fail(
          ErrorCode::kInternal,
          fmt::format(
              "the load of replica '{}' is running, but no engine takes part in the run for it",
              replica));
  return {};
}

}  // namespace wsync::agent
