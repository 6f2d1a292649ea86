// Streams of a GPU. The worker of a stream submits work to a CUstream and settles it (waits until
// the GPU has completed it) before it reports completion.
//
// A batch does not wait for the one before it: its table is copied to the GPU while that one runs,
// by a second CUstream, and its kernel follows on the first one. So kernels of consecutive batches
// are separated by one small copy of sums, not by a turn of the host.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "shared/device/cuda/batch_tables.h"
#include "shared/device/cuda/context.h"
#include "shared/device/cuda/kernel_table.h"
#include "shared/device/word_table.h"
#include "shared/device/worker_stream.h"

namespace wsync::device::cuda {

// Work that the GPU has not completed by then is given up. A copy or batch of one call takes at
// most some seconds, so longer work hangs.
inline constexpr std::chrono::seconds kSettleLimit{60};

struct StreamOptions {
  StreamRole role = StreamRole::kHostToDevice;
  std::string name;  // for error messages
  std::chrono::nanoseconds settle_limit = kSettleLimit;
};

// This class has more than 25 methods: a batch has the steps of its table, its kernel and its sums,
// for each kernel.
class CudaStream final : public WorkerStream {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaStream>> make(std::shared_ptr<const Gpu> gpu,
                                                                StreamOptions options);
  ~CudaStream() override;

  // Copies directly from and to registered host memory. Other memory is copied through
  // pinned buffers (bounce_ring.h; the driver's own, if it is little), which blocks the worker.
  [[nodiscard]] Result<> copy_to_device(const Region& to,
                                        std::span<const std::byte> source) override;
  [[nodiscard]] Result<> copy_rows_to_device(const Region& to, std::span<const std::byte> source,
                                             const RowShape& rows) override;
  [[nodiscard]] Result<> copy_to_host(std::span<std::byte> to, const Region& from) override;
  [[nodiscard]] Result<> copy_pieces(std::span<const Piece> pieces,
                                     std::span<SplitSum> sums) override;
  [[nodiscard]] Result<> change_words(std::span<const WordBlock> blocks,
                                      std::span<SplitSum> sums) override;

  // For communicators, while their work runs (run()) on a thread where the GPU's context is
  // current. Work submitted to this CUstream is settled afterwards.
  [[nodiscard]] CUstream native() const noexcept { return stream_.get(); }
  [[nodiscard]] const Gpu& gpu() const noexcept { return *gpu_; }

 private:
  // What a batch uses until the GPU has completed it.
  struct BatchSlot {
    BatchTables tables;
    OwnedEvent uploaded;  // the table is on the GPU
    OwnedEvent done;      // the sums are on the host
    std::span<SplitSum> wanted;
    const KernelSum* counted = nullptr;
    bool is_running = false;
  };

  CudaStream(std::shared_ptr<const Gpu> gpu, StreamOptions options, OwnedStream stream);
  [[nodiscard]] static Result<OwnedStream> make_stream(const Gpu& gpu, StreamRole role,
                                                       std::string_view name);
  [[nodiscard]] Result<> attach() override;
  [[nodiscard]] Result<> settle() override;
  [[nodiscard]] Result<> copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                              const std::stop_token& stop) override;
  [[nodiscard]] Result<> submit(CUresult code, std::string_view what);
  // Returns the open GPU whose memory is at the address. Its context must be current.
  [[nodiscard]] Result<std::shared_ptr<const Gpu>> gpu_at(const std::byte* address) const;
  [[nodiscard]] Result<> copy_in(CUdeviceptr to, std::span<const std::byte> source,
                                 const std::stop_token& stop);
  [[nodiscard]] Result<> copy_rows_in(CUdeviceptr to, std::span<const std::byte> source,
                                      const RowShape& rows, const std::stop_token& stop);
  [[nodiscard]] Result<> copy_pinned_rows(CUdeviceptr to, const std::byte* from,
                                          const RowShape& rows, std::uint64_t height);
  [[nodiscard]] Result<> copy_out(std::span<std::byte> to, CUdeviceptr from,
                                  const std::stop_token& stop);
  // Starts the kernel of a batch, whose table and sums lie at these addresses.
  using Launch = std::function<Result<>(CUdeviceptr table, CUdeviceptr sums)>;
  [[nodiscard]] Result<> run_batch(std::span<const std::byte> table, std::span<SplitSum> sums,
                                   const Launch& launch);
  // Copies the table and sums of zero to the GPU, and lets the stream wait for it.
  [[nodiscard]] Result<> upload(const BatchSlot& slot, std::uint64_t bytes);
  [[nodiscard]] Result<> launch(const KernelTable& table, CUdeviceptr pieces, CUdeviceptr sums);
  [[nodiscard]] Result<> launch(const WordTable& table, CUdeviceptr blocks, CUdeviceptr sums);
  // Waits for the batch that uses the slot, if there is one, and gives its sums to their owner.
  [[nodiscard]] Result<> finish(BatchSlot& slot);
  static void collect(BatchSlot& slot);
  [[nodiscard]] Result<> make_room(BatchSlot& slot, std::uint64_t bytes);
  [[nodiscard]] Result<> prepare_batches();
  [[nodiscard]] Result<> warm_up();
  // Asks the GPU until the answer is not "not ready". kDeadline, and the GPU is abandoned, if that
  // takes longer than the limit.
  [[nodiscard]] Result<> wait_for_gpu(const std::function<CUresult()>& query);
  [[nodiscard]] Result<> wait_for_stream(const OwnedStream& stream);

  const std::shared_ptr<const Gpu> gpu_;
  const StreamRole role_;
  const std::chrono::nanoseconds settle_limit_;
  OwnedStream stream_;
  // ---- used by the worker only ----
  std::optional<Error> fault_;
  OwnedStream uploads_;  // of tables; none before the first batch
  std::array<BatchSlot, 2> slots_;
  std::size_t next_slot_ = 0;  // the one that has been in use for longer
};

}  // namespace wsync::device::cuda
