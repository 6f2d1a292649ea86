#include "shared/transport/tcp/source_connection.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/transport/limits.h"

namespace wsync::transport::tcp {
namespace {

Result<PayloadPlace> accept_get(const Frame& frame) {
  if (frame.type == FrameType::kGet) return PayloadPlace{};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a receiver sent a frame of type {}, expected a request",
                          static_cast<int>(frame.type)));
}

}  // namespace

SourceConnection::SourceConnection(std::shared_ptr<SourceShared> shared,
                                   std::shared_ptr<Channel> channel)
    : shared_(std::move(shared)),
      channel_(std::move(channel)),
      reader_(accept_get),
      last_progress_(now()) {}

bool SourceConnection::accept(uv_loop_t* loop, uv_stream_t* listener) {
  self_ = shared_from_this();
  return channel_->accept(loop, listener,
                          {.on_open =
                               [this] {
                                 is_open_ = true;
                                 last_progress_ = now();
                                 pump();
                               },
                           .next = [this] { return reader_.next(); },
                           .on_read = [this](std::size_t n) { on_read(n); },
                           .on_written = [this] { on_written(); },
                           .on_end = [this](const Error&) { close(); },
                           .on_closed =
                               [this] {
                                 const auto keep = std::move(self_);
                                 on_closed_();
                               }});
}

void SourceConnection::close_if_older_than(const StreamFence& fence) {
  if (channel_->is_older_than(fence)) close();
}

void SourceConnection::close() {
  if (std::exchange(closing_, true)) return;
  channel_->close();
}

void SourceConnection::close_as_garbage(const Error& error) {
  ++shared_->counters.garbage_peers;
  log_warning("data connection closed: {}", error.message());
  close();
}

void SourceConnection::on_read(std::size_t n) {
  if (closing_) return;
  auto arrived = reader_.advance(n);
  if (!arrived) return close_as_garbage(arrived.error());
  if (!*arrived) return;
  if (pending_.size() >= limits::kStreamRequestsPending)
    return close_as_garbage(
        Error(ErrorCode::kInvalidInput,
              fmt::format("more than {} requests at a time", limits::kStreamRequestsPending)));
  last_progress_ = now();
  pending_.push_back({.frame = (*arrived)->frame, .since = last_progress_});
  pump();
}

void SourceConnection::pump() {
  if (closing_ || !is_open_ || writing_ == Writing::kPayload) return;
  for (auto request = pending_.begin(); request != pending_.end();) {
    auto offered = shared_->offers.find(request->frame.key.version);
    if (!offered) {
      ++request;
      continue;
    }
    if (auto judged = shared_->offers.judge(*offered, request->frame); !judged) {
      answer(*request, judged.error());
      request = pending_.erase(request);
      continue;
    }
    const bool is_done = writing_ == Writing::kNothing && start(offered, *request);
    request = is_done ? pending_.erase(request) : std::next(request);
    if (writing_ == Writing::kPayload) return;
  }
  if (outbox_.size() > limits::kStreamRequestsPending * limits::kStreamTextBytes)
    return close_as_garbage(Error(ErrorCode::kInvalidInput,
                                  "request after request that cannot be served, answers unread"));
  if (writing_ == Writing::kNothing && !outbox_.empty()) {
    writing_ = Writing::kSmall;
    small_.swap(outbox_);
    write({small_});
  }
}

void SourceConnection::answer(const Request& request, const Error& error) {
  ++shared_->counters.refused;
  const auto header = encode_frame(failure_frame(request.frame, error));
  outbox_.insert(outbox_.end(), header.begin(), header.end());
  const auto text = std::as_bytes(std::span(failure_text(error)));
  outbox_.insert(outbox_.end(), text.begin(), text.end());
}

void SourceConnection::withdraw(Version version, const std::string& reason) {
  std::deque<Request> kept;
  for (const Request& request : pending_) {
    if (request.frame.key.version == version)
      answer(request, Error(ErrorCode::kCancelled, reason));
    else
      kept.push_back(request);
  }
  pending_ = std::move(kept);
  pump();
}

bool SourceConnection::start(const std::shared_ptr<Offered>& offered, Request& request) {
  const Frame& get = request.frame;
  const bool is_ready = offered->ready[get.bucket];
  // Changes are made of a bucket that is here as a whole.
  if (is_ready && request.leaf == 0) changes_ = shared_->offers.changes(*offered, get);
  const Likeness likeness = shared_->offers.likeness(*offered, get);
  const bool sends_leaves =
      get.takes_leaves && !changes_ && (likeness != Likeness::kNotYet || request.leaf != 0);
  const auto leaves = sends_leaves ? offered->leaves_from(get.bucket, request.leaf) : std::nullopt;
  if (!leaves) return is_ready && start_bucket(offered, request);
  Frame frame = get;
  frame.type = FrameType::kLeaves;
  frame.offset = leaves->window.offset - offered->offer.buckets[get.bucket].offset;
  frame.bytes = leaves->window.bytes;
  if (likeness != Likeness::kUnlike || planted("too_much_change_is_not_said")) frame.base = {};
  request.leaf += leaves->sums.size();
  ends_bucket_ = request.leaf == offered->leaf_count(get.bucket);
  offered_ = offered;
  start_payload(frame, offered->offer.data.subspan(leaves->window.offset, leaves->window.bytes),
                bucket_digest(leaves->sums));
  return ends_bucket_;
}

bool SourceConnection::start_bucket(const std::shared_ptr<Offered>& offered,
                                    const Request& request) {
  Frame frame = request.frame;
  if (!changes_ && offered->has_changes_alone()) {
    auto composed = shared_->offers.compose(*offered, frame.bucket);
    if (!composed) {
      answer(request, composed.error());
      return true;
    }
    composed_ = std::move(*composed);
  }
  const BucketWindow window = offered->offer.buckets[frame.bucket];
  const Digest digest = offered->digest_of_bucket(frame.bucket);
  frame.type = changes_ ? FrameType::kChanges : FrameType::kBucket;
  frame.changes_max = 0;
  if (!changes_) frame.base = {};
  ends_bucket_ = true;
  offered_ = offered;
  if (changes_) {
    frame.bytes = changes_->size();
    start_payload(frame, *changes_, digest);
  } else if (composed_) {
    start_payload(frame, *composed_, digest);
  } else {
    start_payload(frame, offered->offer.data.subspan(window.offset, window.bytes), digest);
  }
  return true;
}

void SourceConnection::start_payload(Frame header, std::span<const std::byte> payload,
                                     const Digest& digest) {
  writing_ = Writing::kPayload;
  payload_ = payload;
  sent_ = 0;
  trailer_sent_ = false;
  header_ = encode_frame(header);
  trailer_ = encode_trailer(digest);
  small_.swap(outbox_);  // pending failures are sent first
  write_next_slice(header_);
}

void SourceConnection::write_next_slice(std::span<const std::byte> header) {
  const std::uint64_t n = std::min(limits::kStreamSliceBytes, payload_.size() - sent_);
  const auto slice = payload_.subspan(sent_, n);
  sent_ += n;
  trailer_sent_ = sent_ == payload_.size();
  if (trailer_sent_ && ends_bucket_) {
    ++shared_->counters.buckets;
    if (changes_) ++shared_->counters.changes;
  }
  // The pieces that are not due are empty. `small_` is so after the first slice.
  write({small_, header, slice,
         trailer_sent_ ? std::span<const std::byte>(trailer_) : std::span<const std::byte>()});
}

void SourceConnection::write(std::initializer_list<std::span<const std::byte>> pieces) {
  for (const auto& piece : pieces) shared_->counters.wire_bytes += piece.size();
  channel_->write(std::span(pieces.begin(), pieces.size()));
}

void SourceConnection::on_written() {
  if (closing_) return;
  last_progress_ = now();
  small_.clear();
  if (writing_ == Writing::kPayload && !trailer_sent_) return write_next_slice({});
  payload_ = {};
  changes_.reset();
  composed_.reset();
  writing_ = Writing::kNothing;
  offered_.reset();
  pump();
}

void SourceConnection::tick(TimePoint at) {
  if (closing_) return;
  // During a write, or without a request, it is the peer that must act: read, or ask.
  if (writing_ != Writing::kNothing || pending_.empty()) {
    if (at - last_progress_ > shared_->stall_deadline) close();
    return;
  }
  std::erase_if(pending_, [&](const Request& request) {
    const bool is_late = !shared_->offers.find(request.frame.key.version) &&
                         at - request.since > shared_->offer_wait;
    if (is_late) answer(request, not_offered(request.frame.key.version));
    return is_late;
  });
  // A keep-alive: the sink would treat a longer silence as a stall.
  if (!pending_.empty() && outbox_.empty()) {
    Frame waiting = pending_.front().frame;
    waiting.type = FrameType::kWaiting;
    waiting.bytes = 0;
    waiting.base = {};
    waiting.changes_max = 0;
    const auto header = encode_frame(waiting);
    outbox_.assign(header.begin(), header.end());
  }
  pump();
}

}  // namespace wsync::transport::tcp
