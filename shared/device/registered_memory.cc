#include "shared/device/registered_memory.h"

#include <algorithm>
#include <utility>

#include "shared/base/weight_limits.h"
#include "shared/device/memory_gate.h"

namespace wsync::device {
namespace {

// Unregistering a slice takes about 15 ms, for which a run may have to wait.
constexpr std::size_t kSliceBytes = limits::kGiB;

class EndOfMapping {
 public:
  explicit EndOfMapping(std::shared_ptr<RegisteredMemory> memory) : memory_(std::move(memory)) {}
  EndOfMapping(const EndOfMapping&) = delete;
  EndOfMapping& operator=(const EndOfMapping&) = delete;
  ~EndOfMapping() { memory_->end(); }

 private:
  std::shared_ptr<RegisteredMemory> memory_;
};

}  // namespace

Result<std::string> RegisteredMemory::register_with(Device& device,
                                                    std::span<const std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kSliceBytes) {
    auto made = WSYNC_TRY(
        device.register_host(bytes.subspan(at, std::min(kSliceBytes, bytes.size() - at))));
    std::string fallback(made->registered() ? "" : made->fallback());
    add(std::move(made));
    if (!fallback.empty()) return fallback;
  }
  return std::string();
}

void RegisteredMemory::add(std::unique_ptr<HostRegistration> slice) {
  const std::lock_guard lock(mutex_);
  if (!slice->registered()) complete_ = false;
  slices_.push_back(std::move(slice));
}

bool RegisteredMemory::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::size_t RegisteredMemory::slices() const {
  const std::lock_guard lock(mutex_);
  return slices_.size();
}

bool RegisteredMemory::complete() const {
  const std::lock_guard lock(mutex_);
  return complete_;
}

void RegisteredMemory::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (auto& slice : slices_) {
    const auto gate = MemoryGate::memory_call();
    slice.reset();
  }
  slices_.clear();
}

std::shared_ptr<const void> end_of_mapping(std::shared_ptr<RegisteredMemory> memory) {
  return std::make_shared<const EndOfMapping>(std::move(memory));
}

}  // namespace wsync::device
