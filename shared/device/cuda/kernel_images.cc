#include "shared/device/cuda/kernel_images.h"

#include <cstring>

#include "shared/base/check.h"
#include "shared/base/format.h"

// The assembler embeds the file that the build makes. Images of machine code are aligned in it.
asm(".pushsection .rodata.wsync_kernel_images, \"a\"\n"
    ".balign 64\n"
    ".hidden wsync_kernel_images_begin\n"
    ".globl wsync_kernel_images_begin\n"
    "wsync_kernel_images_begin:\n"
    ".incbin \"" WSYNC_KERNEL_IMAGES
    "\"\n"
    ".hidden wsync_kernel_images_end\n"
    ".globl wsync_kernel_images_end\n"
    "wsync_kernel_images_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const std::byte wsync_kernel_images_begin[];
extern "C" const std::byte wsync_kernel_images_end[];

namespace wsync::device::cuda {
namespace {

constexpr char kMagic[] = {'W', 'S', 'Y', 'N', 'C', 'K', 'I', '1'};
constexpr std::size_t kHeaderBytes = 16;
constexpr std::size_t kEntryBytes = 24;

std::uint64_t number_at(std::span<const std::byte> file, std::size_t at) {
  std::uint64_t number = 0;
  std::memcpy(&number, file.data() + at, sizeof number);
  return number;
}

Result<KernelImage> read_entry(std::span<const std::byte> file, std::size_t at) {
  const std::uint64_t offset = number_at(file, at + 8);
  const std::uint64_t bytes = number_at(file, at + 16);
  if (offset > file.size() || bytes > file.size() - offset)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the file of kernels has {} bytes, but an image of {} bytes is at {}",
                            file.size(), bytes, offset));
  return KernelImage{.is_ptx = file[at] != std::byte{0},
                     .capability = {.major = std::to_integer<std::uint32_t>(file[at + 1]),
                                    .minor = std::to_integer<std::uint32_t>(file[at + 2])},
                     .bytes = file.subspan(offset, bytes)};
}

}  // namespace

std::string capability_text(ComputeCapability capability) {
  return fmt::format("{}.{}", capability.major, capability.minor);
}

Result<std::vector<KernelImage>> read_kernel_images(std::span<const std::byte> file) {
  if (file.size() < kHeaderBytes || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
    return fail(ErrorCode::kInvalidInput, "the file of kernels does not begin with WSYNCKI1");
  const std::uint64_t count = number_at(file, sizeof kMagic);
  if (count > (file.size() - kHeaderBytes) / kEntryBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the file of kernels has {} bytes, too few for the table of {} images",
                            file.size(), count));
  std::vector<KernelImage> images;
  for (std::uint64_t i = 0; i < count; ++i)
    images.push_back(WSYNC_TRY(read_entry(file, kHeaderBytes + i * kEntryBytes)));
  return images;
}

const std::vector<KernelImage>& kernel_images() {
  static const std::vector<KernelImage> all = [] {
    auto read = read_kernel_images({wsync_kernel_images_begin, wsync_kernel_images_end});
    WSYNC_CHECK(read.has_value(), "the build has embedded a file of kernels that cannot be read");
    return std::move(*read);
  }();
  return all;
}

const KernelImage* choose_kernel_image(const std::vector<KernelImage>& images,
                                       ComputeCapability gpu) {
  const KernelImage* best = nullptr;
  for (const KernelImage& image : images) {
    if (image.capability > gpu) continue;
    if (!image.is_ptx && image.capability.major != gpu.major) continue;
    const bool is_better = best == nullptr || (best->is_ptx && !image.is_ptx) ||
                           (best->is_ptx == image.is_ptx && best->capability < image.capability);
    if (is_better) best = &image;
  }
  return best;
}

}  // namespace wsync::device::cuda
