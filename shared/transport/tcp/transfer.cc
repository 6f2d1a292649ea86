#include "shared/transport/tcp/transfer.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/uv_thread.h"
#include "shared/weights/patch/leaf_changes.h"

namespace wsync::transport::tcp {
namespace {

TransferStream* stream_of(void* data) { return static_cast<TransferStream*>(data); }

// A request that is being sent. The write callback frees it.
struct GetWrite {
  uv_write_t request{};
  std::array<std::byte, kFrameBytes> bytes{};
};

}  // namespace

Transfer::Transfer(FetchRequest wanted, TcpAddress source, TransferEvents events)
    : wanted_(std::move(wanted)), source_(std::move(source)), events_(std::move(events)) {
  wanted_.have.resize(wanted_.buckets.size(), false);
  missing_ = static_cast<std::uint64_t>(std::ranges::count(wanted_.have, false));
  is_attached_again_ = missing_ != wanted_.have.size();
}

void Transfer::start(uv_loop_t* loop, std::uint64_t streams) {
  WSYNC_CHECK(uv_timer_init(loop, &timer_) == 0, "a timer can be initialised");
  timer_.data = this;
  timer_holds_ = shared_from_this();
  if (missing_ == 0) {
    finish();
    return events_.on_done();
  }
  uv_timer_start(
      &timer_, [](uv_timer_t* timer) { static_cast<Transfer*>(timer->data)->tick(); },
      limits::kStreamWaitingMs, limits::kStreamWaitingMs);
  for (std::uint64_t i = 0; i < std::min(streams, missing_); ++i)
    streams_.push_back(std::make_shared<TransferStream>(shared_from_this()));
  // A copy: a connect that fails at once ends the transfer, which clears streams_.
  for (const auto& stream : std::vector(streams_)) stream->connect(loop, source_);
}

void Transfer::stop() {
  if (!is_over_) finish();
}

// Closing a handle ends its reads at once. From here on nothing is written to the destination.
void Transfer::finish() {
  is_over_ = true;
  wanted_.hold.reset();
  wanted_.base.reset();
  for (const auto& stream : streams_) stream->close();
  streams_.clear();
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), [](uv_handle_t* handle) {
    const auto keep = std::move(static_cast<Transfer*>(handle->data)->timer_holds_);
  });
}

void Transfer::fail_with(Error error) {
  if (is_over_) return;
  finish();
  const auto first = std::ranges::find(wanted_.have, false);
  events_.on_failure(
      {.error = error.with_context(fmt::format(
           "receive version {} from {}", wanted_.key.version.to_string(), source_.to_string())),
       .first_missing = static_cast<std::uint64_t>(first - wanted_.have.begin())});
}

std::optional<std::uint64_t> Transfer::next_to_ask() {
  while (cursor_ < wanted_.have.size() && wanted_.have[cursor_]) ++cursor_;
  if (planted("skipped_bucket") && cursor_ == 1 && !wanted_.have[1]) {
    wanted_.have[cursor_++] = true;
    --missing_;
  }
  if (cursor_ == wanted_.have.size()) return std::nullopt;
  return cursor_++;
}

PayloadPlace Transfer::destination(std::uint64_t bucket) const {
  BucketWindow window = wanted_.buckets[bucket];
  const std::uint64_t offset = window.offset;
  // Planted fault: after a resume, every bucket goes to the offset of the first bucket.
  if (planted("reattach_offset") && is_attached_again_) window.offset = wanted_.buckets[0].offset;
  return {.bytes = wanted_.into.subspan(window.offset, window.bytes),
          .leaves = wanted_.leaves->bucket(bucket),
          .arena_offset = offset,
          .arena = wanted_.into};
}

Frame Transfer::request_for(std::uint64_t bucket) const {
  Frame get{.type = FrameType::kGet,
            .key = wanted_.key,
            .bucket = bucket,
            .bytes = wanted_.buckets[bucket].bytes};
  if (!wanted_.base) return get;
  get.base = wanted_.base->version;
  get.changes_max =
      static_cast<std::uint64_t>(wanted_.base->max_share * static_cast<double>(get.bytes));
  return get;
}

bool Transfer::apply_changes(ArrivedFrame& arrived, std::span<const std::byte> changes) {
  if (!wanted_.base) return false;  // another bucket has found that it cannot be used
  const FetchBase& base = *wanted_.base;
  const auto leaves = wanted_.leaves->bucket(arrived.frame.bucket);
  const auto apply = [&]() -> Result<std::vector<WordSum>> {
    const auto blocks = WSYNC_TRY(patch::read_leaf_changes(*base.blocks, leaves, changes));
    return patch::apply_leaf_changes(*base.blocks, leaves, blocks, base.data, wanted_.into);
  };
  auto sums = apply();
  if (sums) {
    arrived.computed = bucket_digest(*sums);
    arrived.sums = std::move(*sums);
    if (arrived.computed == arrived.promised || planted("changes_not_proven")) return true;
  }
  log_warning(
      "bucket {} of version {} cannot be made of {} and its changes: {}. The rest is fetched in "
      "full; `wsync verify` says whether the copy of {} is damaged",
      arrived.frame.bucket, wanted_.key.version.to_string(), base.version.to_string(),
      sums ? fmt::format("it has digest {}, its source says {}", arrived.computed.to_string(),
                         arrived.promised.to_string())
           : sums.error().message(),
      base.version.to_string());
  wanted_.base.reset();
  return false;
}

void Transfer::bucket_arrived(ArrivedFrame arrived, std::shared_ptr<const Bytes> changes) {
  if (is_over_) return;
  const std::uint64_t bucket = arrived.frame.bucket;
  if (arrived.computed != arrived.promised && !planted("bucket_digest_not_compared"))
    return fail_with(
        Error(ErrorCode::kDigestMismatch,
              fmt::format("bucket {} arrived with digest {}, its source says {}", bucket,
                          arrived.computed.to_string(), arrived.promised.to_string())));
  wanted_.have[bucket] = true;
  --missing_;
  events_.on_bucket({.bucket = bucket,
                     .digest = arrived.promised,
                     .sums = std::move(arrived.sums),
                     .changes = std::move(changes),
                     .payload_bytes = arrived.frame.bytes});
  if (missing_ != 0) return;
  finish();
  events_.on_done();
}

void Transfer::tick() {
  const TimePoint at = now();
  const bool is_stalled =
      std::ranges::any_of(streams_, [&](const auto& stream) { return stream->is_stalled(at); });
  if (is_stalled)
    fail_with(Error(ErrorCode::kDeadline, fmt::format("the source was silent for {} ms",
                                                      wanted_.stall_deadline.count())));
}

TransferStream::TransferStream(std::shared_ptr<Transfer> transfer)
    : transfer_(std::move(transfer)),
      reader_([this](const Frame& frame) { return accept(frame); }),
      last_heard_(now()) {}

void TransferStream::connect(uv_loop_t* loop, const TcpAddress& source) {
  if (is_closing_) return;  // another stream has failed already
  WSYNC_CHECK(uv_tcp_init(loop, &handle_) == 0, "a TCP handle can be initialised");
  handle_.data = this;
  connect_.data = this;
  self_ = shared_from_this();
  sockaddr_storage where{};
  const bool is_ipv6 = source.host.find(':') != std::string::npos;
  const int parsed =
      is_ipv6
          ? uv_ip6_addr(source.host.c_str(), source.port, reinterpret_cast<sockaddr_in6*>(&where))
          : uv_ip4_addr(source.host.c_str(), source.port, reinterpret_cast<sockaddr_in*>(&where));
  WSYNC_CHECK(parsed == 0, "the address was parsed before");
  const int rc = uv_tcp_connect(
      &connect_, &handle_, reinterpret_cast<const sockaddr*>(&where),
      [](uv_connect_t* request, int status) { stream_of(request->data)->on_connected(status); });
  if (rc != 0) on_connected(rc);
}

void TransferStream::close() {
  if (is_closing_) return;
  is_closing_ = true;
  if (!self_) return;  // never connected
  uv_close(reinterpret_cast<uv_handle_t*>(&handle_), [](uv_handle_t* handle) {
    const auto keep = std::move(stream_of(handle->data)->self_);
  });
}

bool TransferStream::is_stalled(TimePoint at) const {
  const bool is_expected = !is_connected_ || !asked_.empty();
  return !is_closing_ && is_expected && at - last_heard_ > transfer_->wanted().stall_deadline;
}

void TransferStream::on_connected(int status) {
  if (is_closing_) return;
  if (status != 0)
    return transfer_->fail_with(Error(ErrorCode::kPeerLost, uv_sentence("connect", status)));
  is_connected_ = true;
  last_heard_ = now();
  uv_tcp_nodelay(&handle_, 1);
  const int rc = uv_read_start(
      reinterpret_cast<uv_stream_t*>(&handle_),
      [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
        const auto next = stream_of(handle->data)->reader_.next();
        // Small slices are still in the cache when they are summed.
        const std::size_t n = std::min<std::size_t>(next.size(), limits::kStreamSliceBytes);
        *buffer = uv_buf_init(reinterpret_cast<char*>(next.data()), static_cast<unsigned>(n));
      },
      [](uv_stream_t* from, ssize_t n, const uv_buf_t*) { stream_of(from->data)->on_read(n); });
  if (rc != 0) return transfer_->fail_with(Error(ErrorCode::kIo, uv_sentence("read", rc)));
  ask();
}

// Keeps kStreamRequestsAhead requests open. A stream that has nothing more to request is closed.
void TransferStream::ask() {
  while (!is_closing_ && asked_.size() < limits::kStreamRequestsAhead) {
    const auto bucket = transfer_->next_to_ask();
    if (!bucket) break;
    asked_.push_back(transfer_->request_for(*bucket));
    send(asked_.back());
  }
  if (asked_.empty()) close();
}

void TransferStream::send(const Frame& request) {
  auto* get = new GetWrite;  // freed by the callback, which always runs
  get->bytes = encode_frame(request);
  get->request.data = get;
  const uv_buf_t buffer = uv_buf_init(reinterpret_cast<char*>(get->bytes.data()), kFrameBytes);
  const int rc =
      uv_write(&get->request, reinterpret_cast<uv_stream_t*>(&handle_), &buffer, 1,
               [](uv_write_t* written, int) {
                 const std::unique_ptr<GetWrite> done(static_cast<GetWrite*>(written->data));
               });
  if (rc == 0) return;
  delete get;
  transfer_->fail_with(Error(ErrorCode::kPeerLost, uv_sentence("ask", rc)));
}

void TransferStream::on_read(ssize_t n) {
  if (is_closing_ || n == 0) return;
  if (n < 0)
    return transfer_->fail_with(
        Error(ErrorCode::kPeerLost, n == UV_EOF ? std::string("the source closed the connection")
                                                : uv_sentence("read", static_cast<int>(n))));
  last_heard_ = now();
  auto arrived = reader_.advance(static_cast<std::size_t>(n));
  if (!arrived) return transfer_->fail_with(std::move(arrived).error());
  if (*arrived) handle(std::move(**arrived));
}

std::deque<Frame>::iterator TransferStream::asked_for(std::uint64_t bucket) {
  return std::ranges::find(asked_, bucket, &Frame::bucket);
}

Result<PayloadPlace> TransferStream::accept(const Frame& frame) {
  const auto asked = asked_for(frame.bucket);
  if (frame.type == FrameType::kGet || frame.type == FrameType::kArena ||
      frame.key != transfer_->wanted().key || asked == asked_.end())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the source sent version {}, bucket {}, which was not asked for",
                            frame.key.version.to_string(), frame.bucket));
  if (frame.type == FrameType::kChanges) {
    if (frame.base != asked->base || frame.bytes > asked->changes_max)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the source sent {} bytes of changes from {} for bucket {}, at most "
                              "{} from {} were asked for",
                              frame.bytes, frame.base.to_string(), frame.bucket, asked->changes_max,
                              asked->base.to_string()));
    changes_.resize(frame.bytes);
    return PayloadPlace{.bytes = changes_};
  }
  if (frame.type != FrameType::kBucket) return PayloadPlace{};
  const auto destination = transfer_->destination(frame.bucket);
  if (destination.bytes.size() != frame.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the source sent {} bytes for bucket {}, expected {}", frame.bytes,
                            frame.bucket, destination.bytes.size()));
  return destination;
}

void TransferStream::handle(ArrivedFrame arrived) {
  switch (arrived.frame.type) {
    case FrameType::kWaiting:
      return;
    case FrameType::kFailure:
      return transfer_->fail_with(Error(arrived.frame.code, arrived.text));
    case FrameType::kChanges:
      if (!transfer_->apply_changes(arrived, changes_)) {
        Frame& again = *asked_for(arrived.frame.bucket);
        again = transfer_->request_for(arrived.frame.bucket);
        return send(again);
      }
      asked_.erase(asked_for(arrived.frame.bucket));
      transfer_->bucket_arrived(std::move(arrived),
                                std::make_shared<const Bytes>(std::exchange(changes_, {})));
      return ask();
    case FrameType::kBucket:
      asked_.erase(asked_for(arrived.frame.bucket));
      transfer_->bucket_arrived(std::move(arrived));
      return ask();
    case FrameType::kGet:
    case FrameType::kArena:
      WSYNC_CHECK(false, "accept() lets no request through");
  }
}

}  // namespace wsync::transport::tcp
