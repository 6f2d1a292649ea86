// What the sentence of a rank has that cannot return the bytes of a tensor it holds, for example
// because its engine gives no read_tensor. `wsync verify` tells it from a difference by these
// words.
#pragma once

#include <string_view>

namespace wsync::control {

inline constexpr std::string_view kCannotReadBack = "cannot be read back";

}  // namespace wsync::control
