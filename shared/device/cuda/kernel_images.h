// The compiled kernels (kernels.cu): machine code for some GPUs, and PTX, from which the driver
// makes machine code for newer ones. deploy/cuda/compile_kernels.py writes them into one file that
// the library embeds:
//
//   8 bytes "WSYNCKI1", a u64 with the number of images, and for each image 24 bytes: u8 is PTX,
//   u8 major and u8 minor compute capability, 5 bytes 0, u64 offset in the file, u64 bytes. The
//   images begin at multiples of 64. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"

namespace wsync::device::cuda {

struct ComputeCapability {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  friend auto operator<=>(const ComputeCapability&, const ComputeCapability&) = default;
};
// "9.0"
[[nodiscard]] std::string capability_text(ComputeCapability capability);

struct KernelImage {
  bool is_ptx = false;
  ComputeCapability capability;
  std::span<const std::byte> bytes;  // in the form that cuModuleLoadData takes
};

// The images of this library, in the order of the build. They point into the library.
[[nodiscard]] const std::vector<KernelImage>& kernel_images();

// The images of a file, which point into it. kInvalidInput: it is no file of images, or is cut off.
[[nodiscard]] Result<std::vector<KernelImage>> read_kernel_images(std::span<const std::byte> file);

// The image for a GPU: machine code of the same major and the highest minor capability that is not
// above the GPU's, because machine code runs on GPUs of its own major capability alone (CUDA C++
// programming guide, Binary Compatibility); otherwise the PTX of the highest capability that is not
// above the GPU's. Null: there is none, so the GPU is older than all images.
[[nodiscard]] const KernelImage* choose_kernel_image(const std::vector<KernelImage>& images,
                                                     ComputeCapability gpu);

}  // namespace wsync::device::cuda
