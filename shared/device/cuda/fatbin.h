// The compiled kernels (kernels.cu), for every architecture that the build has them for.
#pragma once

#include <cstddef>
#include <span>

namespace wsync::device {

// The fat binary, in the form that cuModuleLoadData takes. Constant, for the life of the library.
[[nodiscard]] std::span<const std::byte> fatbin() noexcept;

}  // namespace wsync::device
