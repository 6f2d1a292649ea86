#include "shared/control/frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/unix_socket.h"

namespace wsync::control {

Result<> FrameReader::feed(std::span<const std::byte> bytes, std::vector<UniqueFd> fds) {
  if (error_) return fail(*error_);
  if (at_ == buffer_.size()) {
    buffer_.clear();
    at_ = 0;
  } else if (at_ > buffer_.size() / 2) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  std::move(fds.begin(), fds.end(), std::back_inserter(fds_));
  if (fds_.size() > limits::kFdsPerFrame) {
    error_ = Error(
        ErrorCode::kInvalidInput,
        fmt::format("frame: {} descriptors are waiting, at most {} are allowed with one frame",
                    fds_.size(), limits::kFdsPerFrame));
    fds_.clear();
    return fail(*error_);
  }
  return {};
}

Result<std::optional<Frame>> FrameReader::next() {
  if (error_) return fail(*error_);
  auto frame = read_next();
  if (!frame) {
    error_ = frame.error();
    fds_.clear();
    buffer_ = {};
    at_ = 0;
  }
  return frame;
}

namespace {

// What a peer that is no process of wsync has sent in place of a frame. Its first bytes are enough,
// because it may send no more than these. std::nullopt: it may be a frame.
std::optional<std::string> protocol_of_stranger(std::span<const std::byte> waiting) {
  ByteWriter magic;
  magic.put(kMagic);
  const std::size_t begun =
      waiting.size() <= kFramePrefixBytes
          ? 0
          : std::min(waiting.size() - kFramePrefixBytes, magic.buffer().size());
  if (std::equal(magic.buffer().begin(),
                 magic.buffer().begin() + static_cast<std::ptrdiff_t>(begun),
                 waiting.begin() + kFramePrefixBytes))
    return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(waiting.data()), waiting.size());
  if (text.starts_with("HTTP/")) return "HTTP";
  if (text.front() == '\xff') return "ZeroMQ, as coordinators and commands do";
  return "another protocol";
}

}  // namespace

Result<std::optional<Frame>> FrameReader::read_next() {
  if (buffered() < kFramePrefixBytes) {
    // Descriptors must arrive together with the first byte of the frame that announces them.
    if (buffered() == 0 && !fds_.empty())
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("frame: received {} descriptors that no frame announced", fds_.size()));
    return std::nullopt;
  }
  const std::span<const std::byte> waiting = std::span(buffer_).subspan(at_);
  if (const auto protocol = protocol_of_stranger(waiting))
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("frame: the peer speaks {}, and not the protocol of this socket", *protocol));
  ByteReader prefix(waiting);
  const auto message_bytes = prefix.get<std::uint32_t>("length");
  const auto fd_count = prefix.get<std::uint32_t>("descriptors");
  if (message_bytes < kEnvelopeBytes || message_bytes > max_message_bytes_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("frame: length {}, expected {} to {}", message_bytes, kEnvelopeBytes,
                            max_message_bytes_));
  if (fd_count > limits::kFdsPerFrame)
    return fail(ErrorCode::kInvalidInput, fmt::format("frame: {} descriptors, at most {} allowed",
                                                      fd_count, limits::kFdsPerFrame));
  if (buffered() < kFramePrefixBytes + message_bytes) return std::nullopt;
  if (fd_count > fds_.size())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("frame: announces {} descriptors, but {} arrived", fd_count, fds_.size()));
  const auto encoded = waiting.subspan(kFramePrefixBytes, message_bytes);
  auto decoded = decode(encoded);
  if (!decoded) {
    if (decoded.error().code() == ErrorCode::kRefused) {
      if (auto envelope = decode_envelope(encoded)) refused_ = std::move(*envelope);
    }
    return fail(std::move(decoded).error());
  }
  at_ += kFramePrefixBytes + message_bytes;
  Frame frame{
      .envelope = std::move(decoded->envelope), .message = std::move(decoded->message), .fds = {}};
  for (std::uint32_t i = 0; i < fd_count; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  return frame;
}

FrameWriter::FrameWriter() : FrameWriter(limits::kSendQueueBytes) {}

Result<> FrameWriter::push(const Envelope& envelope, const Message& message,
                           std::vector<UniqueFd> fds) {
  if (fds.size() > limits::kFdsPerFrame)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {} descriptors, at most {} allowed",
                            message_name(type_of(message)), fds.size(), limits::kFdsPerFrame));
  auto encoded = WSYNC_TRY(encode(envelope, message));
  const std::uint64_t total = kFramePrefixBytes + encoded.size();
  if (queued_bytes_ + total > max_queued_bytes_)
    return fail(
        ErrorCode::kBusy,
        fmt::format(
            "{}: {} bytes are already queued, at most {} are allowed: the peer does not read",
            message_name(type_of(message)), queued_bytes_, max_queued_bytes_));
  ByteWriter prefix;
  prefix.put(static_cast<std::uint32_t>(encoded.size()));
  prefix.put(static_cast<std::uint32_t>(fds.size()));
  encoded.insert(encoded.begin(), prefix.buffer().begin(), prefix.buffer().end());
  frames_.push_back({.bytes = std::move(encoded), .fds = std::move(fds)});
  queued_bytes_ += total;
  return {};
}

Result<bool> FrameWriter::flush(int socket) {
  while (!frames_.empty()) {
    Queued& frame = frames_.front();
    std::vector<int> fds;
    if (sent_ == 0)
      for (const UniqueFd& fd : frame.fds) fds.push_back(fd.get());
    const auto n = WSYNC_TRY(send_some(socket, std::span(frame.bytes).subspan(sent_), fds));
    if (n == 0) return false;
    sent_ += n;
    queued_bytes_ -= n;
    frame.fds.clear();
    if (sent_ == frame.bytes.size()) {
      frames_.pop_front();
      sent_ = 0;
    }
  }
  return true;
}

void FrameWriter::clear_unsent() noexcept {
  // A partly sent frame must stay: without its remaining bytes the peer would lose the frame
  // boundary.
  const std::size_t keep = in_the_middle() ? 1 : 0;
  while (frames_.size() > keep) {
    queued_bytes_ -= frames_.back().bytes.size();
    frames_.pop_back();
  }
}

}  // namespace wsync::control
