// The compiled kernels (kernels.cu) for every architecture of the build.
#pragma once

#include <cstddef>
#include <span>

namespace wsync::device {

// The fat binary, in the form that cuModuleLoadData accepts. Constant for the life of the library.
[[nodiscard]] std::span<const std::byte> fatbin() noexcept;

}  // namespace wsync::device
