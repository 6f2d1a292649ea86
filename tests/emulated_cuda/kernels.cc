#include "tests/emulated_cuda/kernels.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/memory.h"

namespace emulated_cuda {
namespace {
// Of the kernel that runs on this thread: the first address that is no multiple of its access.
thread_local std::uint64_t misaligned_at = 0;
}  // namespace
}  // namespace emulated_cuda

#define WSYNC_ACCESS(address, bytes)                                   \
  if ((address) % (bytes) != 0 && ::emulated_cuda::misaligned_at == 0) \
  ::emulated_cuda::misaligned_at = (address)
#include "shared/device/cuda/kernels_body.h"
#include "shared/device/cuda/patch_body.h"

namespace emulated_cuda {
namespace {

namespace cuda = wsync::device::cuda;

struct CopyPieces {
  CUdeviceptr pieces = 0;
  std::uint32_t count = 0;
  std::uint64_t unit_bytes = 0;
  std::uint64_t units = 0;
  CUdeviceptr sums = 0;
  unsigned blocks = 0;
  bool converts = false;
};

constexpr const char* kCopyPieces = cuda::kCopyPiecesKernel;

// After a kernel has run.
CUresult check_alignment(const char* name) {
  const std::uint64_t at = std::exchange(misaligned_at, 0);
  if (at == 0) return CUDA_SUCCESS;
  return misuse(name, CUDA_ERROR_MISALIGNED_ADDRESS,
                "an access begins " + std::to_string(at % 16) +
                    " bytes behind a multiple of 16, which is no multiple of its size");
}

class CopyPiecesRun {
 public:
  CopyPiecesRun(const CopyPieces& launch, const Context& context)
      : launch_(launch), context_(context) {}

  CUresult run(std::byte*& written) {
    if (launch_.count == 0 || launch_.units == 0) return CUDA_SUCCESS;
    if (!translate()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::uint64_t units =
        std::min(launch_.units, std::uint64_t{launch_.blocks} * cuda::kWarpsPerBlock);
    if (units < launch_.units) report(std::string(kCopyPieces) + ": too few blocks for its units");
    cuda::run_pieces_on_host(pieces_.data(), launch_.count, launch_.unit_bytes, units, sums_);
    for (const auto& piece : pieces_) {
      if (piece.to != 0)
        written = reinterpret_cast<std::byte*>(piece.to) +
                  piece.cast.converted(piece.row_bytes * piece.rows) / 2;
    }
    return check_alignment(kCopyPieces);
  }

 private:
  // The address at which the host finds the bytes; 0: outside, which is reported.
  std::uint64_t view(std::uint64_t address, std::uint64_t bytes, bool writes = false) {
    Place place;
    if (kernel_place(kCopyPieces, context_, address, bytes, writes, place) != CUDA_SUCCESS)
      return 0;
    holds_.emplace_back(place.used);
    return reinterpret_cast<std::uint64_t>(place.at);
  }

  bool translate_piece(cuda::KernelPiece& piece) {
    std::uint64_t bytes = 0;
    std::uint64_t span = 0;
    if (piece.row_bytes == 0 || piece.rows == 0 ||
        __builtin_mul_overflow(piece.row_bytes, piece.rows, &bytes) ||
        __builtin_mul_overflow(piece.rows - 1, piece.from_stride, &span) ||
        __builtin_add_overflow(span, piece.row_bytes, &span)) {
      report(std::string(kCopyPieces) + ": a piece of impossible size");
      return false;
    }
    if (!launch_.converts && !piece.cast.is_none()) {
      report(std::string(kCopyPieces) + ": a piece that is converted");
      return false;
    }
    piece.from = view(piece.from, piece.rows == 1 ? piece.row_bytes : span);
    if (piece.from == 0) return false;
    max_sum_ =
        piece.sum == cuda::KernelPiece::kNoSum ? max_sum_ : std::max(max_sum_, piece.sum + 1);
    if (piece.to == 0) return true;
    piece.to = view(piece.to, piece.cast.converted(bytes), true);
    return piece.to != 0;
  }

  bool translate() {
    const auto table = view(launch_.pieces, launch_.count * sizeof(cuda::KernelPiece));
    if (table == 0) return false;
    const auto* first = reinterpret_cast<const cuda::KernelPiece*>(table);
    pieces_.assign(first, first + launch_.count);
    for (auto& piece : pieces_) {
      if (!translate_piece(piece)) return false;
    }
    if (max_sum_ == 0) return true;
    sums_ = reinterpret_cast<cuda::KernelSum*>(
        view(launch_.sums, std::uint64_t{max_sum_} * sizeof(cuda::KernelSum), true));
    return sums_ != nullptr;
  }

  const CopyPieces launch_;
  const Context& context_;
  std::vector<cuda::KernelPiece> pieces_;  // with the host's addresses
  cuda::KernelSum* sums_ = nullptr;
  std::uint32_t max_sum_ = 0;
  std::vector<Hold> holds_;
};

std::function<CUresult(std::byte*& written)> prepare_pieces(void** parameters, unsigned blocks,
                                                            std::shared_ptr<Context> context,
                                                            bool converts) {
  CopyPieces launch;
  launch.converts = converts;
  launch.pieces = *static_cast<const CUdeviceptr*>(parameters[0]);
  launch.count = *static_cast<const std::uint32_t*>(parameters[1]);
  launch.unit_bytes = *static_cast<const std::uint64_t*>(parameters[2]);
  launch.units = *static_cast<const std::uint64_t*>(parameters[3]);
  launch.sums = *static_cast<const CUdeviceptr*>(parameters[4]);
  launch.blocks = blocks;
  return [launch, context = std::move(context)](std::byte*& written) {
    return CopyPiecesRun(launch, *context).run(written);
  };
}

std::function<CUresult(std::byte*& written)> prepare_copy_pieces(void** parameters, unsigned blocks,
                                                                 std::shared_ptr<Context> context) {
  return prepare_pieces(parameters, blocks, std::move(context), false);
}

std::function<CUresult(std::byte*& written)> prepare_convert_pieces(
    void** parameters, unsigned blocks, std::shared_ptr<Context> context) {
  return prepare_pieces(parameters, blocks, std::move(context), true);
}

struct ReadBytes {
  CUdeviceptr from = 0;
  std::uint64_t granules = 0;
  CUdeviceptr folded = 0;
};

CUresult run_read_bytes(const ReadBytes& launch, const Context& context) {
  Place from;
  Place folded;
  const char* name = cuda::kReadBytesKernel;
  if (kernel_place(name, context, launch.from, launch.granules * cuda::kGranuleBytes, false,
                   from) != CUDA_SUCCESS ||
      kernel_place(name, context, launch.folded, sizeof(unsigned long long), true, folded) !=
          CUDA_SUCCESS)
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  const Hold holds[] = {Hold(from.used), Hold(folded.used)};
  cuda::read_bytes_on_host(from.at, launch.granules,
                           reinterpret_cast<unsigned long long*>(folded.at));
  return check_alignment(name);
}

std::function<CUresult(std::byte*& written)> prepare_read_bytes(void** parameters, unsigned,
                                                                std::shared_ptr<Context> context) {
  ReadBytes launch;
  launch.from = *static_cast<const CUdeviceptr*>(parameters[0]);
  launch.granules = *static_cast<const std::uint64_t*>(parameters[1]);
  launch.folded = *static_cast<const CUdeviceptr*>(parameters[2]);
  return [launch, context = std::move(context)](std::byte*&) {
    return run_read_bytes(launch, *context);
  };
}

struct ChangeWords {
  CUdeviceptr blocks = 0;
  std::uint32_t count = 0;
  std::uint64_t units = 0;
  CUdeviceptr sums = 0;
  unsigned grid = 0;
};

class ChangeWordsRun {
 public:
  ChangeWordsRun(const ChangeWords& launch, const Context& context)
      : launch_(launch), context_(context) {}

  CUresult run(std::byte*& written) {
    if (launch_.count == 0 || launch_.units == 0) return CUDA_SUCCESS;
    const std::uint64_t table = view(launch_.blocks, launch_.count * sizeof(cuda::KernelWords));
    if (table == 0) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const auto* first = reinterpret_cast<const cuda::KernelWords*>(table);
    blocks_.assign(first, first + launch_.count);
    std::uint64_t pairs = 0;
    for (auto& block : blocks_) {
      if (!translate(block)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      pairs = std::max(pairs, std::uint64_t{block.sum} + 1);
      written = reinterpret_cast<std::byte*>(block.to);
    }
    auto* sums = reinterpret_cast<cuda::KernelSum*>(
        view(launch_.sums, 2 * pairs * sizeof(cuda::KernelSum), true));
    if (sums == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const std::uint64_t units =
        std::min(launch_.units, std::uint64_t{launch_.grid} * cuda::kWarpsPerBlock);
    if (units < launch_.units) report(std::string(kName) + ": too few blocks for its units");
    cuda::change_words_on_host(blocks_.data(), launch_.count, units, sums);
    return check_alignment(kName);
  }

 private:
  static constexpr const char* kName = cuda::kChangeWordsKernel;
  // As in CopyPiecesRun.
  std::uint64_t view(std::uint64_t address, std::uint64_t bytes, bool writes = false) {
    Place place;
    if (kernel_place(kName, context_, address, bytes, writes, place) != CUDA_SUCCESS) return 0;
    holds_.emplace_back(place.used);
    return reinterpret_cast<std::uint64_t>(place.at);
  }
  // An array of the block, which it has or not.
  bool translate_array(std::uint64_t& address, std::uint64_t bytes) {
    if (address == 0) return true;
    address = view(address, bytes);
    return address != 0;
  }
  bool translate(cuda::KernelWords& block) {
    const std::uint64_t words = block.words;
    if (words == 0 || block.values == 0 || !translate_array(block.values, words * 8) ||
        !translate_array(block.heads, words * 4) || !translate_array(block.places, words * 4))
      return false;
    const bool has_heads = block.heads != 0;
    const bool has_places = block.places != 0;
    // The bytes of its memory that its threads reach.
    std::uint64_t end = 0;
    for (std::uint32_t i = 0; i < block.words; ++i) {
      const std::uint32_t head = has_heads ? reinterpret_cast<const std::uint32_t*>(block.heads)[i]
                                           : wsync::device::pack({.number = i});
      const std::uint64_t at = has_places ? reinterpret_cast<const std::uint32_t*>(block.places)[i]
                                          : std::uint64_t{head % wsync::device::kWordNumbers} * 8;
      const std::uint32_t held = head >> wsync::device::kHeldBytesShift & wsync::device::kAllBytes;
      end = std::max(end, at + static_cast<std::uint64_t>(std::popcount(held)));
    }
    block.to = view(block.to, end, true);
    return block.to != 0;
  }

  const ChangeWords launch_;
  const Context& context_;
  std::vector<cuda::KernelWords> blocks_;  // with the host's addresses
  std::vector<Hold> holds_;
};

std::function<CUresult(std::byte*& written)> prepare_change_words(
    void** parameters, unsigned blocks, std::shared_ptr<Context> context) {
  ChangeWords launch;
  launch.blocks = *static_cast<const CUdeviceptr*>(parameters[0]);
  launch.count = *static_cast<const std::uint32_t*>(parameters[1]);
  launch.units = *static_cast<const std::uint64_t*>(parameters[2]);
  launch.sums = *static_cast<const CUdeviceptr*>(parameters[3]);
  launch.grid = blocks;
  return [launch, context = std::move(context)](std::byte*& written) {
    return ChangeWordsRun(launch, *context).run(written);
  };
}

constexpr Kernel kKernels[] = {
    {.name = kCopyPieces, .threads = cuda::kThreadsPerBlock, .prepare = prepare_copy_pieces},
    {.name = cuda::kReadBytesKernel,
     .threads = cuda::kThreadsPerBlock,
     .prepare = prepare_read_bytes},
    {.name = cuda::kConvertPiecesKernel,
     .threads = cuda::kThreadsPerBlock,
     .prepare = prepare_convert_pieces},
    {.name = cuda::kChangeWordsKernel,
     .threads = cuda::kThreadsPerBlock,
     .prepare = prepare_change_words},
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

}  // namespace emulated_cuda
