// Weights in the memory of a test, as a source for snapshots.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trainer_side/publish/weight_source.h"

namespace wsync::publish {

// How a source gives its bytes.
enum class Given { kViews, kCopies };

class HostWeights final : public WeightSource {
 public:
  HostWeights(std::shared_ptr<const Manifest> manifest,
              const std::vector<std::vector<std::byte>>& tensors, Given given)
      : manifest_(std::move(manifest)), tensors_(tensors), given_(given) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    if (fails_at == tensor) return fail(ErrorCode::kIo, "the source cannot be read");
    std::memcpy(into.data(), tensors_[tensor].data() + offset, into.size());
    return {};
  }
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override {
    ++reads;
    auto sum = WSYNC_TRY(WeightSource::read_sum(tensor, place, into));
    // As if the trainer had written the weights meanwhile.
    if (is_written.exchange(false)) sum += word_sum(into.first(8), place);
    return sum;
  }
  [[nodiscard]] std::optional<std::span<const std::byte>> view(std::uint32_t tensor,
                                                               std::uint64_t offset,
                                                               std::uint64_t bytes) const override {
    if (given_ == Given::kCopies) return std::nullopt;
    return std::span(tensors_[tensor]).subspan(offset, bytes);
  }
  [[nodiscard]] bool is_on_host() const override { return is_here; }

  std::optional<std::uint32_t> fails_at;
  std::atomic<bool> is_written = false;
  std::atomic<std::uint64_t> reads = 0;  // of leaves
  bool is_here = true;

 private:
  const std::shared_ptr<const Manifest> manifest_;
  const std::vector<std::vector<std::byte>>& tensors_;
  const Given given_;
};

}  // namespace wsync::publish
