// What a sidecar talks to, driven by the test on the sidecar's own loop: engines of a few words
// over real Unix sockets, and versions in real arenas.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/shared_memory.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/manifest.h"

namespace wsync::agent::test {

// A loop, and a private directory for sockets and state.
class Bench {
 public:
  Bench() : loop_(Loop::create().value()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "wsync-agent-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~Bench() { std::filesystem::remove_all(directory_); }
  [[nodiscard]] Loop& loop() { return *loop_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }
  // Runs the loop until `done` holds; false after half a minute, which no healthy run needs.
  [[nodiscard]] bool until(const std::function<bool()>& done) {
    const TimePoint deadline = now() + std::chrono::seconds(30);
    bool is_done = false;
    Timer look(*loop_, [&] {
      is_done = done();
      if (is_done || now() > deadline) loop_->stop();
    });
    look.start_repeating(std::chrono::milliseconds(1));
    loop_->run();
    return is_done;
  }

 private:
  std::unique_ptr<Loop> loop_;
  std::string directory_;
};

// A small model; the bytes of each version depend on its step.
struct Model {
  Model() {
    manifest = std::make_shared<const Manifest>(
        Manifest::create({{.name = "a", .dtype = DType::kU8, .shape = {limits::kMiB + 5}},
                          {.name = "b", .dtype = DType::kF32, .shape = {100, 30}}})
            .value());
    plan = std::make_shared<const BucketPlan>(
        BucketPlan::create(*manifest, limits::kBucketBytesMin).value());
    leaves = std::make_shared<const LeafTable>(*manifest, *plan);
  }
  [[nodiscard]] static std::byte byte_of(Version version, std::size_t at) {
    return static_cast<std::byte>(version.step * 31 + at % 251);
  }
  [[nodiscard]] Digest content(Version version) const { return digests(version).root; }
  [[nodiscard]] ContentDigests digests(Version version) const {
    ContentDigester digester(*manifest);
    for (const Piece& piece : plan->pieces()) {
      std::vector<std::byte> bytes(piece.bytes);
      for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = byte_of(version, plan->arena_offset(piece) + i);
      EXPECT_TRUE(digester.add(piece.tensor, piece.tensor_offset, bytes).has_value());
    }
    return digester.finish().value();
  }
  [[nodiscard]] ArenaIdentity identity(Version version) const {
    return {.version_epoch = version.epoch,
            .version_step = version.step,
            .layout = manifest->layout_digest(),
            .content = content(version),
            .bucket_bytes = plan->bucket_bytes()};
  }
  // Writes a version; kBusy while anyone holds a lease. Its bytes, for a test that changes them
  // behind everybody's back.
  [[nodiscard]] Result<std::span<std::byte>> write(SharedArena& arena, Version version) const {
    auto lease = arena.try_write_lease(identity(version));
    if (!lease) return fail(std::move(lease).error());
    const std::span<std::byte> data = lease->data();
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = byte_of(version, i);
    std::move(*lease).complete(content(version));
    return data;
  }
  [[nodiscard]] SharedArena arena(Version version) const {
    auto made = SharedArena::create({.name = "trainer", .data_bytes = plan->arena_bytes()}).value();
    EXPECT_TRUE(write(made, version).has_value());
    return made;
  }
  // The same as a trainer writes it: with the sums of its leaves, and protected.
  [[nodiscard]] SharedArena protected_arena(Version version) const {
    const ContentDigests sums = digests(version);
    auto made =
        SharedArena::create(
            {.name = "trainer", .data_bytes = plan->arena_bytes(), .leaf_sums = sums.leaves.size()})
            .value();
    auto lease = made.try_write_lease(identity(version)).value();
    const std::span<std::byte> data = lease.data();
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = byte_of(version, i);
    std::move(lease).complete(sums.root, sums.leaves);
    return made;
  }
  [[nodiscard]] Bytes layout() const {
    ByteWriter writer;
    manifest->encode(writer);
    return std::move(writer).take();
  }
  [[nodiscard]] std::vector<control::EngineTensor> tensors() const {
    std::vector<control::EngineTensor> out;
    for (std::size_t i = 0; i < manifest->size(); ++i) {
      const TensorInfo& info = manifest->tensor(i);
      out.push_back({.name = info.name, .dtype = info.dtype, .shape = info.shape});
    }
    return out;
  }

  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<const LeafTable> leaves;
};

// One rank that says what the test tells it to say, and nothing else.
class RawEngine {
 public:
  RawEngine(Bench& bench, const std::string& socket, std::string replica, std::uint32_t rank = 0)
      : bench_(bench), replica_(std::move(replica)), rank_(rank) {
    stream_ = control::UnixStream::connect(
                  bench.loop(), socket,
                  {.on_frame = [this](control::Frame f) { frames_.push_back(std::move(f)); },
                   .on_close = [this](const Error&) { closed_ = true; }})
                  .value();
  }
  void hello(const Model& model, control::Fence fence = {},
             control::TakeMode take = control::TakeMode::kPieces) {
    control::EngineHello hello;
    hello.tensors = model.tensors();
    hello.take = take;
    say(std::move(hello), 0, fence);
  }
  void say(const control::Message& message, std::uint64_t request = 0, control::Fence fence = {}) {
    control::Envelope envelope;
    envelope.fence = fence;
    envelope.request = request;
    envelope.replica = replica_;
    envelope.rank = rank_;
    const auto sent = stream_->send(envelope, message);
    EXPECT_TRUE(sent.has_value()) << sent.error().message();
  }
  // In the name of another replica.
  void say_as(const std::string& replica, const control::Message& message) {
    control::Envelope envelope;
    envelope.replica = replica;
    EXPECT_TRUE(stream_->send(envelope, message).has_value());
  }
  // The next message of this kind; others before it are passed over.
  template <class T>
  [[nodiscard]] std::optional<std::pair<control::Envelope, T>> next() {
    std::optional<std::pair<control::Envelope, T>> found;
    EXPECT_TRUE(bench_.until([&] {
      while (!frames_.empty() && !found) {
        if (T* message = std::get_if<T>(&frames_.front().message))
          found.emplace(frames_.front().envelope, std::move(*message));
        frames_.pop_front();
      }
      return found.has_value();
    })) << "no "
        << control::message_name(T::kType) << " came to " << replica_;
    return found;
  }
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  Bench& bench_;
  std::string replica_;
  std::uint32_t rank_ = 0;
  std::unique_ptr<control::UnixStream> stream_;
  std::deque<control::Frame> frames_;
  bool closed_ = false;
};

}  // namespace wsync::agent::test
