#include "inference_side/agent/engine_hub.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync::agent {
namespace {

constexpr std::chrono::milliseconds kFinishDeadline{1'000};
constexpr std::chrono::milliseconds kPrepareDeadline{5'000};

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

// One connection; a rank of a replica from its hello on.
struct EngineHub::Rank {
  reload::EngineId id{};
  std::unique_ptr<control::UnixStream> stream;
  bool attached = false;
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t device = 0;
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
  Digest tensors_key;
  Digest layout_sent;
  // Versions it has been told of; the failure it answered, empty while all is well.
  std::map<Version, std::string> prepared;
  std::uint64_t bytes = 0;  // of its last load plan
};

struct EngineHub::Load {
  std::uint64_t request = 0;
  Version version;
  std::uint32_t deadline_ms = 0;
  bool begun = false;
};

struct EngineHub::Verification {
  std::vector<std::shared_ptr<Rank>> waiting;
  std::vector<control::VerifyRank> ranks;
  std::vector<std::function<void(std::vector<control::VerifyRank>)>> on_done;
  std::unique_ptr<Timer> deadline;
};

// Who has not answered yet that it is ready for a version.
struct EngineHub::Preparation {
  std::vector<std::shared_ptr<Rank>> waiting;
  std::function<void()> on_ready;
  std::unique_ptr<Timer> deadline;
};

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
        hub.to_rank(*rank, load->second.request,
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

Result<std::unique_ptr<EngineHub>> EngineHub::create(Loop& loop, EngineHubOptions options,
                                                     OnRank on_rank) {
  auto hub =
      std::unique_ptr<EngineHub>(new EngineHub(loop, std::move(options), std::move(on_rank)));
  WSYNC_TRY(hub->open());
  return hub;
}

EngineHub::EngineHub(Loop& loop, EngineHubOptions options, OnRank on_rank)
    : loop_(loop),
      options_(std::move(options)),
      on_rank_(std::move(on_rank)),
      worker_(std::make_unique<Worker>(
          loop, WorkerOptions{.name = "load-plans", .max_queued = limits::kReplicaCount})) {}

EngineHub::~EngineHub() {
  *alive_ = false;
  runner_.reset();
  worker_->stop();
}

Result<> EngineHub::open() {
  if (options_.devices.kind == config::DeviceKind::kSeparate) {
    reload::PipelineOptions pipeline;
    for (std::uint32_t i = 0; i < options_.devices.count; ++i) {
      auto device = device::make_device(
          {.kind = device::DeviceKind::kSeparate, .index = static_cast<device::DeviceIndex>(i)});
      if (!device) return fail(device.error());
      pipeline.devices.push_back(std::move(*device));
    }
    pipeline.buffer_bytes = options_.devices.buffer_bytes;
    pipeline.trace = options_.trace;
    switch (options_.stages) {
      case config::Stages::kAuto:
        pipeline.stages = reload::Stages::kAuto;
        break;
      case config::Stages::kTwo:
        pipeline.stages = reload::Stages::kTwo;
        break;
      case config::Stages::kThree:
        pipeline.stages = reload::Stages::kThree;
        break;
    }
    auto runner = reload::PipelineRunner::create(std::move(pipeline));
    if (!runner) return fail(runner.error());
    runner_ = std::move(*runner);
    pipeline_events_ = std::make_unique<PipelineEvents>(*this, loop_);
  }
  auto listener = control::UnixListener::create(
      loop_, options_.socket,
      [this](UniqueFd socket, PeerCredentials) { on_connection(std::move(socket)); });
  if (!listener) return fail(listener.error().with_context("engine socket"));
  listener_ = std::move(*listener);
  return {};
}

// ---- connections ----

void EngineHub::on_connection(UniqueFd socket) {
  auto rank = std::make_shared<Rank>();
  rank->id = reload::EngineId{next_engine_++};
  const std::weak_ptr<Rank> weak = rank;
  auto stream = control::UnixStream::adopt(loop_, std::move(socket),
                                           {.on_frame =
                                                [this, weak](control::Frame frame) {
                                                  if (const auto self = weak.lock())
                                                    on_frame(self, std::move(frame));
                                                },
                                            .on_close =
                                                [this, weak](Error error) {
                                                  if (const auto self = weak.lock())
                                                    on_close(self, error);
                                                }});
  if (!stream) {
    log_warning("engine connection dropped: {}", stream.error().message());
    return;
  }
  rank->stream = std::move(*stream);
  ranks_.push_back(std::move(rank));
}

void EngineHub::on_close(const std::shared_ptr<Rank>& rank, const Error& error) {
  if (std::erase(ranks_, rank) == 0) return;
  rank->stream.reset();
  if (runner_)
    runner_->engine_lost(rank->id, Error(ErrorCode::kPeerLost, "its connection has ended"));
  if (verification_ && std::erase(verification_->waiting, rank) != 0) {
    verification_->ranks.push_back({.replica = rank->replica,
                                    .rank = rank->rank,
                                    .failure = "it was lost: " + error.message()});
    finish_verification();
  }
  if (!std::exchange(rank->attached, false)) return;
  prepared_or_gone(rank, nullptr);
  log_info("engine {} rank {} is gone: {}", rank->replica, rank->rank, error.message());
  tell(*rank, reload::RankDetached{.rank = rank->rank});
}

void EngineHub::refuse(const std::shared_ptr<Rank>& rank, const std::string& why,
                       std::vector<control::Problem> problems) {
  log_warning("engine refused: {}", why);
  to_rank(*rank, 0, control::Refuse{.reason = why, .problems = std::move(problems)});
  if (rank->stream) rank->stream->finish(kFinishDeadline);
}

Result<std::vector<UniqueFd>> EngineHub::device_handles(std::uint32_t device) const {
  std::vector<UniqueFd> fds;
  for (std::uint32_t slot = 0; slot < reload::kIpcSlots; ++slot) {
    auto handle = runner_->group().ipc_handle(reload::DeviceIndex{device}, reload::SlotIndex{slot});
    if (!handle) return fail(handle.error());
    fds.push_back(std::move(handle->fd));
  }
  return fds;
}

void EngineHub::on_hello(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                         control::EngineHello hello) {
  if (rank->attached) return refuse(rank, "a second EngineHello on one connection");
  if (envelope.replica.empty()) return refuse(rank, "an EngineHello without a replica name");
  if (hello.world_size == 0 || hello.world_size > limits::kReplicaRankCount ||
      envelope.rank >= hello.world_size)
    return refuse(rank,
                  fmt::format("rank {} of a replica of {} ranks", envelope.rank, hello.world_size));
  if (runner_ && hello.device >= runner_->group().size())
    return refuse(rank, fmt::format("device {}; this sidecar drives {} devices", hello.device,
                                    runner_->group().size()));
  if (runner_ && hello.take == control::TakeMode::kAdopt)
    return refuse(rank, "separate devices cannot be adopted: take pieces or whole tensors");
  for (const auto& other : ranks_) {
    if (!other->attached || other->replica != envelope.replica) continue;
    if (other->rank == envelope.rank)
      return refuse(rank, fmt::format("replica '{}' rank {} is attached already", envelope.replica,
                                      envelope.rank));
    if (other->world_size != hello.world_size)
      return refuse(rank, fmt::format("replica '{}' has {} ranks, not {}", envelope.replica,
                                      other->world_size, hello.world_size));
  }
  if (!versions_.empty()) {
    std::vector<control::Problem> problems =
        reload::check_layout(*versions_.rbegin()->second->manifest(), hello.tensors);
    if (!problems.empty())
      return refuse(
          rank,
          fmt::format("replica '{}' rank {} does not fit the model that is served: {} ({})",
                      envelope.replica, envelope.rank, problems.front().tensor,
                      problems.front().detail),
          std::move(problems));
  }
  std::vector<UniqueFd> fds;
  if (runner_) {
    auto handles = device_handles(hello.device);
    if (!handles) return refuse(rank, handles.error().message());
    fds = std::move(*handles);
  }
  rank->attached = true;
  rank->replica = envelope.replica;
  rank->rank = envelope.rank;
  rank->world_size = hello.world_size;
  rank->device = hello.device;
  rank->tensors =
      std::make_shared<const std::vector<control::EngineTensor>>(std::move(hello.tensors));
  rank->tensors_key = tensors_key(*rank->tensors);
  to_rank(*rank, envelope.request,
          control::EngineWelcome{.generation = options_.generation,
                                 .device_kind = runner_ ? control::DeviceKind::kSeparate
                                                        : control::DeviceKind::kUnified,
                                 .buffer_bytes = runner_ ? runner_->group().buffer_bytes() : 0},
          std::move(fds));
  log_info("engine {} rank {}/{} attached (pid {}, version {})", rank->replica, rank->rank,
           rank->world_size, hello.pid, hello.active.to_string());
  for (const auto& [version, held] : versions_) prepare(rank, held);
  tell(*rank, reload::RankAttached{.rank = rank->rank,
                                   .leader = hello.leader,
                                   .state = hello.state,
                                   .active = hello.active});
}

void EngineHub::on_frame(const std::shared_ptr<Rank>& rank, control::Frame frame) {
  if (auto* hello = std::get_if<control::EngineHello>(&frame.message)) {
    on_hello(rank, frame.envelope, std::move(*hello));
    return;
  }
  if (!rank->attached) {
    refuse(rank, "the first message of an engine must be EngineHello");
    return;
  }
  const std::uint64_t request = frame.envelope.request;
  std::visit(
      Overloaded{
          [&](const control::Prepared& prepared) { on_prepared(rank, prepared); },
          [&](const control::Paused&) {
            tell(*rank, reload::RankPaused{.rank = rank->rank, .request = request});
          },
          [&](const control::BucketDone& done) {
            if (!runner_) return;
            if (done.failure.empty())
              runner_->bucket_done(rank->id, done.bucket);
            else
              runner_->engine_lost(rank->id, Error(ErrorCode::kDigestMismatch, done.failure));
          },
          [&](const control::Loaded& loaded) { on_loaded(rank, frame.envelope, loaded); },
          [&](const control::Committed& committed) {
            tell(*rank, reload::RankCommitted{.rank = rank->rank,
                                              .request = request,
                                              .version = committed.version,
                                              .failure = committed.failure});
          },
          [&](const control::Resumed&) {
            tell(*rank, reload::RankResumed{.rank = rank->rank, .request = request});
          },
          [&](control::Digests& digests) { on_digests(rank, std::move(digests)); },
          [&](const control::ErrorReply& error) {
            log_warning("engine {} rank {}: {}", rank->replica, rank->rank, error.message);
          },
          [&](const auto&) {
            refuse(rank, fmt::format("{} is not for a sidecar",
                                     control::message_name(control::type_of(frame.message))));
          },
      },
      frame.message);
}

std::shared_ptr<EngineHub::Rank> EngineHub::find(const std::string& replica,
                                                 std::uint32_t rank) const {
  for (const auto& candidate : ranks_)
    if (candidate->attached && candidate->replica == replica && candidate->rank == rank)
      return candidate;
  return nullptr;
}

std::vector<std::shared_ptr<EngineHub::Rank>> EngineHub::ranks_of(
    const std::string& replica) const {
  std::vector<std::shared_ptr<Rank>> found;
  for (const auto& rank : ranks_)
    if (rank->attached && rank->replica == replica) found.push_back(rank);
  return found;
}

void EngineHub::to_rank(const Rank& rank, std::uint64_t request, const control::Message& message,
                        std::vector<UniqueFd> fds) {
  if (!rank.stream) return;
  control::Envelope envelope;
  envelope.replica = rank.replica;
  envelope.rank = rank.rank;
  envelope.request = request;
  if (const auto sent = rank.stream->send(envelope, message, std::move(fds)); !sent)
    log_debug("to engine {} rank {}: {}", rank.replica, rank.rank, sent.error().message());
}

void EngineHub::tell(const Rank& rank, RankEvent event) {
  loop_.post([this, alive = alive_, replica = rank.replica, world = rank.world_size,
              event = std::move(event)] {
    if (*alive) on_rank_(replica, world, event);
  });
}

// ---- versions ----

std::vector<control::Problem> EngineHub::check_layout(const Manifest& manifest) const {
  std::vector<control::Problem> problems;
  std::map<std::string, std::vector<std::span<const control::EngineTensor>>> replicas;
  for (const auto& rank : ranks_) {
    if (!rank->attached) continue;
    auto& parts = replicas[rank->replica];
    parts.emplace_back(*rank->tensors);
    if (parts.size() > 1 && rank->world_size == 1) continue;
    for (control::Problem& problem : reload::check_layout(manifest, *rank->tensors)) {
      problem.detail = fmt::format("replica '{}': {}", rank->replica, problem.detail);
      problems.push_back(std::move(problem));
    }
  }
  for (const auto& [replica, parts] : replicas) {
    if (parts.size() < ranks_of(replica).front()->world_size) continue;
    for (control::Problem& problem : reload::check_replica_coverage(manifest, parts)) {
      problem.detail = fmt::format("replica '{}': {}", replica, problem.detail);
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

void EngineHub::add_version(std::shared_ptr<const staging::HeldVersion> version,
                            std::function<void()> on_ready) {
  const Version name = version->version();
  versions_[name] = version;
  auto preparation = std::make_unique<Preparation>();
  preparation->on_ready = std::move(on_ready);
  for (const auto& rank : ranks_)
    if (rank->attached) preparation->waiting.push_back(rank);
  const std::vector<std::shared_ptr<Rank>> ranks = preparation->waiting;
  preparation->deadline = std::make_unique<Timer>(loop_, [this, name] {
    if (const auto it = preparing_.find(name); it != preparing_.end()) {
      it->second->waiting.clear();
      prepared_or_gone(nullptr, &name);
    }
  });
  preparation->deadline->start(kPrepareDeadline);
  preparing_[name] = std::move(preparation);
  for (const auto& rank : ranks) prepare(rank, version);
  prepared_or_gone(nullptr, &name);
}

void EngineHub::prepared_or_gone(const std::shared_ptr<Rank>& rank, const Version* version) {
  std::vector<Version> finished;
  for (auto& [name, preparation] : preparing_) {
    if (version != nullptr && name != *version) continue;
    if (rank) std::erase(preparation->waiting, rank);
    if (preparation->waiting.empty()) finished.push_back(name);
  }
  for (const Version& name : finished) {
    auto entry = preparing_.extract(name);
    loop_.post([alive = alive_, ready = std::move(entry.mapped()->on_ready)] {
      if (*alive) ready();
    });
  }
}

void EngineHub::remove_version(const Version& version) {
  if (versions_.erase(version) == 0) return;
  preparing_.erase(version);
  cache_->forget(version);
  for (const auto& rank : ranks_) {
    if (!rank->attached || rank->prepared.erase(version) == 0) continue;
    to_rank(*rank, 0, control::Release{version});
  }
}

void EngineHub::prepare(const std::shared_ptr<Rank>& rank,
                        const std::shared_ptr<const staging::HeldVersion>& version) {
  const std::uint64_t bucket_bytes =
      runner_ ? runner_->group().buffer_bytes() : version->plan()->bucket_bytes();
  cache_->request(
      *worker_, version, bucket_bytes, rank->tensors, rank->tensors_key,
      [this, alive = alive_, rank, version](Result<std::shared_ptr<const PreparedLoad>> load) {
        if (!*alive || !rank->attached || !versions_.contains(version->version())) return;
        const Version name = version->version();
        if (load)
          send_prepare(rank, version, *load);
        else
          rank->prepared[name] = load.error().message();
        if (!rank->prepared[name].empty()) prepared_or_gone(rank, &name);
        pump_load(rank->replica);
      });
}

void EngineHub::send_prepare(const std::shared_ptr<Rank>& rank,
                             const std::shared_ptr<const staging::HeldVersion>& version,
                             const std::shared_ptr<const PreparedLoad>& load) {
  std::vector<UniqueFd> fds;
  if (!runner_) {
    auto fd = version->share();
    if (!fd) {
      rank->prepared[version->version()] = fd.error().message();
      return;
    }
    fds.push_back(std::move(*fd));
  }
  control::Prepare message;
  message.version = version->version();
  message.layout_digest = version->identity().layout;
  if (rank->layout_sent != message.layout_digest) {
    ByteWriter layout;
    version->manifest()->encode(layout);
    message.layout = std::move(layout).take();
    rank->layout_sent = message.layout_digest;
  }
  message.bucket_bytes = load->buckets->bucket_bytes();
  message.arena_bytes = version->data().size();
  message.checksums = load->checksums;
  rank->bytes = load->plan.bytes();
  rank->prepared[version->version()] = {};
  to_rank(*rank, 0, message, std::move(fds));
}

void EngineHub::on_prepared(const std::shared_ptr<Rank>& rank, const control::Prepared& prepared) {
  prepared_or_gone(rank, &prepared.version);
  if (prepared.failure.empty()) return;
  log_warning("engine {} rank {} cannot take {}: {}", rank->replica, rank->rank,
              prepared.version.to_string(), prepared.failure);
  if (const auto it = rank->prepared.find(prepared.version); it != rank->prepared.end())
    it->second = prepared.failure;
}

// ---- the switch ----

void EngineHub::send(const std::string& replica, const reload::SendPause& command) {
  if (const auto rank = find(replica, command.rank))
    to_rank(*rank, command.request,
            control::Pause{.mode = command.mode, .deadline_ms = command.deadline_ms});
}

void EngineHub::send(const std::string& replica, const reload::SendCommit& command) {
  if (const auto rank = find(replica, command.rank))
    to_rank(*rank, command.request, control::Commit{command.version});
}

void EngineHub::send(const std::string& replica, const reload::SendResume& command) {
  if (const auto rank = find(replica, command.rank))
    to_rank(*rank, command.request, control::Resume{});
}

void EngineHub::send(const std::string& replica, const reload::BeginLoad& command) {
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
    to_rank(*rank, command.request,
            control::Abort{.version = version, .reason = "the load was cancelled"});
    if (runner_)
      runner_->engine_lost(rank->id, Error(ErrorCode::kCancelled, "its load was cancelled"));
    // An engine forgets a version whose load was given up: it is told of it again.
    rank->prepared.erase(version);
    if (const auto held = versions_.find(version); held != versions_.end())
      prepare(rank, held->second);
  }
}

void EngineHub::pump_load(const std::string& replica) {
  const auto it = loads_.find(replica);
  if (it == loads_.end() || it->second.begun) return;
  Load& load = it->second;
  const auto ranks = ranks_of(replica);
  const auto held = versions_.find(load.version);
  for (const auto& rank : ranks) {
    if (held == versions_.end()) {
      load_failed(*rank, load.request, load.version, "the version is not staged here");
      continue;
    }
    const auto prepared = rank->prepared.find(load.version);
    if (prepared == rank->prepared.end()) return;  // its plan is still being computed
    if (!prepared->second.empty()) load_failed(*rank, load.request, load.version, prepared->second);
  }
  if (held == versions_.end()) return;
  load.begun = true;
  for (const auto& rank : ranks)
    to_rank(*rank, load.request,
            control::Load{.version = load.version, .deadline_ms = load.deadline_ms});
  if (!runner_) return;
  queued_.push_back(replica);
  start_pipeline();
}

void EngineHub::expect_more_loads(bool expected) {
  more_expected_ = expected;
  start_pipeline();
}

void EngineHub::start_pipeline() {
  if (!runner_ || more_expected_ || queued_.empty() || !running_.empty()) return;
  const Version version = loads_.at(queued_.front()).version;
  running_version_ = versions_.at(version);
  const std::uint64_t bucket_bytes = runner_->group().buffer_bytes();
  auto plan = BucketPlan::create(*running_version_->manifest(), bucket_bytes);
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
    }
  }
  queued_ = std::move(later);
  Result<> started;
  if (!plan) {
    started = fail(plan.error());
  } else {
    job.buckets = plan->bucket_count();
    job.bucket_bytes = [held = running_version_,
                        buckets = std::make_shared<const BucketPlan>(std::move(*plan))](
                           std::uint64_t bucket) -> Result<std::span<const std::byte>> {
      return held->data().subspan(buckets->bucket_offset(bucket), buckets->bucket_size(bucket));
    };
    job.deadline = now() + std::chrono::milliseconds(deadline_ms);
    if (options_.trace != nullptr) (void)options_.trace->take();  // it shows the latest update
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
  start_pipeline();
}

void EngineHub::load_failed(const Rank& rank, std::uint64_t request, const Version& version,
                            const std::string& why) {
  tell(rank, reload::RankLoaded{
                 .rank = rank.rank, .request = request, .version = version, .failure = why});
}

void EngineHub::on_loaded(const std::shared_ptr<Rank>& rank, const control::Envelope& envelope,
                          const control::Loaded& loaded) {
  if (!loaded.failure.empty())
    log_warning("engine {} rank {} did not load {}: {}", rank->replica, rank->rank,
                loaded.version.to_string(), loaded.failure);
  tell(*rank, reload::RankLoaded{.rank = rank->rank,
                                 .request = envelope.request,
                                 .version = loaded.version,
                                 .bytes = loaded.bytes,
                                 .failure = loaded.failure});
}

// ---- verify ----

void EngineHub::verify(std::chrono::milliseconds deadline,
                       std::function<void(std::vector<control::VerifyRank>)> on_done) {
  if (verification_) {
    verification_->on_done.push_back(std::move(on_done));
    return;
  }
  verification_ = std::make_unique<Verification>();
  verification_->on_done.push_back(std::move(on_done));
  for (const auto& rank : ranks_) {
    if (!rank->attached) continue;
    verification_->waiting.push_back(rank);
    to_rank(*rank, 0, control::ReadDigests{});
  }
  verification_->deadline = std::make_unique<Timer>(loop_, [this] {
    for (const auto& rank : std::exchange(verification_->waiting, {}))
      verification_->ranks.push_back({.replica = rank->replica,
                                      .rank = rank->rank,
                                      .failure = "it did not answer before the deadline"});
    finish_verification();
  });
  verification_->deadline->start(deadline);
  finish_verification();
}

void EngineHub::finish_verification() {
  if (!verification_ || !verification_->waiting.empty()) return;
  const std::shared_ptr<Verification> done = std::move(verification_);
  done->deadline->stop();
  std::sort(done->ranks.begin(), done->ranks.end(), [](const auto& a, const auto& b) {
    return std::tie(a.replica, a.rank) < std::tie(b.replica, b.rank);
  });
  loop_.post([done] {
    for (const auto& call : done->on_done) call(done->ranks);
  });
}

void EngineHub::on_digests(const std::shared_ptr<Rank>& rank, control::Digests digests) {
  if (!verification_ || std::find(verification_->waiting.begin(), verification_->waiting.end(),
                                  rank) == verification_->waiting.end())
    return;
  auto verdict = std::make_shared<control::VerifyRank>();
  verdict->replica = rank->replica;
  verdict->rank = rank->rank;
  verdict->version = digests.version;
  const auto finish = [this, alive = alive_, rank, verdict] {
    if (!*alive || !verification_ || std::erase(verification_->waiting, rank) == 0) return;
    verification_->ranks.push_back(std::move(*verdict));
    finish_verification();
  };
  const auto held = versions_.find(digests.version);
  if (!digests.failure.empty()) {
    verdict->failure = digests.failure;
    finish();
    return;
  }
  if (held == versions_.end()) {
    verdict->failure = digests.version.none()
                           ? "it holds no version"
                           : fmt::format("it holds {}, which is not staged here any more",
                                         digests.version.to_string());
    finish();
    return;
  }
  const auto submitted = worker_->submit(
      [verdict, held = held->second, tensors = rank->tensors, found = std::move(digests.tensors)] {
        auto plan = reload::LoadPlan::make(*held->manifest(), *held->plan(), *tensors);
        if (!plan) {
          verdict->failure = plan.error().message();
          return;
        }
        for (std::size_t i = 0; i < plan->tensors().size(); ++i) {
          const reload::LoadTensor& tensor = plan->tensors()[i];
          const std::string& name = held->manifest()->tensor(tensor.manifest_index).name;
          // Engines answer in the order of their hello, which is the plan's.
          const auto at = i < found.size() && found[i].name == name
                              ? found.begin() + static_cast<std::ptrdiff_t>(i)
                              : std::find_if(
                                    found.begin(), found.end(),
                                    [&](const auto& candidate) { return candidate.name == name; });
          const Digest expected = reload::expected_digest(tensor, held->data());
          ++verdict->tensors;
          verdict->bytes += tensor.shard.bytes();
          if (at == found.end())
            verdict->mismatches.push_back({.tensor = name, .expected = expected});
          else if (at->digest != expected)
            verdict->mismatches.push_back(
                {.tensor = name, .expected = expected, .found = at->digest});
        }
      },
      finish);
  if (!submitted) {
    verdict->failure = submitted.error().message();
    finish();
  }
}

}  // namespace wsync::agent
