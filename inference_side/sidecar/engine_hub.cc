#include "inference_side/sidecar/engine_hub.h"

#include <algorithm>
#include <fcntl.h>
#include <set>
#include <string_view>
#include <utility>

#include "inference_side/reload/layout_check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
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
          loop, WorkerOptions{.name = "load-plans", .max_queued = limits::kReplicaCount})),
      readback_worker_(std::make_unique<Worker>(
          loop, WorkerOptions{.name = "readback", .max_queued = limits::kReplicaCount})),
      readback_(std::make_unique<Readback>(loop, *readback_worker_, on_gpus())) {}

EngineHub::~EngineHub() {
  *alive_ = false;
  worker_->stop();
  readback_worker_->stop();
  if (!runner_) return;
  // The staged bytes are unregistered when no copy reads them any more, and with the devices there.
  runner_->abort({ErrorCode::kCancelled, "the sidecar ends"});
  (void)runner_->wait();
  device_staging_.reset();
  buffers_worker_->stop();
  wait_for_unmapping();
  runner_.reset();
}

Result<> EngineHub::open() {
  WSYNC_TRY(open_devices());
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
  rank->fence = &fence_;
  if (on_gpus()) rank->hangup = UniqueFd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
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
  rank->hello_deadline = std::make_unique<Timer>(loop_, [this, weak] {
    if (const auto self = weak.lock())
      refuse(self, fmt::format("no EngineHello within {} ms", limits::kHelloDeadlineMs));
  });
  rank->hello_deadline->start(std::chrono::milliseconds(limits::kHelloDeadlineMs));
  ranks_.push_back(std::move(rank));
}

void EngineHub::on_close(const std::shared_ptr<Rank>& rank, const Error& error) {
  if (std::erase(ranks_, rank) == 0) return;
  rank->stream.reset();
  if (runner_)
    runner_->engine_lost(rank->id, Error(ErrorCode::kPeerLost, "its connection has ended"));
  unmapped_when_closed(*rank);
  readback_->lost(rank, error);
  if (!std::exchange(rank->attached, false)) return;
  prepared_or_gone(rank, nullptr);
  log_info("engine {} rank {} is gone: {}", rank->replica, rank->rank, error.message());
  tell(*rank, reload::RankDetached{.rank = rank->rank});
}

void EngineHub::refuse(const std::shared_ptr<Rank>& rank, const std::string& why,
                       std::vector<control::Problem> problems) {
  log_warning("engine refused: {}", why);
  rank->send(0, control::Refuse{.reason = why, .problems = std::move(problems)});
  if (rank->stream) rank->stream->finish(kFinishDeadline);
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
            // Of an earlier load: the buffer may belong to another bucket by now.
            const auto load = loads_.find(rank->replica);
            if (!runner_ || load == loads_.end() || load->second.request != request) return;
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
          [&](control::Digests& digests) {
            const auto held = versions_.find(digests.version);
            readback_->answered(rank, std::move(digests),
                                held == versions_.end() ? nullptr : held->second);
          },
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

void EngineHub::tell(const Rank& rank, RankEvent event) {
  loop_.post([this, alive = alive_, replica = rank.replica, world = rank.world_size,
              event = std::move(event)] {
    if (*alive) on_rank_(replica, world, event);
  });
}

// ---- versions ----

std::uint32_t EngineHub::replica_count() const {
  std::set<std::string_view> names;
  for (const auto& rank : ranks_)
    if (rank->attached) names.insert(rank->replica);
  return static_cast<std::uint32_t>(names.size());
}

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
  preparation->deadline = std::make_unique<Timer>(loop_, [this, name] { give_up_silent(name); });
  preparation->deadline->start(kPrepareDeadline);
  preparation->devices_ready = device_staging_ == nullptr;
  preparing_[name] = std::move(preparation);
  connect_devices();
  if (device_staging_) device_staging_->add(version, [this, name] { devices_ready(name); });
  for (const auto& rank : ranks) prepare(rank, version);
  prepared_or_gone(nullptr, &name);
}

// A rank that was told, and does not answer. One whose plan is still being computed here was not.
void EngineHub::give_up_silent(const Version& version) {
  const auto it = preparing_.find(version);
  if (it == preparing_.end()) return;
  auto& waiting = it->second->waiting;
  std::erase_if(waiting, [&](const auto& rank) { return rank->prepared.contains(version); });
  if (!waiting.empty()) it->second->deadline->start(kPrepareDeadline);
  prepared_or_gone(nullptr, &version);
}

void EngineHub::devices_ready(const Version& version) {
  if (const auto staged = device_staging_->find(version); !staged->failure.empty())
    log_warning("version {} cannot be brought to the devices: {}", version.to_string(),
                staged->failure);
  if (const auto it = preparing_.find(version); it != preparing_.end())
    it->second->devices_ready = true;
  prepared_or_gone(nullptr, &version);
  pump_loads();
}

void EngineHub::prepared_or_gone(const std::shared_ptr<Rank>& rank, const Version* version) {
  std::vector<Version> finished;
  for (auto& [name, preparation] : preparing_) {
    if (version != nullptr && name != *version) continue;
    if (rank) std::erase(preparation->waiting, rank);
    if (preparation->waiting.empty() && preparation->devices_ready) finished.push_back(name);
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
  if (device_staging_) device_staging_->remove(version);
  for (const auto& rank : ranks_) {
    if (!rank->attached || rank->prepared.erase(version) == 0) continue;
    rank->send(0, control::Release{version});
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
  rank->send(0, message, std::move(fds));
}

void EngineHub::on_prepared(const std::shared_ptr<Rank>& rank, const control::Prepared& prepared) {
  prepared_or_gone(rank, &prepared.version);
  if (prepared.failure.empty()) return;
  log_warning("engine {} rank {} cannot take {}: {}", rank->replica, rank->rank,
              prepared.version.to_string(), prepared.failure);
  if (const auto it = rank->prepared.find(prepared.version); it != rank->prepared.end())
    it->second = prepared.failure;
}

}  // namespace wsync::agent
