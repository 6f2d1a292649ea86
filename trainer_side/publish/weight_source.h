// WeightSource: the source of a trainer's weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"
#include "trainer_side/publish/device_copies.h"
#include "trainer_side/publish/parted_version.h"
#include "trainer_side/publish/writable_arena.h"

namespace wsync::publish {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  [[nodiscard]] virtual const std::shared_ptr<const Manifest>& manifest() const = 0;
  // Copies bytes [offset, offset + into.size()) of a tensor (index in the manifest). Called by
  // several threads at the same time, never for a range outside the tensor.
  [[nodiscard]] virtual Result<> read(std::uint32_t tensor, std::uint64_t offset,
                                      std::span<std::byte> into) = 0;
  // The same for bytes [place.position, ...), and returns their sum. A source in memory copies and
  // sums in one loop.
  [[nodiscard]] virtual Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                                 std::span<std::byte> into);
  // The same bytes where they lie in host memory, without a copy, or std::nullopt if they lie
  // elsewhere or have to be converted. Valid until the last read. Of a source that has views, parts
  // of a leaf may be read one by one; of all others, read_sum() is called for whole leaves.
  [[nodiscard]] virtual std::optional<std::span<const std::byte>> view(
      std::uint32_t /*tensor*/, std::uint64_t /*offset*/, std::uint64_t /*bytes*/) const {
    return std::nullopt;
  }
  // Whether the bytes can be read without start(), because none of them are on a GPU.
  [[nodiscard]] virtual bool is_on_host() const { return true; }
  // The NUMA node of the GPUs that have its bytes; none if they are on several, if it is not known,
  // or if the bytes are in host memory.
  [[nodiscard]] virtual std::optional<std::uint32_t> numa_node() const { return std::nullopt; }
  // The arena in which the bytes of this source are already, where the bucket plan places them, if
  // there is one. Called once, before the first read. `into` of every read then lies in it.
  [[nodiscard]] virtual std::optional<WritableArena> take_arena() { return std::nullopt; }
  // Called once, before the first read, unless the source had an arena: reads of `tensor` will go
  // to where `plan` places it in this arena. A source whose bytes are not in the memory of the host
  // begins to copy them there now.
  [[nodiscard]] virtual Result<> start(const WritableArena& /*arena*/, const BucketPlan& /*plan*/) {
    return {};
  }
  // Called once after start(), also if that or a read has failed: when it returns, the source
  // writes nothing into the arena any more.
  virtual void finish() {}
  // Called once, after the last read, with the digest of all that was read. An error
  // (kDigestMismatch) means that these are not the bytes that the source promises, so that nobody
  // gets them.
  [[nodiscard]] virtual Result<> check(const Digest& /*content*/) const { return {}; }
  // True if the bytes are in the arena and read_sum() knows every sum, so that it is not worth
  // another thread.
  [[nodiscard]] virtual bool is_summed() const { return false; }
  // Of a source that has the bytes of part 0 alone: the others are never written, and read_sum()
  // knows their sums. Null: it has all bytes.
  [[nodiscard]] virtual std::shared_ptr<const PartedVersion> parted() const { return nullptr; }
};

// Fills `into` with bytes from `offset` of one tensor. May be called by several threads at a time.
using ReadTensor = std::function<Result<>(std::uint64_t offset, std::span<std::byte> into)>;

// Bytes that a rank on another host has and serves. Their sums are here, by the position in the
// tensor where each begins: one for each leaf, or for what is of it.
struct RemoteBytes {
  std::map<std::uint64_t, WordSum> sums;
};

// Bytes of a tensor: in the trainer's memory (borrowed), behind a callback, in the memory of a GPU,
// where they stay valid until the snapshot is taken, or on another host.
using TensorBytes = std::variant<std::span<const std::byte>, ReadTensor, DeviceBytes, RemoteBytes>;
// Returns the number of bytes, or std::nullopt for a callback.
[[nodiscard]] std::optional<std::uint64_t> size_of(const TensorBytes& bytes) noexcept;

// A tensor of the trainer.
struct MemoryTensor {
  TensorInfo info;
  TensorBytes bytes;
};

// The tensors of a running trainer. Thread: see WeightSource.
class MemorySource final : public WeightSource {
 public:
  // Returns kInvalidInput as Manifest::create, and if the size of bytes differs from that of their
  // tensor.
  [[nodiscard]] static Result<MemorySource> create(std::vector<MemoryTensor> tensors);
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override;
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override;
  [[nodiscard]] std::optional<std::span<const std::byte>> view(std::uint32_t tensor,
                                                               std::uint64_t offset,
                                                               std::uint64_t bytes) const override;
  [[nodiscard]] bool is_on_host() const override;
  [[nodiscard]] std::optional<std::uint32_t> numa_node() const override;
  // kInvalidInput, with the tensor, if memory of a GPU has been freed.
  [[nodiscard]] Result<> start(const WritableArena& arena, const BucketPlan& plan) override;
  void finish() override { copies_.reset(); }

 private:
  MemorySource() = default;
  std::shared_ptr<const Manifest> manifest_;
  std::vector<TensorBytes> bytes_;        // in manifest order
  std::unique_ptr<DeviceCopies> copies_;  // from GPUs, between start() and finish()
};

// Where a tensor lies in an arena.
[[nodiscard]] std::span<std::byte> place_of(const WritableArena& arena, const BucketPlan& plan,
                                            const Manifest& manifest, std::uint32_t tensor);

}  // namespace wsync::publish
