// The kernels that the emulated driver carries out, with the code of shared/device/cuda that the
// GPU runs too, compiled for the host.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

struct Kernel {
  const char* name;
  unsigned threads;  // of a block
  // Takes the parameters now; what it returns runs the launch on the stream. An address outside of
  // memory is reported and is CUDA_ERROR_ILLEGAL_ADDRESS, which sticks to the context.
  std::function<CUresult(std::byte*& written)> (*prepare)(void** parameters, unsigned blocks,
                                                          std::shared_ptr<Context> context);
};
[[nodiscard]] std::span<const Kernel> kernels();

}  // namespace emulated_cuda
