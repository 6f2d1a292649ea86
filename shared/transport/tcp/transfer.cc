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
Transfer::Transfer(FetchRequest wanted, TcpAddress source, ChannelMaker make_channel,
                   TransferEvents events)
    : is_alone_(wanted.wants_changes_alone()),
      wanted_(std::move(wanted)),
      source_(std::move(source)),
      make_channel_(std::move(make_channel)),
      events_(std::move(events)) {
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
    streams_.push_back(std::make_shared<TransferStream>(shared_from_this(), make_channel_()));
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
       .first_missing = static_cast<std::uint64_t>(first - wanted_.have.begin()),
       .needs_memory = needs_memory_,
       .unlike = unlike_});
}

std::optional<std::uint64_t> Transfer::next_to_ask() {
  if (planted("skipped_bucket") && cursor_ == 1 && !wanted_.have[1]) {
    wanted_.have[1] = true;
    --missing_;
  }
  while (cursor_ < wanted_.have.size()) {
    const std::uint64_t next = wanted_.order.empty() ? cursor_ : wanted_.order[cursor_];
    ++cursor_;
    if (!wanted_.have[next]) return next;
  }
  return std::nullopt;
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

Result<PayloadPlace> Transfer::leaves_at(std::uint64_t bucket, std::size_t first,
                                         std::uint64_t offset, std::uint64_t bytes) const {
  const BucketWindow window = wanted_.buckets[bucket];
  const auto all = wanted_.leaves->bucket(bucket);
  std::size_t last = first;
  const std::uint64_t end = offset + bytes;
  while (last < all.size() && all[last].arena_offset - window.offset < end) ++last;
  const bool is_last = last == all.size();
  const std::uint64_t end_of_last = is_last ? window.bytes : all[last].arena_offset - window.offset;
  if (last == first || end != end_of_last)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the source sent {} bytes of leaves of bucket {} from byte {} on, "
                            "which do not end where a leaf ends",
                            bytes, bucket, offset));
  return PayloadPlace{.bytes = wanted_.into.subspan(window.offset + offset, bytes),
                      .leaves = all.subspan(first, last - first),
                      .arena_offset = window.offset + offset,
                      .arena = wanted_.into};
}

Frame Transfer::request_for(std::uint64_t bucket) const {
  const std::uint64_t bytes = wanted_.buckets[bucket].bytes;
  Frame get{.type = FrameType::kGet,
            .key = wanted_.key,
            .bucket = bucket,
            .bytes = bytes,
            .takes_leaves = !is_older_source_ && bytes > limits::kStreamLeavesBytes,
            .takes_changes_alone = !is_older_source_ && is_alone_};
  if (!wanted_.base || (!wanted_.in_full.empty() && wanted_.in_full[bucket])) return get;
  get.base = wanted_.base->version;
  get.changes_max = is_alone_ ? changes_allowed(get.bytes) : share_of(get.bytes);
  return get;
}

std::uint64_t Transfer::share_of(std::uint64_t bytes) const {
  return static_cast<std::uint64_t>(wanted_.base->max_share * static_cast<double>(bytes));
}

// A bucket may have changed as a whole if those before it have left enough. If all of them have,
// the first one tells it, and its source needs to compare only a few blocks for that.
std::uint64_t Transfer::changes_allowed(std::uint64_t bucket_bytes) const {
  const std::uint64_t share = share_of(covered_bytes_ + bucket_bytes);
  const std::uint64_t left = share - std::min(share, changes_bytes_);
  return std::min(limits::stream_changes_bytes_max(bucket_bytes),
                  std::max(limits::kStreamChangesSmallBytes, left));
}

Result<std::vector<WordSum>> Transfer::sums_with(std::uint64_t bucket,
                                                 std::span<const std::byte> changes) const {
  const FetchBase& base = *wanted_.base;
  const auto leaves = wanted_.leaves->bucket(bucket);
  const auto blocks = WSYNC_TRY(patch::read_leaf_changes(*base.blocks, leaves, changes));
  if (!is_alone_)
    return patch::apply_leaf_changes(*base.blocks, leaves, blocks, base.data, wanted_.into);
  return patch::sum_leaf_changes(*base.blocks, leaves, blocks, base.data,
                                 base.sums.subspan(wanted_.leaves->first(bucket), leaves.size()));
}

bool Transfer::use_changes(ArrivedFrame& arrived, std::span<const std::byte> changes) {
  if (!wanted_.base) return false;  // another bucket has found that it cannot be used
  const std::uint64_t bucket = arrived.frame.bucket;
  auto sums = sums_with(bucket, changes);
  if (sums) {
    arrived.computed = bucket_digest(*sums);
    arrived.sums = std::move(*sums);
    if (arrived.computed == arrived.promised || planted("changes_not_proven")) return true;
    if (is_alone_ && planted("changes_alone_not_proven")) {
      arrived.computed = arrived.promised;
      return true;
    }
  }
  const std::string why =
      sums ? fmt::format("it has digest {}, its source says {}", arrived.computed.to_string(),
                         arrived.promised.to_string())
           : sums.error().message();
  const std::string version = wanted_.base->version.to_string();
  if (is_alone_) {
    fail_with(needs_memory(fmt::format(
        "bucket {} is not what {} has with its changes: {}; `wsync verify` says whether the copy "
        "of {} is damaged",
        bucket, version, why, version)));
    return false;
  }
  log_warning(
      "bucket {} of version {} cannot be made of {} and its changes: {}. The rest is fetched in "
      "full; `wsync verify` says whether the copy of {} is damaged",
      bucket, wanted_.key.version.to_string(), version, why, version);
  wanted_.base.reset();
  return false;
}

Error Transfer::needs_memory(std::string_view why, const Version& unlike) {
  needs_memory_ = true;
  unlike_ = unlike;
  return {ErrorCode::kRefused, fmt::format("the version cannot come as changes alone: {}", why)};
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
  covered_bytes_ += wanted_.buckets[bucket].bytes;
  changes_bytes_ += arrived.frame.bytes;
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

TransferStream::TransferStream(std::shared_ptr<Transfer> transfer, std::shared_ptr<Channel> channel)
    : transfer_(std::move(transfer)),
      channel_(std::move(channel)),
      reader_([this](const Frame& frame) { return accept(frame); }),
      last_heard_(now()) {}

void TransferStream::connect(uv_loop_t* loop, const TcpAddress& source) {
  if (is_closing_) return;  // another stream has failed already
  self_ = shared_from_this();
  channel_->connect(loop, source,
                    {.on_open = [this] { on_open(); },
                     .next = [this] { return reader_.next(); },
                     .on_read = [this](std::size_t n) { on_read(n); },
                     .on_written = [this] { on_written(); },
                     .on_end = [this](const Error& why) { transfer_->fail_with(why); },
                     .on_closed = [this] { const auto keep = std::move(self_); }});
}

void TransferStream::close() {
  if (is_closing_) return;
  is_closing_ = true;
  channel_->close();
}

bool TransferStream::is_stalled(TimePoint at) const {
  const bool is_expected = !is_connected_ || !asked_.empty();
  return !is_closing_ && is_expected && at - last_heard_ > transfer_->wanted().stall_deadline;
}

void TransferStream::on_open() {
  is_connected_ = true;
  last_heard_ = now();
  ask();
}

// Keeps kStreamRequestsAhead requests open. A stream that has nothing more to request is closed.
void TransferStream::ask() {
  while (!is_closing_ && asked_.size() < limits::kStreamRequestsAhead) {
    const auto bucket = transfer_->next_to_ask();
    if (!bucket) break;
    asked_.push_back({.frame = transfer_->request_for(*bucket), .bytes = 0, .sums = {}});
    send(asked_.back().frame);
  }
  if (asked_.empty()) close();
}

void TransferStream::send(const Frame& request) {
  const auto bytes = encode_frame(request);
  outbox_.insert(outbox_.end(), bytes.begin(), bytes.end());
  if (sending_.empty()) on_written();
}

void TransferStream::on_written() {
  sending_.clear();
  if (is_closing_ || outbox_.empty()) return;
  sending_.swap(outbox_);
  const std::array<std::span<const std::byte>, 1> pieces{sending_};
  channel_->write(pieces);
}

void TransferStream::on_read(std::size_t n) {
  if (is_closing_) return;
  last_heard_ = now();
  auto arrived = reader_.advance(n);
  if (!arrived) return transfer_->fail_with(std::move(arrived).error());
  if (*arrived) handle(std::move(**arrived));
}

std::deque<TransferStream::Asked>::iterator TransferStream::asked_for(std::uint64_t bucket) {
  return std::ranges::find(asked_, bucket, [](const Asked& asked) { return asked.frame.bucket; });
}

Result<PayloadPlace> TransferStream::accept_leaves(const Frame& frame, const Asked& asked) const {
  if (!asked.frame.takes_leaves)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the source sent leaves of bucket {}, which was asked for as a whole",
                            frame.bucket));
  const bool is_next = frame.offset == asked.bytes || planted("leaves_from_any_byte");
  if (!is_next || frame.bytes > asked.frame.bytes - frame.offset)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("the source sent {} bytes of leaves of bucket {} from byte {} on, of "
                    "whose {} bytes {} have arrived",
                    frame.bytes, frame.bucket, frame.offset, asked.frame.bytes, asked.bytes));
  return transfer_->leaves_at(frame.bucket, asked.sums.size(), frame.offset, frame.bytes);
}

Result<PayloadPlace> TransferStream::accept(const Frame& frame) {
  const auto asked = asked_for(frame.bucket);
  if (frame.type == FrameType::kGet || frame.type == FrameType::kArena ||
      frame.key != transfer_->wanted().key || asked == asked_.end())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the source sent version {}, bucket {}, which was not asked for",
                            frame.key.version.to_string(), frame.bucket));
  if (frame.type == FrameType::kChanges) {
    // An older source takes the two bits behind the limit for a high one, so it may send more.
    const bool has_bits = asked->frame.takes_leaves || asked->frame.takes_changes_alone;
    const std::uint64_t max =
        has_bits ? limits::stream_changes_bytes_max(asked->frame.bytes) : asked->frame.changes_max;
    if (frame.base == asked->frame.base && frame.bytes > asked->frame.changes_max) {
      if (transfer_->wants_changes_alone())
        return fail(transfer_->needs_memory(
            fmt::format("of bucket {} they are {} bytes, where at most {} are wanted", frame.bucket,
                        frame.bytes, asked->frame.changes_max)));
      transfer_->note_older_source();
    }
    if (frame.base != asked->frame.base || frame.bytes > max)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("the source sent {} bytes of changes from {} for bucket {}, at most "
                              "{} from {} were asked for",
                              frame.bytes, frame.base.to_string(), frame.bucket,
                              asked->frame.changes_max, asked->frame.base.to_string()));
    changes_.resize(frame.bytes);
    return PayloadPlace{.bytes = changes_};
  }
  if (frame.type != FrameType::kBucket && frame.type != FrameType::kLeaves) return PayloadPlace{};
  // There is no place for its payload, so it is not read.
  if (transfer_->wants_changes_alone())
    return fail(transfer_->needs_memory(
        fmt::format("the source sends bucket {} in full, because it does not hold {} or because "
                    "too much has changed",
                    frame.bucket, asked->frame.base.to_string()),
        frame.base));
  if (frame.type == FrameType::kLeaves) return accept_leaves(frame, *asked);
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
      if (transfer_->wants_changes_alone() && arrived.frame.code == ErrorCode::kResourceExhausted)
        return transfer_->fail_with(
            transfer_->needs_memory(arrived.text, asked_.front().frame.base));
      return transfer_->fail_with(Error(arrived.frame.code, arrived.text));
    case FrameType::kChanges:
      if (!transfer_->use_changes(arrived, changes_)) {
        if (is_closing_) return;
        Asked& again = *asked_for(arrived.frame.bucket);
        again = {.frame = transfer_->request_for(arrived.frame.bucket), .bytes = 0, .sums = {}};
        return send(again.frame);
      }
      asked_.erase(asked_for(arrived.frame.bucket));
      transfer_->bucket_arrived(std::move(arrived),
                                std::make_shared<const Bytes>(std::exchange(changes_, {})));
      return ask();
    case FrameType::kLeaves:
      return handle_leaves(std::move(arrived));
    case FrameType::kBucket:
      asked_.erase(asked_for(arrived.frame.bucket));
      transfer_->bucket_arrived(std::move(arrived));
      return ask();
    case FrameType::kGet:
    case FrameType::kArena:
      WSYNC_CHECK(false, "accept() lets no request through");
  }
}

// Nobody else may read them before they are proven. So they are compared here, and not only when
// the bucket is complete.
void TransferStream::handle_leaves(ArrivedFrame arrived) {
  Frame& frame = arrived.frame;
  if (arrived.computed != arrived.promised && !planted("leaves_not_compared"))
    return transfer_->fail_with(
        Error(ErrorCode::kDigestMismatch,
              fmt::format("leaves of bucket {} from byte {} on arrived with digest {}, the source "
                          "says {}",
                          frame.bucket, frame.offset, arrived.computed.to_string(),
                          arrived.promised.to_string())));
  const auto asked = asked_for(frame.bucket);
  const std::size_t first = asked->sums.size();
  asked->sums.insert(asked->sums.end(), arrived.sums.begin(), arrived.sums.end());
  asked->bytes += frame.bytes;
  if (asked->bytes < asked->frame.bytes)
    return transfer_->leaves_arrived({.bucket = frame.bucket,
                                      .first = first,
                                      .sums = std::move(arrived.sums),
                                      .unlike = frame.base});
  frame.bytes = asked->bytes;
  arrived.sums = std::move(asked->sums);
  arrived.computed = arrived.promised = bucket_digest(arrived.sums);
  asked_.erase(asked);
  transfer_->bucket_arrived(std::move(arrived));
  ask();
}

}  // namespace wsync::transport::tcp
