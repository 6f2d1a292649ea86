// Memory for activations: a fixed number of slots. A slot on the device holds what one micro-batch
// keeps on one chunk, from its forward until its weight gradient. A slot on the host holds it while
// it is offloaded. If no slot is free, the result is an error; no more memory is allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/matrix.h"

namespace wsync::training {

// Slots of one size. Thread: any.
class SlotPool {
 public:
  // `name` is used in error sentences. The memory of a slot is allocated when it is first written.
  SlotPool(std::string name, std::size_t slots, std::size_t floats);
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Returns kResourceExhausted if all slots are in use.
  [[nodiscard]] Result<std::span<float>> take();
  void give_back(std::span<float> slot);
  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
  [[nodiscard]] std::size_t floats() const noexcept { return floats_; }
  // Maximum number of slots in use at one time so far.
  [[nodiscard]] std::size_t max_used() const;

 private:
  const std::string name_;
  const std::size_t slots_;
  const std::size_t floats_;
  const std::unique_ptr<float[]> memory_;
  mutable std::mutex mutex_;
  std::vector<std::size_t> free_;
  std::size_t max_used_ = 0;
};

// What one micro-batch keeps on one chunk. Thread: one at a time.
class Activations {
 public:
  // Both are borrowed. Without `host`, activations cannot be offloaded.
  explicit Activations(SlotPool& device, SlotPool* host = nullptr)
      : device_pool_(device), host_pool_(host) {}
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;
  ~Activations() { release(); }

  // Acquires an empty slot of the device. Errors as SlotPool::take().
  [[nodiscard]] Result<> begin();
  // Reserves the next `count` floats, all zero, and returns their offset in the slot. Allowed only
  // while the activations are on the device.
  [[nodiscard]] std::size_t reserve(std::size_t count);
  [[nodiscard]] std::span<float> values(std::size_t offset, std::size_t count);
  // Copies the used part to a slot of the host, and releases the slot of the device.
  [[nodiscard]] Result<> offload();
  // Copies the used part back to a slot of the device. The offsets of reserve() stay valid.
  [[nodiscard]] Result<> onload();
  // Releases its slots.
  void release();
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_ * sizeof(float); }

 private:
  SlotPool& device_pool_;
  SlotPool* host_pool_;
  std::optional<std::span<float>> device_;
  std::optional<std::span<float>> host_;
  std::size_t used_ = 0;
};

// A matrix stored in activations, on the device or on the host.
class Kept {
 public:
  Kept() = default;
  // `home` is borrowed and must not move.
  Kept(Activations& home, std::size_t rows, std::size_t columns)
      : home_(&home), offset_(home.reserve(rows * columns)), rows_(rows), columns_(columns) {}
  [[nodiscard]] moe::Matrix matrix() const {
    return {home_->values(offset_, rows_ * columns_), rows_, columns_};
  }
  [[nodiscard]] std::span<float> values() const { return matrix().values(); }

 private:
  Activations* home_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

}  // namespace wsync::training
