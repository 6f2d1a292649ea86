#include "shared/transport/tcp/source_connection.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/transport/limits.h"

namespace wsync::transport::tcp {
namespace {

uv_buf_t buffer_of(std::span<const std::byte> bytes) {
  // libuv does not write through the pointer of an outgoing buffer.
  auto* base = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
  return uv_buf_init(base, static_cast<unsigned>(bytes.size()));
}

SourceConnection* connection_of(void* data) { return static_cast<SourceConnection*>(data); }

Result<PayloadPlace> accept_get(const Frame& frame) {
  if (frame.type == FrameType::kGet) return PayloadPlace{};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a receiver sent a frame of type {}, expected a request",
                          static_cast<int>(frame.type)));
}

}  // namespace

SourceConnection::SourceConnection(std::shared_ptr<SourceShared> shared)
    : shared_(std::move(shared)), reader_(accept_get), last_progress_(now()) {}

bool SourceConnection::accept(uv_loop_t* loop, uv_stream_t* listener) {
  WSYNC_CHECK(uv_tcp_init(loop, &handle_) == 0, "a TCP handle can be initialised");
  handle_.data = this;
  write_.data = this;
  self_ = shared_from_this();
  auto* stream = reinterpret_cast<uv_stream_t*>(&handle_);
  const auto allocate = [](uv_handle_t* handle, std::size_t, uv_buf_t* buffer) {
    *buffer = buffer_of(connection_of(handle->data)->reader_.next());
  };
  const auto on_data = [](uv_stream_t* from, ssize_t n, const uv_buf_t*) {
    connection_of(from->data)->on_read(n);
  };
  if (uv_accept(listener, stream) != 0 || uv_tcp_nodelay(&handle_, 1) != 0 ||
      uv_read_start(stream, allocate, on_data) != 0) {
    close();
    return false;
  }
  return true;
}

void SourceConnection::close() {
  if (closing_) return;
  closing_ = true;
  uv_close(reinterpret_cast<uv_handle_t*>(&handle_), [](uv_handle_t* handle) {
    const auto keep = std::move(connection_of(handle->data)->self_);
    keep->on_closed_();
  });
}

void SourceConnection::close_as_garbage(const Error& error) {
  ++shared_->counters.garbage_peers;
  log_warning("data connection closed: {}", error.message());
  close();
}

void SourceConnection::on_read(ssize_t n) {
  if (closing_ || n == 0) return;
  if (n < 0) return close();  // the peer is gone or has finished
  auto arrived = reader_.advance(static_cast<std::size_t>(n));
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
  if (closing_ || writing_ == Writing::kBucket) return;
  for (auto request = pending_.begin(); request != pending_.end();) {
    auto offered = shared_->find(request->frame.key.version);
    if (!offered) {
      ++request;
      continue;
    }
    if (auto judged = offered->judge_bucket(request->frame); !judged) {
      answer(*request, judged.error());
      request = pending_.erase(request);
      continue;
    }
    if (writing_ == Writing::kNothing && offered->ready[request->frame.bucket]) {
      const Request taken = *request;
      pending_.erase(request);
      return start_bucket(std::move(offered), taken);
    }
    ++request;
  }
  if (outbox_.size() > limits::kStreamRequestsPending * limits::kStreamTextBytes)
    return close_as_garbage(Error(ErrorCode::kInvalidInput,
                                  "request after request that cannot be served, answers unread"));
  if (writing_ == Writing::kNothing && !outbox_.empty()) {
    writing_ = Writing::kSmall;
    small_.swap(outbox_);
    const std::array buffers{buffer_of(small_)};
    write(buffers);
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

std::optional<Bytes> SourceConnection::changes_of(const Offered& offered, const Frame& get) const {
  if (get.base.none() || get.base == get.key.version ||
      get.bytes > limits::kStreamChangesBucketBytes)
    return std::nullopt;
  const auto base = shared_->find(get.base);
  if (!base || !offered.changes_from(*base, get.bucket)) return std::nullopt;
  return shared_->changes.make(*offered.offer.blocks, offered.offer.leaves->bucket(get.bucket),
                               base->offer.data, offered.offer.data,
                               std::min(get.changes_max, get.bytes));
}

void SourceConnection::start_bucket(std::shared_ptr<Offered> offered, const Request& request) {
  writing_ = Writing::kBucket;
  offered_ = std::move(offered);
  bucket_ = request.frame.bucket;
  sent_ = 0;
  trailer_sent_ = false;
  Frame frame = request.frame;
  frame.type = FrameType::kBucket;
  frame.changes_max = 0;
  changes_ = changes_of(*offered_, request.frame);
  if (changes_) {
    frame.type = FrameType::kChanges;
    frame.bytes = changes_->size();
  } else {
    frame.base = {};
  }
  header_ = encode_frame(frame);
  small_.swap(outbox_);  // pending failures are sent first
  const std::array buffers{buffer_of(small_), buffer_of(header_)};
  write(buffers);
}

void SourceConnection::write_next_slice() {
  const BucketWindow window = offered_->offer.buckets[bucket_];
  const std::span<const std::byte> payload =
      changes_ ? std::span<const std::byte>(*changes_)
               : offered_->offer.data.subspan(window.offset, window.bytes);
  const std::uint64_t n = std::min(limits::kStreamSliceBytes, payload.size() - sent_);
  if (n == 0) {
    trailer_ = encode_trailer(offered_->digest_of_bucket(bucket_));
    trailer_sent_ = true;
    const std::array buffers{buffer_of(trailer_)};
    return write(buffers);
  }
  const auto slice = payload.subspan(sent_, n);
  sent_ += n;
  const std::array buffers{buffer_of(slice)};
  write(buffers);
}

void SourceConnection::write(std::span<const uv_buf_t> buffers) {
  in_flight_bytes_ = 0;
  for (const uv_buf_t& buffer : buffers) in_flight_bytes_ += buffer.len;
  const int rc = uv_write(
      &write_, reinterpret_cast<uv_stream_t*>(&handle_), buffers.data(),
      static_cast<unsigned>(buffers.size()),
      [](uv_write_t* request, int status) { connection_of(request->data)->on_written(status); });
  if (rc != 0) close();
}

void SourceConnection::on_written(int status) {
  if (closing_) return;
  if (status != 0) return close();
  last_progress_ = now();
  shared_->counters.wire_bytes += in_flight_bytes_;
  small_.clear();
  if (writing_ == Writing::kBucket && !trailer_sent_) return write_next_slice();
  if (writing_ == Writing::kBucket) {
    ++shared_->counters.buckets;
    if (changes_) ++shared_->counters.changes;
  }
  changes_.reset();
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
    const bool is_late =
        !shared_->find(request.frame.key.version) && at - request.since > shared_->offer_wait;
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
