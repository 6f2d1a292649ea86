// Names and texts of the driver's errors.
#pragma once

#include <string_view>

namespace emulated_cuda {

// "CUDA_ERROR_OUT_OF_MEMORY", or null for a number that is no error of the driver.
[[nodiscard]] const char* error_name(int error);
// "out of memory", or null.
[[nodiscard]] const char* error_text(int error);
// The number of "CUDA_ERROR_OUT_OF_MEMORY"; -1 for another word.
[[nodiscard]] int error_of(std::string_view name);

}  // namespace emulated_cuda
