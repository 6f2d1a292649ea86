// How the parts of two ranks of one tensor lie to each other. Pure; any thread.
#pragma once

#include <cstdint>

#include "shared/control/messages.h"

namespace wsync::reload {

enum class PartRelation : std::uint8_t {
  kEqual,        // the same ranges
  kApart,        // no element in common
  kOverlapping,  // some elements in common
};

// `a` and `b` describe parts of the same tensor.
[[nodiscard]] PartRelation relation_of(const control::EngineTensor& a,
                                       const control::EngineTensor& b);

}  // namespace wsync::reload
