// EngineHub's loads: the commands of a replica's switch, and the weight pipeline over separate
// devices.
#include <algorithm>
#include <thread>
#include <utility>

#include "inference_side/sidecar/engine_hub.h"
#include "inference_side/sidecar/switch_trace.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::agent {

// Brings the runner's callbacks, which come on its own thread, to the loop.
class EngineHub::PipelineEvents final : public reload::PipelineListener {
 public:
  PipelineEvents(EngineHub& hub, Loop& loop) : hub_(hub), loop_(loop), alive_(hub.alive_) {}
  void on_bucket_ready(const reload::BucketReady& ready) override {
    post([ready](EngineHub& hub) {
      for (const auto& rank : hub.running_) {
        if (rank->id != ready.engine) continue;
        const auto load = hub.loads_.find(rank->replica);
        if (!rank->attached || load == hub.loads_.end()) {
          hub.runner_->engine_lost(ready.engine, Error(ErrorCode::kPeerLost, "it is gone"));
          return;
        }
        rank->send(load->second.request,
                   control::BucketReady{.bucket = ready.bucket,
                                        .slot = static_cast<std::uint32_t>(ready.slot)});
      }
    });
  }
  void on_engine_dropped(const reload::LostEngine& dropped) override {
    post([dropped](EngineHub& hub) {
      const std::vector<std::shared_ptr<Rank>> running = hub.running_;
      for (const auto& rank : running)
        if (rank->id == dropped.engine)
          hub.on_close(rank, dropped.reason.with_context("dropped from the pipeline"));
    });
  }
  void on_finished(const Result<reload::PipelineReport>& result) override {
    post([result](EngineHub& hub) { hub.on_pipeline_finished(result); });
  }

 private:
  void post(std::function<void(EngineHub&)> task) {
    loop_.post([hub = &hub_, alive = alive_, task = std::move(task)] {
      if (*alive) task(*hub);
    });
  }
  EngineHub& hub_;
  Loop& loop_;
  std::shared_ptr<bool> alive_;
};

void EngineHub::make_pipeline_events() {
  pipeline_events_ = std::make_unique<PipelineEvents>(*this, loop_);
}

void EngineHub::send(const std::string& replica, const reload::SendPause& command) {
  if (const auto rank = find(replica, command.rank))
    rank->send(command.request,
               control::Pause{.mode = command.mode, .deadline_ms = command.deadline_ms});
}

void EngineHub::send(const std::string& replica, const reload::SendCommit& command) {
  if (const auto rank = find(replica, command.rank))
    rank->send(command.request, control::Commit{command.version});
}

void EngineHub::send(const std::string& replica, const reload::SendResume& command) {
  if (const auto rank = find(replica, command.rank)) rank->send(command.request, control::Resume{});
}

void EngineHub::send(const std::string& replica, const reload::BeginLoad& command) {
  std::erase(queued_, replica);  // a rank may say Loaded before its load has had its turn
  loads_[replica] = {
      .request = command.request, .version = command.version, .deadline_ms = command.deadline_ms};
  pump_load(replica);
}

void EngineHub::send(const std::string& replica, const reload::CancelLoad& command) {
  const auto it = loads_.find(replica);
  if (it == loads_.end() || it->second.request != command.request) return;
  const Version version = it->second.version;
  loads_.erase(it);
  std::erase(queued_, replica);
  for (const auto& rank : ranks_of(replica)) {
    rank->send(command.request,
               control::Abort{.version = version, .reason = "the load was cancelled"});
    if (runner_)
      runner_->engine_lost(rank->id, Error(ErrorCode::kCancelled, "its load was cancelled"));
    // An engine forgets a version whose load was given up: it is told of it again.
    rank->prepared.erase(version);
    if (const auto held = versions_.find(version); held != versions_.end())
      prepare(rank, held->second);
  }
  free_unused_buffers();
}

// False while something is missing; what cannot come is told.
bool EngineHub::ready_to_load(const Load& load, const std::vector<std::shared_ptr<Rank>>& ranks) {
  const bool held = versions_.contains(load.version);
  for (const auto& rank : ranks) {
    if (!held) {
      load_failed(*rank, load.request, load.version, "the version is not staged here");
      continue;
    }
    const auto prepared = rank->prepared.find(load.version);
    if (prepared == rank->prepared.end()) return false;  // its plan is still being computed
    if (!prepared->second.empty()) load_failed(*rank, load.request, load.version, prepared->second);
  }
  return held;
}

// No rank has been told of it.
void EngineHub::load_not_begun(const std::string& replica, const std::string& why) {
  const auto load = loads_.extract(replica);
  if (const auto ranks = ranks_of(replica); !ranks.empty())
    tell(*ranks.front(), reload::LoadNotBegun{.request = load.mapped().request, .why = why});
}

void EngineHub::pump_load(const std::string& replica) {
  const auto it = loads_.find(replica);
  if (it == loads_.end() || it->second.begun) return;
  Load& load = it->second;
  const auto ranks = ranks_of(replica);
  if (!ready_to_load(load, ranks)) return;
  if (device_staging_) {
    const auto staged = device_staging_->find(load.version);
    if (!staged) return;  // it is still being registered
    if (!staged->failure.empty()) return load_not_begun(replica, staged->failure);
  }
  if (!devices_connected(load) || !buffers_ready(load)) return;
  load.begun = true;
  for (const auto& rank : ranks) send_load(load, rank);
  if (!runner_) return;
  queued_.push_back(replica);
  // Later: other replicas of the same decision are about to join the run.
  loop_.post([this, alive = alive_] {
    if (*alive) start_pipeline();
  });
}

void EngineHub::pump_loads() {
  std::vector<std::string> replicas;
  for (const auto& [replica, load] : loads_)
    if (!load.begun) replicas.push_back(replica);
  for (const std::string& replica : replicas) pump_load(replica);
}

void EngineHub::send_load(const Load& load, const std::shared_ptr<Rank>& rank) {
  control::Load message{
      .version = load.version, .deadline_ms = load.deadline_ms, .copy_threads = copy_threads()};
  if (!keeps_buffers()) {
    auto buffers = device_buffers(rank->device);
    if (!buffers) return load_failed(*rank, load.request, load.version, buffers.error().message());
    message.buffers = std::move(buffers->handles);
    rank->mapped = true;
    rank->load_due = load.request;
  }
  rank->send(load.request, message);
}

// The replicas of one decision load at the same time: each rank gets its share of the cores.
std::uint32_t EngineHub::copy_threads() const {
  const auto ranks = std::ranges::count_if(ranks_, [](const auto& rank) { return rank->attached; });
  const std::uint64_t share = std::thread::hardware_concurrency() /
                              static_cast<std::uint64_t>(std::max<std::ptrdiff_t>(1, ranks));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share, 1, limits::kCopyThreadCount));
}

void EngineHub::expect_more_loads(bool expected) {
  more_expected_ = expected;
  start_pipeline();
}

// A version may be let go while its replicas wait for each other.
void EngineHub::drop_loads_without_version() {
  std::erase_if(queued_, [this](const std::string& replica) {
    const Load& load = loads_.at(replica);
    if (versions_.contains(load.version)) return false;
    for (const auto& rank : ranks_of(replica))
      load_failed(
          *rank, load.request, load.version,
          fmt::format("version {} was let go before its load began", load.version.to_string()));
    return true;
  });
}

void EngineHub::start_pipeline() {
  if (!runner_ || more_expected_ || connecting_ || !running_.empty()) return;
  drop_loads_without_version();
  if (queued_.empty()) return;
  const Version version = loads_.at(queued_.front()).version;
  running_version_ = versions_.find(version)->second;
  std::uint32_t deadline_ms = 0;
  reload::PipelineJob job;
  std::vector<std::string> later;
  for (const std::string& replica : queued_) {
    const Load& load = loads_.at(replica);
    if (load.version != version) {
      later.push_back(replica);
      continue;
    }
    deadline_ms = std::max(deadline_ms, load.deadline_ms);
    for (const auto& rank : ranks_of(replica)) {
      running_.push_back(rank);
      job.engines.push_back({.engine = rank->id, .device = reload::DeviceIndex{rank->device}});
      job.engine_names[rank->id] = traced_name(rank->replica, rank->world_size, rank->rank);
    }
  }
  queued_ = std::move(later);
  // A load that has begun has it, and the version is held still.
  const std::shared_ptr<const DeviceVersion> staged = device_staging_->find(version);
  Result<> started;
  if (!staged) {
    started = fail(ErrorCode::kInternal,
                   fmt::format("version {} is not ready on the devices", version.to_string()));
  } else {
    job.buckets = staged->buckets->bucket_count();
    job.bucket_bytes = [staged](std::uint64_t bucket) -> Result<std::span<const std::byte>> {
      return staged->version->data().subspan(staged->buckets->bucket_offset(bucket),
                                             staged->buckets->bucket_size(bucket));
    };
    job.digests = staged->digests;
    job.deadline = now() + std::chrono::milliseconds(deadline_ms);
    // A silent engine is dropped while there is time for the others to end well.
    job.ack_deadline = std::chrono::milliseconds(deadline_ms) / 2;
    job.version = version.to_string();
    for (std::size_t i = 0; i < job.buckets; ++i)
      job.bucket_offsets.push_back(staged->buckets->bucket_offset(i));
    started = runner_->start(std::move(job), *pipeline_events_);
  }
  if (!started) on_pipeline_finished(fail(started.error()));
}

void EngineHub::on_pipeline_finished(const Result<reload::PipelineReport>& result) {
  const std::vector<std::shared_ptr<Rank>> ranks = std::exchange(running_, {});
  const std::shared_ptr<const staging::HeldVersion> held = std::move(running_version_);
  if (!result) {
    log_warning("weight pipeline: {}", result.error().message());
    for (const auto& rank : ranks) {
      const auto load = loads_.find(rank->replica);
      if (rank->attached && load != loads_.end() && load->second.version == held->version())
        load_failed(*rank, load->second.request, held->version(), result.error().message());
    }
  } else {
    for (const reload::LostEngine& lost : result->lost)
      for (const auto& rank : ranks) {
        const auto load = loads_.find(rank->replica);
        if (rank->id == lost.engine && rank->attached && load != loads_.end())
          load_failed(*rank, load->second.request, held->version(), lost.reason.message());
      }
  }
  connect_devices();
  start_pipeline();
  free_unused_buffers();
}

void EngineHub::load_failed(const Rank& rank, std::uint64_t request, const Version& version,
                            const std::string& why) {
  tell(rank, reload::RankLoaded{
                 .rank = rank.rank, .request = request, .version = version, .failure = why});
}

void EngineHub::on_loaded(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                          const control::Loaded& loaded) {
  if (rank->load_due == envelope.request) {
    rank->load_due.reset();
    rank->mapped = false;
    free_unused_buffers();
  }
  if (!loaded.failure.empty())
    log_warning("engine {} rank {} did not load {}: {}", rank->replica, rank->rank,
                loaded.version.to_string(), loaded.failure);
  tell(*rank, reload::RankLoaded{.rank = rank->rank,
                                 .request = envelope.request,
                                 .version = loaded.version,
                                 .bytes = loaded.bytes,
                                 .failure = loaded.failure});
}

}  // namespace wsync::agent
