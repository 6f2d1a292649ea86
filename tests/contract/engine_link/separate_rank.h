// SeparateRank: a rank whose versions come through the two IPC buffers of a separate device.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "tests/contract/engine_link/attached_rank.h"

namespace wsync::engine::test {

struct IpcBuffer {
  explicit IpcBuffer(std::uint64_t bytes)
      : fd(::memfd_create("ipc", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    region = MappedRegion::map(fd.get(), bytes, true).value();
    EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE), 0);
  }
  void put(std::span<const std::byte> bytes) { std::ranges::copy(bytes, region.bytes().begin()); }
  void scribble() { std::ranges::fill(region.bytes(), std::byte{0x5a}); }
  [[nodiscard]] UniqueFd duplicate() const { return UniqueFd(::dup(fd.get())); }
  UniqueFd fd;
  MappedRegion region;
};

struct SeparateRank : Rank {
  explicit SeparateRank(const Model& model, control::TakeMode take, std::uint32_t rank = 0,
                        std::uint32_t world = 1)
      : Rank(model, take, rank, world) {
    for (int i = 0; i < 2; ++i) buffers.emplace_back(model.plan.largest_bucket());
  }
  void attach(const Model& model) {
    start();
    peer.accept();
    welcome(model);
  }
  void welcome(const Model& model) {
    std::vector<UniqueFd> fds;
    for (const auto& buffer : buffers) fds.push_back(buffer.duplicate());
    peer.send(control::EngineWelcome{.generation = 1,
                                     .device_kind = DeviceKind::kSeparate,
                                     .buffer_bytes = model.plan.largest_bucket()},
              std::move(fds));
  }
  // One bucket in its IPC buffer, announced.
  void put(const Model& model, const SharedArena& arena, std::uint64_t bucket) {
    buffers[bucket % 2].put(
        arena.data().subspan(model.plan.bucket_offset(bucket), model.plan.bucket_size(bucket)));
    peer.send(
        control::BucketReady{.bucket = bucket, .slot = static_cast<std::uint32_t>(bucket % 2)});
  }
  // The same with its acknowledgement, after which the buffer is overwritten.
  control::BucketAck give(const Model& model, const SharedArena& arena, std::uint64_t bucket) {
    put(model, arena, bucket);
    const auto ack = peer.expect<control::BucketAck>();
    EXPECT_EQ(peer.last_envelope.request, peer.envelope.request);
    buffers[bucket % 2].scribble();
    return ack;
  }
  std::vector<IpcBuffer> buffers;
};

}  // namespace wsync::engine::test
