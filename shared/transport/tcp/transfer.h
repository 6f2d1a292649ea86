// One transfer of a TcpSink. Only for the bulk thread, except for its construction.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <uv.h>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/tcp_address.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/channel.h"
#include "shared/transport/tcp/frame_reader.h"

namespace wsync::transport::tcp {

class TransferStream;

// Makes the channel of a connection. Called on the bulk thread.
using ChannelMaker = std::function<std::shared_ptr<Channel>()>;

// Called on the bulk thread. After on_done or on_failure nothing accesses the destination any more.
struct TransferEvents {
  std::function<void(ArrivedBucket arrived)> on_bucket;
  std::function<void(ArrivedLeaves arrived)> on_leaves;  // may be empty
  std::function<void()> on_done;
  std::function<void(StreamFailure failure)> on_failure;
};

class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  // `make_channel` makes one for each connection.
  Transfer(FetchRequest wanted, TcpAddress source, ChannelMaker make_channel,
           TransferEvents events);
  // Opens the connections. The transfer keeps itself alive until all its handles are closed.
  void start(uv_loop_t* loop, std::uint64_t streams);
  // Ends the transfer without an event.
  void stop();

  // For the streams:
  [[nodiscard]] const FetchRequest& wanted() const noexcept { return wanted_; }
  // Also after the transfer has let go of the base.
  [[nodiscard]] bool wants_changes_alone() const noexcept { return is_alone_; }
  // Returns the next bucket, in their order, that no stream has requested.
  [[nodiscard]] std::optional<std::uint64_t> next_to_ask();
  [[nodiscard]] PayloadPlace destination(std::uint64_t bucket) const;
  // Where leaves of a bucket go: `first` of it and those behind it, which begin at this offset of
  // the bucket. kInvalidInput if they do not end with a leaf.
  [[nodiscard]] Result<PayloadPlace> leaves_at(std::uint64_t bucket, std::size_t first,
                                               std::uint64_t offset, std::uint64_t bytes) const;
  // The request for a bucket: as changes from the base as long as there is one.
  [[nodiscard]] Frame request_for(std::uint64_t bucket) const;
  // Makes a bucket of its changes, at its destination, or, if the changes alone are wanted, proves
  // them. False: the base cannot be used, now and later. The bucket must be asked for again, in
  // full; if the changes alone are wanted, the transfer has ended.
  [[nodiscard]] bool use_changes(ArrivedFrame& arrived, std::span<const std::byte> changes);
  void bucket_arrived(ArrivedFrame arrived, std::shared_ptr<const Bytes> changes = nullptr);
  void leaves_arrived(ArrivedLeaves arrived) {
    if (!is_over_ && events_.on_leaves) events_.on_leaves(std::move(arrived));
  }
  // kRefused: the version is wanted as its changes alone, and cannot come so. fail_with() must
  // follow, and tells it to the owner.
  // `unlike`: as Offer::unlike.
  [[nodiscard]] Error needs_memory(std::string_view why, const Version& unlike = {});
  // The source sends more than it was asked for, because it is of a release that does not know the
  // bits behind the limit. No later request has them.
  void note_older_source() noexcept { is_older_source_ = true; }
  void fail_with(Error error);

 private:
  // The sums of the leaves of a bucket with its changes.
  [[nodiscard]] Result<std::vector<WordSum>> sums_with(std::uint64_t bucket,
                                                       std::span<const std::byte> changes) const;
  void tick();
  void finish();
  // This share of so many bytes (FetchBase::max_share).
  [[nodiscard]] std::uint64_t share_of(std::uint64_t bytes) const;
  // The largest changes of a bucket that are wanted of a version that comes as changes alone.
  [[nodiscard]] std::uint64_t changes_allowed(std::uint64_t bucket_bytes) const;

  const bool is_alone_;
  FetchRequest wanted_;
  TcpAddress source_;
  ChannelMaker make_channel_;
  TransferEvents events_;
  std::uint64_t cursor_ =
      0;  // in FetchRequest::order; those before it have arrived or were requested
  std::uint64_t missing_ = 0;        // number of buckets that have not arrived
  std::uint64_t covered_bytes_ = 0;  // of the buckets that have arrived in this transfer
  std::uint64_t changes_bytes_ = 0;  // that have come for them
  std::vector<std::shared_ptr<TransferStream>> streams_;
  uv_timer_t timer_{};
  std::shared_ptr<Transfer> timer_holds_;
  bool is_attached_again_ = false;
  bool needs_memory_ = false;
  Version unlike_;  // with needs_memory_
  bool is_older_source_ = false;
  bool is_over_ = false;
};

// One connection of a transfer.
class TransferStream : public std::enable_shared_from_this<TransferStream> {
 public:
  TransferStream(std::shared_ptr<Transfer> transfer, std::shared_ptr<Channel> channel);
  void connect(uv_loop_t* loop, const TcpAddress& source);
  void close();
  // Returns whether the stream was silent for longer than the deadline while data was expected.
  [[nodiscard]] bool is_stalled(TimePoint at) const;

 private:
  // A bucket that was requested, and what has arrived of it.
  struct Asked {
    Frame frame;
    std::uint64_t bytes = 0;    // of its first leaves
    std::vector<WordSum> sums;  // of these
  };
  void on_open();
  void on_read(std::size_t n);
  void ask();
  void send(const Frame& request);
  void on_written();
  void handle(ArrivedFrame arrived);
  void handle_leaves(ArrivedFrame arrived);
  [[nodiscard]] Result<PayloadPlace> accept(const Frame& frame);
  [[nodiscard]] Result<PayloadPlace> accept_leaves(const Frame& frame, const Asked& asked) const;
  [[nodiscard]] std::deque<Asked>::iterator asked_for(std::uint64_t bucket);

  std::shared_ptr<Transfer> transfer_;
  std::shared_ptr<TransferStream> self_;
  const std::shared_ptr<Channel> channel_;
  Bytes outbox_;   // requests that wait until `sending_` has left
  Bytes sending_;  // requests that the channel borrows; empty: none
  FrameReader reader_;
  std::deque<Asked> asked_;  // the buckets that this stream waits for
  Bytes changes_;            // of the bucket that arrives
  TimePoint last_heard_;
  bool is_connected_ = false;
  bool is_closing_ = false;
};

}  // namespace wsync::transport::tcp
