// PartFailure: the first failure among parts that several threads write.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>

#include "shared/base/error.h"
#include "shared/base/format.h"
#include "trainer_side/publish/draft.h"

namespace wsync::publish {

// Thread: any.
class PartFailure {
 public:
  // Returns whether it is a success.
  bool keep(const Result<>& result, std::size_t part) {
    if (result) return true;
    const std::lock_guard lock(mutex_);
    if (!error_) {
      error_ = result.error();
      part_ = part;
    }
    is_set_ = true;
    return false;
  }
  [[nodiscard]] bool is_set() const noexcept { return is_set_; }
  // The failure with the name of its part, whose index is then `failed`. When all threads have
  // ended.
  [[nodiscard]] Result<> result(std::span<const DraftPart> parts, std::size_t& failed) const {
    if (!error_) return {};
    failed = part_;
    return fail(error_->with_context(fmt::format("tensor {}", parts[part_].name)));
  }

 private:
  std::mutex mutex_;
  std::optional<Error> error_;
  std::size_t part_ = 0;
  std::atomic<bool> is_set_ = false;
};

}  // namespace wsync::publish
