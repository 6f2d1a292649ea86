// Frames: messages with descriptors on a Unix stream socket.
//
//   offset  bytes  field
//        0      4  length of the encoded message, kEnvelopeBytes to encoded_bytes_max()
//        4      4  descriptors that come with the frame's first byte, at most kFdsPerFrame
//        8      n  the encoded message (codec.h)
//
// Thread: objects are not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/control/codec.h"

namespace wsync::control {

inline constexpr std::size_t kFramePrefixBytes = 8;

struct Frame {
  Envelope envelope;
  Message message;
  std::vector<UniqueFd> fds;
};

// Splits a byte stream into frames. After an error the stream cannot be used: every later call
// returns the same error, and the caller must close the connection.
class FrameReader {
 public:
  // `max_message_bytes` bounds one encoded message and therefore the memory. Memory grows with the
  // bytes that have arrived, never with the length that a peer announces.
  explicit FrameReader(std::uint64_t max_message_bytes = encoded_bytes_max())
      : max_message_bytes_(max_message_bytes) {}

  // Adds the bytes and descriptors that one receive call returned. kInvalidInput if more
  // descriptors are pending than a frame may have.
  [[nodiscard]] Result<> feed(std::span<const std::byte> bytes, std::vector<UniqueFd> fds = {});
  // Returns the next complete frame, or std::nullopt if more bytes are needed. kInvalidInput for
  // malformed data; kRefused for a message of an unknown version or type.
  [[nodiscard]] Result<std::optional<Frame>> next();
  // The envelope of the message that next() refused, to be echoed in an ErrorReply.
  [[nodiscard]] const std::optional<Envelope>& refused() const noexcept { return refused_; }
  // Number of buffered bytes that belong to an incomplete frame.
  [[nodiscard]] std::size_t buffered() const noexcept { return buffer_.size() - at_; }

 private:
  [[nodiscard]] Result<std::optional<Frame>> read_next();
  std::uint64_t max_message_bytes_;
  Bytes buffer_;
  std::size_t at_ = 0;  // consumed bytes of buffer_
  std::deque<UniqueFd> fds_;
  std::optional<Error> error_;
  std::optional<Envelope> refused_;
};

// Queues frames and sends them as fast as the socket accepts them.
class FrameWriter {
 public:
  // Limits the queue to limits::kSendQueueBytes.
  FrameWriter();
  explicit FrameWriter(std::uint64_t max_queued_bytes) : max_queued_bytes_(max_queued_bytes) {}

  // Queues one frame and takes the descriptors, which are closed after they are sent. kBusy if the
  // queue would exceed its limit; kInvalidInput as encode(), or for more than limits::kFdsPerFrame
  // descriptors.
  [[nodiscard]] Result<> push(const Envelope& envelope, const Message& message,
                              std::vector<UniqueFd> fds = {});
  // Sends what the socket accepts now. Returns true if the queue is empty. Errors as send_some();
  // the connection cannot be used after an error.
  [[nodiscard]] Result<bool> flush(int socket);
  [[nodiscard]] bool empty() const noexcept { return frames_.empty(); }
  [[nodiscard]] std::uint64_t queued_bytes() const noexcept { return queued_bytes_; }
  // Returns true if a frame has been sent in part. The stream must then continue with the rest of
  // that frame.
  [[nodiscard]] bool in_the_middle() const noexcept { return sent_ != 0; }
  // Removes every queued frame of which no byte has been sent.
  void clear_unsent() noexcept;

 private:
  struct Queued {
    Bytes bytes;
    std::vector<UniqueFd> fds;
  };
  std::uint64_t max_queued_bytes_;
  std::uint64_t queued_bytes_ = 0;
  std::size_t sent_ = 0;  // bytes of the first frame already sent
  std::deque<Queued> frames_;
};

}  // namespace wsync::control
