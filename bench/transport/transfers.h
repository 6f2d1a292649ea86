// Whole versions through the product's data transports, from the memory of one thread to that of
// another.
#pragma once

#include <chrono>
#include <cstdint>
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
#include "shared/transport/stream.h"
#include "shared/transport/tcp/tcp_sink.h"
#include "shared/transport/tcp/tcp_source.h"

namespace wsync::bench {

// The owner's loop of both ends, which waits for a transfer. Thread: one.
class TransferLoop {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TransferLoop>> create();
  [[nodiscard]] Post post();
  [[nodiscard]] Loop& loop() noexcept { return *loop_; }

  // What a sink has to say of a transfer; `on_bucket` may be empty. Only for the one that is
  // waited for.
  [[nodiscard]] transport::SinkCallbacks callbacks();
  // Runs the loop until the sink of callbacks() is done or has failed, half a minute at most.
  // The view is memfd's.
  [[nodiscard]] Result<std::optional<ArenaView>> wait();
  // Ends wait() with this error, for whoever else takes part in the transfer.
  void fail_with(const Error& error);

 private:
  TransferLoop() = default;
  void end(Result<std::optional<ArenaView>> outcome);
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Timer> guard_;
  std::optional<Result<std::optional<ArenaView>>> outcome_;
};

// The bench's bytes as a version in buckets, the next version with each call.
class VersionCounter {
 public:
  [[nodiscard]] transport::StreamKey next();

 private:
  std::uint64_t step_ = 0;
};
[[nodiscard]] std::vector<transport::BucketWindow> buckets_of(std::uint64_t bytes,
                                                              std::uint64_t bucket_bytes);

// TCP: a source and sinks on bulk threads of their own, as in two processes. Outlives nothing: the
// bench and the loop outlive it. Thread: the loop's.
class TcpTransfers {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TcpTransfers>> create(Ground& bench,
                                                                    TransferLoop& loop);
  ~TcpTransfers();

  struct Shape {
    std::uint64_t bucket_bytes = 0;
    std::uint64_t connections = 0;
  };
  // The bench's source to its target: from the sink's request until all is there and its digests
  // were checked. Then checks what arrived.
  [[nodiscard]] Result<Spent> pass(const Shape& shape);
  // The same through a sidecar that hands each bucket on as soon as it has it.
  [[nodiscard]] Result<Spent> relay(const Shape& shape);

 private:
  TcpTransfers(Ground& bench, TransferLoop& loop) : bench_(bench), loop_(loop) {}
  [[nodiscard]] transport::FetchRequest wanted(const transport::BucketSource& source,
                                               const transport::StreamKey& key, const Shape& shape,
                                               std::span<std::byte> into) const;
  [[nodiscard]] transport::StreamKey offer(const Shape& shape);
  [[nodiscard]] Result<> release(Version version);

  Ground& bench_;
  TransferLoop& loop_;
  VersionCounter versions_;
  std::unique_ptr<transport::tcp::UvThread> trainer_thread_, relay_thread_, last_thread_;
  std::unique_ptr<transport::tcp::TcpSource> source_, relay_source_;
  std::optional<Pages> relayed_;  // made when it is needed first
};

// memfd: a source and a sink on the loop, with the threads that they have in two processes. Thread:
// the loop's.
class MemfdTransfers {
 public:
  // `path` is free, in a directory of this user. The bench and the loop outlive it.
  [[nodiscard]] static Result<std::unique_ptr<MemfdTransfers>> create(Ground& bench,
                                                                      TransferLoop& loop,
                                                                      const std::string& path);
  struct Times {
    std::chrono::nanoseconds hand_over{};  // from the sink's request until it has the mapping
    Spent all;  // and until its bytes were copied into the target by one thread, past the caches
  };
  // A new arena with the bench's bytes, made before the time begins, is handed over and copied.
  // Then checks what arrived.
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
