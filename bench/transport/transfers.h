// Transfers of whole versions by the product's data transports, from one thread's memory to
// another's.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/baseline/workbench.h"
#include "shared/base/error.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/transport/memfd/memfd_sink.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/pair_key.h"
#include "shared/transport/stream.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"
#include "shared/transport/tls/tls_context.h"

namespace wsync::bench {

// The loop that both ends share, which waits for a transfer. Thread: one.
class TransferLoop {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TransferLoop>> create();
  [[nodiscard]] Post post();
  [[nodiscard]] Loop& loop() noexcept { return *loop_; }

  // Callbacks of a sink for the transfer that wait() waits for. `on_bucket` may be empty.
  [[nodiscard]] transport::SinkCallbacks callbacks();
  // Runs the loop until the sink of callbacks() has finished or failed, for at most half a minute.
  // Only memfd returns a view.
  [[nodiscard]] Result<std::optional<ArenaView>> wait();
  // Ends wait() with this error, for other participants of the transfer.
  void fail_with(const Error& error);

 private:
  TransferLoop() = default;
  void end(Result<std::optional<ArenaView>> outcome);
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Timer> guard_;
  std::optional<Result<std::optional<ArenaView>>> outcome_;
};

// Describes the bench's bytes as a version in buckets. Each call returns the next version.
class VersionCounter {
 public:
  [[nodiscard]] transport::StreamKey next();

 private:
  std::uint64_t step_ = 0;
};
[[nodiscard]] std::vector<transport::BucketWindow> buckets_of(std::uint64_t bytes,
                                                              std::uint64_t bucket_bytes);

// TCP: a source and sinks on their own bulk threads, as in two processes. The bench and the loop
// outlive it. Thread: the loop's.
class TcpTransfers {
 public:
  // With `is_protected`, connections are those of the kind `tls`. Errors: kInternal if libssl lacks
  // what is needed.
  [[nodiscard]] static Result<std::unique_ptr<TcpTransfers>> create(Ground& bench,
                                                                    TransferLoop& loop,
                                                                    bool is_protected = false);
  ~TcpTransfers();

  struct Shape {
    std::uint64_t bucket_bytes = 0;
    std::uint64_t connections = 0;
  };
  // Transfers the bench's source to its target. The time runs from the sink's request until all
  // bytes have arrived and their digests are checked. Then compares the bytes.
  [[nodiscard]] Result<Spent> pass(const Shape& shape);
  // The same transfer through a sidecar that forwards each bucket as soon as it has received it.
  [[nodiscard]] Result<Spent> relay(const Shape& shape);

 private:
  TcpTransfers(Ground& bench, TransferLoop& loop) : bench_(bench), loop_(loop) {}
  [[nodiscard]] transport::FetchRequest wanted(const transport::BucketSource& source,
                                               const transport::StreamKey& key, const Shape& shape,
                                               std::span<std::byte> into) const;
  [[nodiscard]] transport::tcp::TcpSinkOptions sink_options(const Shape& shape) const;
  [[nodiscard]] std::shared_ptr<const LeafTable> leaves(std::uint64_t bucket_bytes) const;
  [[nodiscard]] transport::StreamKey offer(const Shape& shape);
  [[nodiscard]] Result<> release(Version version);

  Ground& bench_;
  TransferLoop& loop_;
  VersionCounter versions_;
  transport::PairSecret secret_{};
  std::shared_ptr<transport::tls::TlsContext> tls_;  // null: plain connections
  std::unique_ptr<transport::tcp::UvThread> trainer_thread_, relay_thread_, last_thread_;
  std::unique_ptr<transport::tcp::TcpSource> source_, relay_source_;
  std::optional<Pages> relayed_;  // created on first use
  // By the size of a bucket.
  mutable std::map<std::uint64_t, std::shared_ptr<const LeafTable>> leaves_;
};

// memfd: a source and a sink on the loop, with the threads that they have in two processes. Thread:
// the loop's.
class MemfdTransfers {
 public:
  // `path` does not exist and is in a directory of this user. The bench and the loop outlive the
  // object.
  [[nodiscard]] static Result<std::unique_ptr<MemfdTransfers>> create(Ground& bench,
                                                                      TransferLoop& loop,
                                                                      const std::string& path);
  struct Times {
    std::chrono::nanoseconds hand_over{};  // from the sink's request until it has the mapping
    Spent all;  // plus the copy into the target by one thread with a streaming copy
  };
  // Creates an arena with the bench's bytes before the time begins. Then hands it over, copies it
  // and checks what arrived.
  [[nodiscard]] Result<Times> pass(std::uint64_t bucket_bytes);

 private:
  MemfdTransfers(Ground& bench, TransferLoop& loop) : bench_(bench), loop_(loop) {}
  [[nodiscard]] Result<transport::StreamKey> offer(std::uint64_t bucket_bytes);

  Ground& bench_;
  TransferLoop& loop_;
  VersionCounter versions_;
  std::unique_ptr<transport::memfd::MemfdSource> source_;
  std::unique_ptr<transport::memfd::MemfdSink> sink_;
};

}  // namespace wsync::bench
