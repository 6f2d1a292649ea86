#include "shared/transport/tcp/source_connection.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
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
  if (closing_ || !is_open_ || writing_ == Writing::kBucket) return;
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
    if (writing_ == Writing::kNothing && offered->ready[request->frame.bucket]) {
      const Request taken = *request;
      request = pending_.erase(request);
      if (start_bucket(std::move(offered), taken)) return;
      continue;
    }
    ++request;
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

bool SourceConnection::start_bucket(std::shared_ptr<Offered> offered, const Request& request) {
  changes_ = shared_->offers.changes(*offered, request.frame);
  if (!changes_ && offered->has_changes_alone()) {
    auto composed = shared_->offers.compose(*offered, request.frame.bucket);
    if (!composed) {
      answer(request, composed.error());
      return false;
    }
    composed_ = std::move(*composed);
  }
  writing_ = Writing::kBucket;
  offered_ = std::move(offered);
  bucket_ = request.frame.bucket;
  sent_ = 0;
  trailer_sent_ = false;
  Frame frame = request.frame;
  frame.type = FrameType::kBucket;
  frame.changes_max = 0;
  if (changes_) {
    frame.type = FrameType::kChanges;
    frame.bytes = changes_->size();
  } else {
    frame.base = {};
  }
  header_ = encode_frame(frame);
  small_.swap(outbox_);  // pending failures are sent first
  write({small_, header_});
  return true;
}

std::span<const std::byte> SourceConnection::payload() const {
  if (changes_) return *changes_;
  if (composed_) return *composed_;
  const BucketWindow window = offered_->offer.buckets[bucket_];
  return offered_->offer.data.subspan(window.offset, window.bytes);
}

void SourceConnection::write_next_slice() {
  const std::span<const std::byte> payload = this->payload();
  const std::uint64_t n = std::min(limits::kStreamSliceBytes, payload.size() - sent_);
  if (n == 0) {
    trailer_ = encode_trailer(offered_->digest_of_bucket(bucket_));
    trailer_sent_ = true;
    return write({trailer_});
  }
  const auto slice = payload.subspan(sent_, n);
  sent_ += n;
  write({slice});
}

void SourceConnection::write(std::initializer_list<std::span<const std::byte>> pieces) {
  in_flight_bytes_ = 0;
  for (const auto& piece : pieces) in_flight_bytes_ += piece.size();
  channel_->write(std::span(pieces.begin(), pieces.size()));
}

void SourceConnection::on_written() {
  if (closing_) return;
  last_progress_ = now();
  shared_->counters.wire_bytes += in_flight_bytes_;
  small_.clear();
  if (writing_ == Writing::kBucket && !trailer_sent_) return write_next_slice();
  if (writing_ == Writing::kBucket) {
    ++shared_->counters.buckets;
    if (changes_) ++shared_->counters.changes;
  }
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
