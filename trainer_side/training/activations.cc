#include "trainer_side/training/activations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::training {

SlotPool::SlotPool(std::string name, std::size_t slots, std::size_t floats)
    : name_(std::move(name)), slots_(slots), floats_(floats), memory_(new float[slots * floats]) {
  for (std::size_t i = slots; i > 0; --i) free_.push_back(i - 1);
}

Result<std::span<float>> SlotPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty())
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("all {} slots (of {} bytes) for {} are in use; the schedule needs no more, "
                    "so this is a defect of its lowering",
                    slots_, floats_ * sizeof(float), name_));
  const std::size_t slot = free_.back();
  free_.pop_back();
  max_used_ = std::max(max_used_, slots_ - free_.size());
  return std::span(memory_.get() + slot * floats_, floats_);
}

void SlotPool::give_back(std::span<float> slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(static_cast<std::size_t>(slot.data() - memory_.get()) / floats_);
}

std::size_t SlotPool::max_used() const {
  const std::lock_guard lock(mutex_);
  return max_used_;
}

Result<> Activations::begin() {
  WSYNC_CHECK(!device_ && !host_, "a cell's activations begin once");
  auto slot = WSYNC_TRY(device_pool_.take());
  device_ = slot;
  used_ = 0;
  return {};
}

std::size_t Activations::reserve(std::size_t count) {
  WSYNC_CHECK(device_.has_value(), "only what is on the device can be written");
  WSYNC_CHECK(count <= device_->size() - used_, "a slot has room for all that a cell keeps");
  const std::size_t offset = used_;
  used_ += count;
  std::fill_n(device_->begin() + static_cast<std::ptrdiff_t>(offset), count, 0.0F);
  return offset;
}

std::span<float> Activations::values(std::size_t offset, std::size_t count) {
  WSYNC_CHECK(device_.has_value(), "only what is on the device can be read");
  return device_->subspan(offset, count);
}

Result<> Activations::offload() {
  WSYNC_CHECK(device_ && host_pool_ != nullptr, "what is on the device can be offloaded");
  auto slot = WSYNC_TRY(host_pool_->take());
  host_ = slot;
  std::memcpy(host_->data(), device_->data(), used_bytes());
  device_pool_.give_back(*std::exchange(device_, std::nullopt));
  return {};
}

Result<> Activations::onload() {
  WSYNC_CHECK(host_.has_value(), "what has been offloaded comes back");
  auto slot = WSYNC_TRY(device_pool_.take());
  device_ = slot;
  std::memcpy(device_->data(), host_->data(), used_bytes());
  host_pool_->give_back(*std::exchange(host_, std::nullopt));
  return {};
}

void Activations::release() {
  if (device_) device_pool_.give_back(*std::exchange(device_, std::nullopt));
  if (host_) host_pool_->give_back(*std::exchange(host_, std::nullopt));
}

}  // namespace wsync::training
