#include "trainer_side/publish/publisher.h"

#include <utility>

#include "shared/config/trainer_config.h"

namespace wsync::publish {

Result<std::unique_ptr<Publisher>> Publisher::create(Loop& loop,
                                                     const config::TrainerConfig& config) {
  auto publisher = std::unique_ptr<Publisher>(new Publisher(loop, config));
  publisher->bulk_thread_ = WSYNC_TRY(transport::tcp::UvThread::start());
  if (config.transport == TransportPolicy::kMemfd) return publisher;
  auto source =
      transport::tcp::TcpSource::listen(*publisher->bulk_thread_, {.listen = config.data_address});
  if (!source) return fail(source.error().with_context("data_address"));
  publisher->tcp_source_ = std::move(*source);
  return publisher;
}

Publisher::Publisher(Loop& loop, const config::TrainerConfig& config)
    : loop_(loop),
      config_(config),
      snapshotter_(std::make_shared<Snapshotter>(SnapshotterOptions{.arenas = config.arenas})),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "snapshot"})) {}

Publisher::~Publisher() {
  // The worker still posts the end of a running snapshot; that task must not use this object.
  *alive_ = false;
  worker_->stop();
}

Result<> Publisher::listen() {
  memfd_source_ = WSYNC_TRY(transport::memfd::MemfdSource::listen(
      {.path = config_.run_dir + "/trainer-host.sock",
       .claim = config_.take_over ? Claim::kTakeOver : Claim::kIfFree},
      [this](std::function<void()> task, std::source_location made) {
        loop_.post(std::move(task), made);
      }));
  return {};
}

std::string Publisher::data_address() const {
  return tcp_source_ ? tcp_source_->address() : std::string();
}

Result<> Publisher::snapshot(SnapshotOrder order, OnTaken on_taken) {
  SnapshotRequest request;
  request.fence_epoch = order.fence.epoch;
  request.fence_run_id = order.fence.run_id;
  request.version = order.version;
  request.bucket_bytes = config_.bucket_bytes;
  request.deadline = order.deadline;
  request.copy_deadline = order.deadline;
  request.stop = std::move(order.stop);
  request.done_bytes = &order.progress->done;
  request.total_bytes = &order.progress->total;
  struct Taken {
    Result<std::shared_ptr<const Snapshot>> snapshot;
    std::chrono::nanoseconds took{};
  };
  auto taken = std::make_shared<Taken>();
  // The task owns the progress, to which `request` points, and the snapshotter, because it may run
  // while the publisher is being destroyed.
  return worker_->submit(
      [open = std::move(order.open), progress = std::move(order.progress), request, taken,
       snapshotter = snapshotter_] {
        const TimePoint begun = now();
        Result<std::unique_ptr<WeightSource>> source = open();
        if (!source) {
          taken->snapshot = fail(source.error());
          return;
        }
        taken->snapshot = snapshotter->take(**source, request);
        taken->took = now() - begun;
      },
      [alive = alive_, taken, on_taken = std::move(on_taken)] {
        if (*alive) on_taken(std::move(taken->snapshot), taken->took);
      });
}

void Publisher::offer(const std::shared_ptr<const Snapshot>& snapshot) {
  transport::Offer offer;
  const ArenaIdentity& identity = snapshot->identity();
  offer.key = {.fence = {.epoch = identity.fence_epoch, .run_id = identity.fence_run_id},
               .version = snapshot->version(),
               .layout = identity.layout};
  const BucketPlan& plan = *snapshot->plan();
  for (std::size_t i = 0; i < plan.bucket_count(); ++i)
    offer.buckets.push_back({.offset = plan.bucket_offset(i), .bytes = plan.bucket_size(i)});
  offer.data = snapshot->data();
  // The snapshot's read lease prevents the snapshotter from writing the arena again. The source
  // releases it when the last byte has been sent, which may be after withdraw().
  offer.hold = snapshot;
  offer.share = [snapshot] { return snapshot->share(); };
  if (tcp_source_) tcp_source_->offer(offer);
  memfd_source_->offer(std::move(offer));
}

void Publisher::withdraw(const Version& version, const std::string& reason) {
  memfd_source_->withdraw(version, reason);
  if (tcp_source_) tcp_source_->withdraw(version, reason);
}

std::uint64_t Publisher::tcp_wire_bytes() const {
  return tcp_source_ ? tcp_source_->counters().wire_bytes : 0;
}

}  // namespace wsync::publish
