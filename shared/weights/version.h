// Version: (epoch, step), the name of one complete set of weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// The epoch increases when the rank 0 of the trainer is a new process; the step increases within an
// epoch. 0.0 means "none".
struct Version {
  std::uint32_t epoch = 0;
  std::uint64_t step = 0;
  friend bool operator==(const Version&, const Version&) = default;
  friend auto operator<=>(const Version&, const Version&) = default;
  [[nodiscard]] bool none() const noexcept { return epoch == 0 && step == 0; }
  [[nodiscard]] std::string to_string() const;  // "epoch.step"
  // kInvalidInput unless the text is two decimal numbers with a dot between them.
  [[nodiscard]] static Result<Version> parse(std::string_view text);
};

}  // namespace wsync
