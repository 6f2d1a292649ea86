#include "bench/transport/transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bench/baseline/sockets.h"
#include "shared/base/format.h"
#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"
#include "shared/transport/tls/tls_channel.h"

namespace wsync::bench {
namespace {

using transport::BucketWindow;
using transport::StreamKey;

constexpr std::chrono::seconds kTransferWaitLimit{kStallSeconds};

// The identity for the write lease of an arena with this key.
ArenaIdentity identity_of_key(const StreamKey& key, std::uint64_t bucket_bytes) {
  return {.fence_epoch = key.fence.epoch,
          .fence_run_id = key.fence.run_id,
          .version_epoch = key.version.epoch,
          .version_step = key.version.step,
          .layout = key.layout,
          .content = {},
          .bucket_bytes = bucket_bytes};
}

}  // namespace

// ---- the loop ----

Result<std::unique_ptr<TransferLoop>> TransferLoop::create() {
  std::unique_ptr<TransferLoop> made(new TransferLoop());
  made->loop_ = WSYNC_TRY(Loop::create());
  made->guard_ = std::make_unique<Timer>(*made->loop_, [self = made.get()] {
    self->fail_with(
        Error(ErrorCode::kDeadline,
              fmt::format("the transfer was not complete after {} s", kTransferWaitLimit.count())));
  });
  return made;
}

Post TransferLoop::post() {
  return [loop = loop_.get()](std::function<void()> work) { loop->post(std::move(work)); };
}

transport::SinkCallbacks TransferLoop::callbacks() {
  outcome_.reset();
  return {
      .on_bucket = [](const transport::ArrivedBucket&) {},
      .on_done = [this](std::optional<ArenaView> view) { end(std::move(view)); },
      .on_failure = [this](const transport::StreamFailure& failure) { fail_with(failure.error); }};
}

void TransferLoop::fail_with(const Error& error) { end(fail(error)); }

void TransferLoop::end(Result<std::optional<ArenaView>> outcome) {
  if (!outcome_) outcome_.emplace(std::move(outcome));
  loop_->stop();
}

Result<std::optional<ArenaView>> TransferLoop::wait() {
  guard_->start(kTransferWaitLimit);
  while (!outcome_) loop_->run();
  guard_->stop();
  return std::move(*std::exchange(outcome_, std::nullopt));
}

StreamKey VersionCounter::next() {
  return {.fence = {.epoch = 1, .run_id = {2, 3}},
          .version = {.epoch = 1, .step = ++step_},
          .layout = {.low = 4, .high = 5}};
}

std::vector<BucketWindow> buckets_of(std::uint64_t bytes, std::uint64_t bucket_bytes) {
  std::vector<BucketWindow> buckets;
  for (std::uint64_t at = 0; at < bytes; at += bucket_bytes)
    buckets.push_back({.offset = at, .bytes = std::min(bucket_bytes, bytes - at)});
  return buckets;
}

// ---- TCP ----

Result<std::unique_ptr<TcpTransfers>> TcpTransfers::create(Ground& bench, TransferLoop& loop,
                                                           bool is_protected) {
  std::unique_ptr<TcpTransfers> made(new TcpTransfers(bench, loop));
  transport::tcp::TcpSourceOptions options;
  if (is_protected) {
    made->secret_ = transport::make_pair_secret();
    made->tls_ = WSYNC_TRY(transport::tls::TlsContext::create(made->secret_));
    options.make_channel = [tls = made->tls_] {
      return std::make_shared<transport::tls::TlsChannel>(tls, std::nullopt);
    };
  }
  for (auto* thread : {&made->trainer_thread_, &made->relay_thread_, &made->last_thread_}) {
    *thread = WSYNC_TRY(transport::tcp::UvThread::start());
  }
  for (const auto& [thread, source] : {std::pair{&made->trainer_thread_, &made->source_},
                                       std::pair{&made->relay_thread_, &made->relay_source_}}) {
    *source = WSYNC_TRY(transport::tcp::TcpSource::listen(**thread, options));
  }
  return made;
}

// Destroy the sources before the threads on which they run.
TcpTransfers::~TcpTransfers() {
  source_.reset();
  relay_source_.reset();
}

transport::FetchRequest TcpTransfers::wanted(const transport::BucketSource& source,
                                             const StreamKey& key, const Shape& shape,
                                             std::span<std::byte> into) const {
  return {.source = source.address(),
          .key = key,
          .content = {},
          .data_bytes = bench_.bytes(),
          .buckets = buckets_of(bench_.bytes(), shape.bucket_bytes),
          .leaves = leaves(shape.bucket_bytes),
          .have = {},
          .into = into,
          .hold = nullptr};
}

transport::tcp::TcpSinkOptions TcpTransfers::sink_options(const Shape& shape) const {
  transport::tcp::TcpSinkOptions options{.streams = shape.connections};
  if (!tls_) return options;
  options.prepare = [tls = tls_, secret = secret_](const transport::FetchRequest& request,
                                                   const TcpAddress& /*source*/) {
    const transport::PairKey key =
        transport::derive_pair_key(secret, {.fence = request.key.fence, .receiver = "bench"});
    return Result<transport::tcp::ChannelMaker>(
        [tls, key] { return std::make_shared<transport::tls::TlsChannel>(tls, key); });
  };
  return options;
}

std::shared_ptr<const LeafTable> TcpTransfers::leaves(std::uint64_t bucket_bytes) const {
  auto& leaves = leaves_[bucket_bytes];
  if (!leaves) leaves = leaves_of(bench_.bytes(), bucket_bytes);
  return leaves;
}

StreamKey TcpTransfers::offer(const Shape& shape) {
  const StreamKey key = versions_.next();
  const auto bytes = bench_.stamped();
  const auto table = leaves(shape.bucket_bytes);
  // A trainer has these sums from its snapshot.
  const auto sums = std::make_shared<const std::vector<WordSum>>(sums_of(*table, bytes));
  source_->offer({.key = key,
                  .buckets = buckets_of(bench_.bytes(), shape.bucket_bytes),
                  .data = bytes,
                  .leaves = table,
                  .sums = *sums,
                  .hold = sums,
                  .share = nullptr});
  return key;
}

Result<> TcpTransfers::release(Version version) {
  for (auto* source : {source_.get(), relay_source_.get()})
    source->withdraw(version, "the measurement is over");
  // After these calls no thread reads the bytes any more.
  trainer_thread_->run([] {});
  relay_thread_->run([] {});
  return bench_.check_arrived();
}

Result<Spent> TcpTransfers::pass(const Shape& shape) {
  transport::tcp::TcpSink sink(*last_thread_, loop_.post(), sink_options(shape));
  const StreamKey key = offer(shape);
  const Stopwatch watch;
  WSYNC_TRY(sink.receive(wanted(*source_, key, shape, bench_.target()), loop_.callbacks()));
  const auto arrived = loop_.wait();
  const Spent spent = watch.stop();
  if (!arrived) return fail(arrived.error());
  WSYNC_TRY(release(key.version));
  return spent;
}

Result<Spent> TcpTransfers::relay(const Shape& shape) {
  if (!relayed_) {
    auto pages = WSYNC_TRY(Pages::make_private(bench_.bytes(), PageKind::kHuge));
    pages.touch();
    relayed_.emplace(std::move(pages));
  }
  const transport::tcp::TcpSinkOptions options = sink_options(shape);
  transport::tcp::TcpSink first(*relay_thread_, loop_.post(), options);
  transport::tcp::TcpSink last(*last_thread_, loop_.post(), options);
  const StreamKey key = offer(shape);
  relay_source_->offer({.key = key,
                        .buckets = buckets_of(bench_.bytes(), shape.bucket_bytes),
                        .data = relayed_->bytes(),
                        .complete = false,
                        .hold = nullptr,
                        .share = nullptr});
  const Stopwatch watch;
  WSYNC_TRY(last.receive(wanted(*relay_source_, key, shape, bench_.target()), loop_.callbacks()));
  WSYNC_TRY(first.receive(
      wanted(*source_, key, shape, relayed_->bytes()),
      {.on_bucket =
           [&](const transport::ArrivedBucket& arrived) {
             relay_source_->bucket_ready(key.version, arrived.bucket, arrived.digest);
           },
       .on_done = [](const std::optional<ArenaView>&) {},
       .on_failure =
           [this](const transport::StreamFailure& failure) { loop_.fail_with(failure.error); }}));
  const auto arrived = loop_.wait();
  const Spent spent = watch.stop();
  if (!arrived) return fail(arrived.error());
  WSYNC_TRY(release(key.version));
  return spent;
}

// ---- memfd ----

Result<std::unique_ptr<MemfdTransfers>> MemfdTransfers::create(Ground& bench, TransferLoop& loop,
                                                               const std::string& path) {
  std::unique_ptr<MemfdTransfers> made(new MemfdTransfers(bench, loop));
  made->source_ = WSYNC_TRY(transport::memfd::MemfdSource::listen({.path = path}, loop.post()));
  made->sink_ = WSYNC_TRY(transport::memfd::MemfdSink::create(loop.post()));
  WSYNC_TRY(made->sink_->watch(path));
  return made;
}

Result<StreamKey> MemfdTransfers::offer(std::uint64_t bucket_bytes) {
  const StreamKey key = versions_.next();
  auto arena = SharedArena::create({.name = "wsync-bench", .data_bytes = bench_.bytes()});
  if (!arena) return fail(std::move(arena).error());
  auto held = std::make_shared<SharedArena>(std::move(*arena));
  auto lease = WSYNC_TRY(held->try_write_lease(identity_of_key(key, bucket_bytes)));
  const auto bytes = bench_.stamped();
  std::memcpy(lease.data().data(), bytes.data(), bytes.size());
  std::move(lease).complete(digest_of(bytes));
  source_->offer({.key = key,
                  .buckets = buckets_of(bench_.bytes(), bucket_bytes),
                  .data = held->data(),
                  .hold = held,
                  .share = [arena = held.get()] { return arena->share(); }});
  return key;
}

Result<MemfdTransfers::Times> MemfdTransfers::pass(std::uint64_t bucket_bytes) {
  const auto key = WSYNC_TRY(offer(bucket_bytes));
  transport::FetchRequest wanted{.source = source_->address(),
                                 .key = key,
                                 .content = digest_of(bench_.source()),
                                 .data_bytes = bench_.bytes(),
                                 .buckets = buckets_of(bench_.bytes(), bucket_bytes),
                                 .have = {},
                                 .into = {},
                                 .hold = nullptr};
  const Stopwatch watch;
  WSYNC_TRY(sink_->receive(std::move(wanted), loop_.callbacks()));
  auto arrived = loop_.wait();
  Times times{.hand_over = watch.stop().wall, .all = {}};
  if (!arrived) return fail(arrived.error());
  if (!*arrived) return fail(ErrorCode::kInternal, "the memfd transport handed over no arena");
  const auto data = (*arrived)->data();
  if (data.size() != bench_.bytes())
    return fail(ErrorCode::kInternal,
                fmt::format("the memfd transport handed over {} bytes, expected {}", data.size(),
                            bench_.bytes()));
  copy_streaming(bench_.target(), data);
  times.all = watch.stop();
  source_->withdraw(key.version, "the measurement is over");
  WSYNC_TRY(bench_.check_arrived());
  return times;
}

}  // namespace wsync::bench
