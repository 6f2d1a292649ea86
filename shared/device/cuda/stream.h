// Streams of a GPU: work is submitted to a CUstream by the stream's worker, which settles it (waits
// until the GPU has done it) before anybody is told that it is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "shared/device/cuda/context.h"
#include "shared/device/cuda/kernel_table.h"
#include "shared/device/worker_stream.h"

namespace wsync::device::cuda {

// Work that the GPU has not ended by then is given up: no copy or batch of one call takes more than
// some seconds, so it hangs, or waits for an event of a process that is gone.
inline constexpr std::chrono::seconds kSettleLimit{60};

struct StreamOptions {
  StreamRole role = StreamRole::kHostToDevice;
  std::string name;  // for error messages
  std::chrono::nanoseconds settle_limit = kSettleLimit;
};

class CudaStream final : public WorkerStream {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaStream>> make(std::shared_ptr<const Gpu> gpu,
                                                                StreamOptions options);
  ~CudaStream() override { close(); }

  // Straight from registered host memory. From other memory the driver copies through a buffer of
  // its own, and the submitting call, on the worker, takes as long as that does.
  [[nodiscard]] Result<> copy_to_device(const Region& to,
                                        std::span<const std::byte> source) override;
  [[nodiscard]] Result<> copy_to_host(std::span<std::byte> to, const Region& from) override;
  [[nodiscard]] Result<> copy_pieces(std::span<const Piece> pieces,
                                     std::span<PieceDigest> sums) override;
  [[nodiscard]] Result<> publish(Memory& memory) override;
  [[nodiscard]] Result<> acquire(const Memory& memory) override;

  // For communicators, in a turn of theirs (run()), on whose thread the GPU's context is current:
  // work submitted to it is settled after the turn.
  [[nodiscard]] CUstream native() const noexcept { return stream_.get(); }
  [[nodiscard]] const Gpu& gpu() const noexcept { return *gpu_; }

 private:
  // Host and device memory that a batch's table and sums go through; one batch at a time uses it.
  struct Scratch {
    OwnedPinned host;
    OwnedMemory device;
    std::uint64_t bytes = 0;
  };

  CudaStream(std::shared_ptr<const Gpu> gpu, StreamOptions options, OwnedStream stream);
  [[nodiscard]] Result<> attach() override;
  [[nodiscard]] Result<> settle() override;
  [[nodiscard]] Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                              const std::stop_token& stop) override;
  [[nodiscard]] Result<> submit(CUresult code, std::string_view what);
  [[nodiscard]] Result<> copy_in(CUdeviceptr to, std::span<const std::byte> source,
                                 const std::stop_token& stop);
  [[nodiscard]] Result<> copy_out(std::span<std::byte> to, CUdeviceptr from,
                                  const std::stop_token& stop);
  [[nodiscard]] Result<> run_batch(const KernelTable& table, std::span<PieceDigest> sums);
  [[nodiscard]] Result<> launch(const KernelTable& table, CUdeviceptr pieces, CUdeviceptr sums);
  [[nodiscard]] Result<> make_room(std::uint64_t bytes);
  [[nodiscard]] Result<> warm_up();
  [[nodiscard]] Result<> wait_for_gpu();
  [[nodiscard]] Result<> wait_for(CUevent event, const std::stop_token& stop);

  const std::shared_ptr<const Gpu> gpu_;
  const std::chrono::nanoseconds settle_limit_;
  OwnedStream stream_;
  // ---- of the worker ----
  std::optional<Error> fault_;
  Scratch scratch_;
  std::span<PieceDigest> wanted_;  // sums of the batch that is under way
  const KernelSum* counted_ = nullptr;
};

}  // namespace wsync::device::cuda
