#include "shared/device/cuda/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sys/prctl.h>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/device/cuda/bounce_ring.h"
#include "shared/device/cuda/memory.h"
#include "shared/device/cuda/poll_pause.h"
#include "shared/device/cuda/registration.h"

namespace wsync::device::cuda {
namespace {

// The worker first polls the GPU without a pause, then at intervals. A worker that spins for the
// duration of a bucket's copy from the host would take a core from the engine. A batch of a reload
// takes less than a millisecond, while the engine stands still, so it is polled for so long: the
// intervals would add some percent to its time.
constexpr std::chrono::microseconds kSpin{300};
constexpr std::chrono::microseconds kReloadSpin{1'000};
constexpr std::chrono::microseconds kPollPause{30};
// Timer slack in ns. The kernel's default of 50 us would be added to each pause.
constexpr unsigned long kTimerSlack = 1'000;
// Room for the table of a bucket with some thousand pieces. It is allocated before any work runs,
// because a GPU allocation may wait for running kernels.
constexpr std::uint64_t kTablesBytesMin = std::uint64_t{1} << 20U;

// The least that a driver allows (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr std::uint64_t kMaxPitch = (std::uint64_t{1} << 31U) - 1;

// Smaller copies from and to memory that is not pinned are left to the driver.
constexpr std::uint64_t kBounceBytesMin = std::uint64_t{1} << 20U;

CUdeviceptr device_address(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

// A broadcast holds up all devices of a group, a reload one engine, and a copy to the device the
// next round. Only kernels respect priorities, because copies use engines of their own. Lower
// numbers have higher priority.
int priority_of(StreamRole role, int min, int greatest) {
  switch (role) {
    case StreamRole::kBroadcast:
      return greatest;
    case StreamRole::kReload:
      return std::min(greatest + 1, min);
    case StreamRole::kHostToDevice:
    case StreamRole::kDeviceToHost:
      return min;
  }
  return min;
}

Result<> is_gpu_memory(const Memory* memory, std::string_view stream) {
  if (memory == nullptr || dynamic_cast<const CudaMemory*>(memory) != nullptr) return {};
  return fail(ErrorCode::kInvalidInput, fmt::format("{}: the memory is not GPU memory", stream));
}

// A kernel can access the memory of its own GPU. It can access memory of other GPUs only if they
// are peers.
Result<> is_own_memory(const Memory* memory, const Gpu& gpu, std::string_view stream) {
  WSYNC_TRY(is_gpu_memory(memory, stream));
  if (memory == nullptr) return {};
  const auto& own = static_cast<const CudaMemory&>(*memory);
  if (&own.gpu() == &gpu) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: a piece is in the memory of {}, expected {}", stream,
                          own.gpu().name(), gpu.name()));
}

Error stopped(std::uint64_t at, std::uint64_t bytes) {
  return {ErrorCode::kCancelled, fmt::format("copy stopped at byte {} of {}", at, bytes)};
}

}  // namespace

Result<std::unique_ptr<CudaStream>> CudaStream::make(std::shared_ptr<const Gpu> gpu,
                                                     StreamOptions options) {
  WSYNC_TRY(gpu->usable());
  const ContextGuard guard(*gpu->context());
  WSYNC_TRY(guard.entered());
  auto owned = WSYNC_TRY(make_stream(*gpu, options.role, options.name));
  const StreamRole role = options.role;
  auto made = std::unique_ptr<CudaStream>(
      new CudaStream(std::move(gpu), std::move(options), std::move(owned)));
  // Streams that only copy launch no kernel.
  if (role == StreamRole::kBroadcast || role == StreamRole::kReload) WSYNC_TRY(made->warm_up());
  return made;
}

Result<OwnedStream> CudaStream::make_stream(const Gpu& gpu, StreamRole role,
                                            std::string_view name) {
  const Driver& cuda = gpu.cuda();
  int min = 0;
  int greatest = 0;
  WSYNC_TRY(check(cuda, cuda.cuCtxGetStreamPriorityRange(&min, &greatest),
                  fmt::format("{}: cannot read the range of stream priorities", name)));
  CUstream stream = nullptr;
  WSYNC_TRY(check(cuda,
                  cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                  priority_of(role, min, greatest)),
                  fmt::format("{}: cannot create a stream", name)));
  return OwnedStream(gpu.context(), stream);
}

// All that a batch needs is made before any work runs, because a GPU allocation may wait for
// running kernels.
Result<> CudaStream::prepare_batches() {
  if (uploads_) return {};
  const Driver& cuda = gpu_->cuda();
  for (BatchSlot& slot : slots_) {
    for (OwnedEvent* event : {&slot.uploaded, &slot.done}) {
      CUevent made = nullptr;
      WSYNC_TRY(check(cuda, cuda.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING),
                      "an event of a batch cannot be created"));
      *event = OwnedEvent(gpu_->context(), made);
    }
    WSYNC_TRY(make_room(slot, kTablesBytesMin));
  }
  uploads_ = WSYNC_TRY(make_stream(*gpu_, role_, name()));
  return {};
}

// The driver loads a kernel at its first launch. Launch them now, so that this delay does not occur
// in a pause.
Result<> CudaStream::warm_up() {
  WSYNC_TRY(prepare_batches());
  const CUdeviceptr tables = slots_[0].tables.device.get();
  WSYNC_TRY(launch(KernelTable{}, tables, tables));
  WSYNC_TRY(launch(KernelTable{.converts = true}, tables, tables));
  return launch(WordTable{}, tables, tables);
}

CudaStream::CudaStream(std::shared_ptr<const Gpu> gpu, StreamOptions options, OwnedStream stream)
    : WorkerStream(DeviceKind::kCuda, std::move(options.name)),
      gpu_(std::move(gpu)),
      role_(options.role),
      settle_limit_(options.settle_limit),
      stream_(std::move(stream)) {}

// Work that nobody has settled may still use the tables.
CudaStream::~CudaStream() {
  close();
  if (!uploads_ || gpu_->context()->abandoned()) return;
  const ContextGuard guard(*gpu_->context());
  if (!guard.entered() || !wait_for_stream(uploads_) || !wait_for_stream(stream_)) return;
  for (BatchSlot& slot : slots_) gpu_->batch_tables().give(std::move(slot.tables));
}

Result<> CudaStream::attach() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlack);
  return check(gpu_->cuda(), gpu_->cuda().cuCtxSetCurrent(gpu_->context()->handle()),
               "the GPU's context cannot be made current");
}

Result<> CudaStream::submit(CUresult code, std::string_view what) {
  return check(gpu_->cuda(), code, what);
}

Result<> CudaStream::wait_for_gpu(const std::function<CUresult()>& query) {
  const TimePoint begin = now();
  const auto spin = role_ == StreamRole::kReload ? kReloadSpin : kSpin;
  for (;;) {
    const CUresult code = query();
    if (code != CUDA_ERROR_NOT_READY) return check(gpu_->cuda(), code, "work of the GPU failed");
    const auto waited = now() - begin;
    if (waited >= settle_limit_) break;
    // Another stream has already waited for this GPU in vain.
    if (const auto usable = gpu_->usable(); !usable)
      return fail(ErrorCode::kDeadline, usable.error().message());
    if (waited >= spin) std::this_thread::sleep_for(poll_pause(waited, kPollPause));
  }
  gpu_->context()->abandon(
      fmt::format("the GPU did not complete its work within {} s", seconds(settle_limit_)));
  return fail(ErrorCode::kDeadline,
              fmt::format("{} has not completed its work within {} s and is abandoned; restart the "
                          "process, and check the machine's kernel log for GPU faults (NVRM: Xid)",
                          gpu_->name(), seconds(settle_limit_)));
}

Result<> CudaStream::wait_for_stream(const OwnedStream& stream) {
  return wait_for_gpu([&] { return gpu_->cuda().cuStreamQuery(stream.get()); });
}

// Always queries the GPU, because a communicator may have submitted work directly. The stream waits
// for every upload, so it is not complete before them.
Result<> CudaStream::settle() {
  if (fault_) return fail(*fault_);
  if (auto done = wait_for_stream(stream_); !done) {
    fault_ = done.error();
    return done;
  }
  // Two batches may have the same sums: those of the later one stay.
  for (std::size_t i = 0; i < slots_.size(); ++i) collect(slots_[(next_slot_ + i) % slots_.size()]);
  return {};
}

Result<> CudaStream::finish(BatchSlot& slot) {
  if (!slot.is_running) return {};
  if (fault_) return fail(*fault_);
  if (auto done = wait_for_gpu([&] { return gpu_->cuda().cuEventQuery(slot.done.get()); }); !done) {
    fault_ = done.error();
    return done;
  }
  collect(slot);
  return {};
}

void CudaStream::collect(BatchSlot& slot) {
  if (!std::exchange(slot.is_running, false)) return;
  for (std::size_t i = 0; i < slot.wanted.size(); ++i) slot.wanted[i] = sum_of(slot.counted[i]);
}

Result<> CudaStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                          const std::stop_token& stop) {
  if (stop.stop_requested()) return fail(stopped(0, bytes));
  if (bytes == 0) return {};
  const Driver& cuda = gpu_->cuda();
  const auto target = WSYNC_TRY(gpu_at(to));
  const auto source = WSYNC_TRY(gpu_at(from));
  if (target == gpu_ && source == gpu_)
    return submit(
        cuda.cuMemcpyAsync(device_address(to), device_address(from), bytes, stream_.get()),
        "a copy on the GPU");
  // Directly between peers, otherwise through host memory. cuMemcpyAsync does not do that for
  // mapped memory: it needs access of one GPU to both sides.
  return submit(
      cuda.cuMemcpyPeerAsync(device_address(to), target->context()->handle(), device_address(from),
                             source->context()->handle(), bytes, stream_.get()),
      "a copy between GPUs");
}

Result<std::shared_ptr<const Gpu>> CudaStream::gpu_at(const std::byte* address) const {
  int number = 0;
  WSYNC_TRY(check(gpu_->cuda(),
                  gpu_->cuda().cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                     device_address(address)),
                  "the GPU of an address"));
  if (static_cast<std::uint32_t>(number) == gpu_->number()) return gpu_;
  auto other = Gpu::find(gpu_->cuda(), static_cast<std::uint32_t>(number));
  if (other != nullptr) return other;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a copy uses memory of GPU {}, which is not open", number));
}

// The driver requires that a copy lies in one registration of host memory or in none.
Result<> CudaStream::copy_in(CUdeviceptr to, std::span<const std::byte> source,
                             const std::stop_token& stop) {
  BounceRing* ring = gpu_->bounce_ring();
  for (std::uint64_t at = 0; at < source.size();) {
    if (stop.stop_requested()) return fail(stopped(at, source.size()));
    const auto part = first_part(source.data() + at, source.size() - at);
    if (ring != nullptr && !part.is_pinned && part.bytes >= kBounceBytesMin)
      WSYNC_TRY(
          ring->copy(to + at, source.subspan(at, part.bytes), stream_.get(), settle_limit_, stop));
    else
      WSYNC_TRY(submit(
          gpu_->cuda().cuMemcpyHtoDAsync(to + at, source.data() + at, part.bytes, stream_.get()),
          "a copy to the GPU"));
    at += part.bytes;
  }
  return {};
}

// One call for many rows: on an H200, rows of 128 bytes travel at 49 GB/s so, and a call for each
// of them at 0.1 GB/s. A call must lie in one registration. Rows of memory that is not pinned
// travel through the ring, with what lies between them.
Result<> CudaStream::copy_rows_in(CUdeviceptr to, std::span<const std::byte> source,
                                  const RowShape& rows, const std::stop_token& stop) {
  for (std::uint64_t at = 0; at < source.size();) {
    if (stop.stop_requested()) return fail(stopped(at, source.size()));
    const std::uint64_t left = source.size() - at;
    const auto part = first_part(source.data() + at, left);
    std::uint64_t height =
        part.bytes < rows.row_bytes ? 0 : (part.bytes - rows.row_bytes) / rows.stride + 1;
    if (part.is_pinned && height > 0 && rows.stride <= kMaxPitch) {
      WSYNC_TRY(copy_pinned_rows(to + at, source.data() + at, rows, height));
    } else {
      // Up to the row that begins behind this part. A row may lie in two parts.
      height = part.is_pinned ? 1 : (part.bytes + rows.stride - 1) / rows.stride;
      const std::uint64_t bytes = part.is_pinned ? rows.row_bytes : height * rows.stride;
      WSYNC_TRY(copy_in(to + at, source.subspan(at, std::min(left, bytes)), stop));
    }
    at += height * rows.stride;
  }
  return {};
}

Result<> CudaStream::copy_pinned_rows(CUdeviceptr to, const std::byte* from, const RowShape& rows,
                                      std::uint64_t height) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcPitch = rows.stride;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = to;
  copy.dstPitch = rows.stride;
  copy.WidthInBytes = rows.row_bytes;
  copy.Height = height;
  return submit(gpu_->cuda().cuMemcpy2DAsync(&copy, stream_.get()), "a copy of rows to the GPU");
}

Result<> CudaStream::copy_out(std::span<std::byte> to, CUdeviceptr from,
                              const std::stop_token& stop) {
  BounceRing* ring = gpu_->bounce_ring();
  for (std::uint64_t at = 0; at < to.size();) {
    if (stop.stop_requested()) return fail(stopped(at, to.size()));
    const auto part = first_part(to.data() + at, to.size() - at);
    if (ring != nullptr && !part.is_pinned && part.bytes >= kBounceBytesMin)
      WSYNC_TRY(ring->copy_back(to.subspan(at, part.bytes), from + at, stream_.get(), settle_limit_,
                                stop));
    else
      WSYNC_TRY(submit(
          gpu_->cuda().cuMemcpyDtoHAsync(to.data() + at, from + at, part.bytes, stream_.get()),
          "a copy from the GPU"));
    at += part.bytes;
  }
  return {};
}

Result<> CudaStream::copy_to_device(const Region& to, std::span<const std::byte> source) {
  WSYNC_TRY(check_region(to, true));
  WSYNC_TRY(is_gpu_memory(to.memory, name()));
  if (to.bytes != source.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of {} bytes into a region of {} bytes", name(),
                            source.size(), to.bytes));
  enqueue([this, at = device_address(to.memory->address() + to.offset),
           source](const std::stop_token& stop) { return copy_in(at, source, stop); });
  return {};
}

Result<> CudaStream::copy_rows_to_device(const Region& to, std::span<const std::byte> source,
                                         const RowShape& rows) {
  WSYNC_TRY(check_region(to, true));
  WSYNC_TRY(is_gpu_memory(to.memory, name()));
  if (to.bytes != source.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of rows in {} bytes into a region of {} bytes", name(),
                            source.size(), to.bytes));
  if (auto checked = check_rows(source.size(), rows); !checked)
    return fail(checked.error().with_context(name()));
  enqueue([this, at = device_address(to.memory->address() + to.offset), source,
           rows](const std::stop_token& stop) { return copy_rows_in(at, source, rows, stop); });
  return {};
}

Result<> CudaStream::copy_to_host(std::span<std::byte> to, const Region& from) {
  WSYNC_TRY(check_region(from, false));
  WSYNC_TRY(is_gpu_memory(from.memory, name()));
  if (to.size() != from.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of a region of {} bytes into {} bytes", name(), from.bytes,
                            to.size()));
  enqueue([this, to, at = device_address(from.memory->address() + from.offset)](
              const std::stop_token& stop) { return copy_out(to, at, stop); });
  return {};
}

Result<> CudaStream::copy_pieces(std::span<const Piece> pieces, std::span<SplitSum> sums) {
  WSYNC_TRY(check_pieces(pieces, sums.size()));
  for (const Piece& piece : pieces) {
    WSYNC_TRY(is_own_memory(piece.from, *gpu_, name()));
    WSYNC_TRY(is_own_memory(piece.to, *gpu_, name()));
  }
  auto table = kernel_table(pieces, gpu_->multiprocessors());
  if (!table) return fail(table.error().with_context(name()));
  enqueue([this, batch = std::move(*table), sums](const std::stop_token&) {
    return run_batch(
        std::as_bytes(std::span(batch.pieces)), sums,
        [&](CUdeviceptr at, CUdeviceptr counted) { return launch(batch, at, counted); });
  });
  return {};
}

Result<> CudaStream::change_words(std::span<const WordBlock> blocks, std::span<SplitSum> sums) {
  auto table = word_table(blocks, sums.size());
  if (!table) return fail(table.error().with_context(name()));
  for (const WordBlock& block : blocks) {
    WSYNC_TRY(is_own_memory(block.from, *gpu_, name()));
    WSYNC_TRY(is_own_memory(block.to, *gpu_, name()));
  }
  enqueue([this, batch = std::move(*table), sums](const std::stop_token&) {
    return run_batch(
        std::as_bytes(std::span(batch.blocks)), sums,
        [&](CUdeviceptr at, CUdeviceptr counted) { return launch(batch, at, counted); });
  });
  return {};
}

// Nothing may use the tables of the slot.
Result<> CudaStream::make_room(BatchSlot& slot, std::uint64_t bytes) {
  if (bytes <= slot.tables.bytes) return {};
  const auto room = std::max({bytes, 2 * slot.tables.bytes, kTablesBytesMin});
  gpu_->batch_tables().give(std::exchange(slot.tables, {}));
  slot.tables = WSYNC_TRY(gpu_->batch_tables().take(gpu_->context(), room));
  return {};
}

Result<> CudaStream::run_batch(std::span<const std::byte> table, std::span<SplitSum> sums,
                               const Launch& launch) {
  if (table.empty()) {
    WSYNC_TRY(settle());  // an earlier batch may have the same sums
    std::ranges::fill(sums, SplitSum{});
    return {};
  }
  WSYNC_TRY(prepare_batches());
  BatchSlot& slot = slots_[next_slot_];
  // The batch before the previous one may still read its table and write its sums.
  WSYNC_TRY(finish(slot));
  next_slot_ = (next_slot_ + 1) % slots_.size();
  const std::uint64_t sums_at = sums_offset(table.size());
  const std::uint64_t sum_bytes = sums.size() * sizeof(KernelSum);
  WSYNC_TRY(make_room(slot, sums_at + sum_bytes));
  auto* host = static_cast<std::byte*>(slot.tables.host.get());
  const CUdeviceptr device = slot.tables.device.get();
  std::memcpy(host, table.data(), table.size());
  std::memset(host + table.size(), 0, sums_at + sum_bytes - table.size());
  WSYNC_TRY(upload(slot, sums_at + sum_bytes));
  WSYNC_TRY(launch(device, device + sums_at));
  const Driver& cuda = gpu_->cuda();
  if (sum_bytes > 0)
    WSYNC_TRY(
        submit(cuda.cuMemcpyDtoHAsync(host + sums_at, device + sums_at, sum_bytes, stream_.get()),
               "the sums of a batch"));
  WSYNC_TRY(submit(cuda.cuEventRecord(slot.done.get(), stream_.get()), "the end of a batch"));
  slot.counted = reinterpret_cast<const KernelSum*>(host + sums_at);
  slot.wanted = sums;
  slot.is_running = true;
  return {};
}

// The stream itself is not used for the copy, because the kernel of the previous batch may still
// run there.
Result<> CudaStream::upload(const BatchSlot& slot, std::uint64_t bytes) {
  const Driver& cuda = gpu_->cuda();
  WSYNC_TRY(submit(cuda.cuMemcpyHtoDAsync(slot.tables.device.get(), slot.tables.host.get(), bytes,
                                          uploads_.get()),
                   "the table of a batch"));
  WSYNC_TRY(
      submit(cuda.cuEventRecord(slot.uploaded.get(), uploads_.get()), "the table of a batch"));
  return submit(cuda.cuStreamWaitEvent(stream_.get(), slot.uploaded.get(), 0),
                "the table of a batch");
}

Result<> CudaStream::launch(const KernelTable& table, CUdeviceptr pieces, CUdeviceptr sums) {
  // In the order of kernels.h.
  auto count = static_cast<std::uint32_t>(table.pieces.size());
  std::uint64_t unit_bytes = table.launch.unit_bytes;
  std::uint64_t units = table.launch.units;
  std::array<void*, 5> arguments = {&pieces, &count, &unit_bytes, &units, &sums};
  const CUfunction kernel = table.converts ? gpu_->convert_pieces() : gpu_->copy_pieces();
  return submit(
      gpu_->cuda().cuLaunchKernel(kernel, std::max(1U, table.launch.blocks), 1, 1, kThreadsPerBlock,
                                  1, 1, 0, stream_.get(), arguments.data(), nullptr),
      "the kernel of a batch");
}

Result<> CudaStream::launch(const WordTable& table, CUdeviceptr blocks, CUdeviceptr sums) {
  // In the order of patch_kernel.h.
  auto count = static_cast<std::uint32_t>(table.blocks.size());
  std::uint64_t units = table.units;
  std::array<void*, 4> arguments = {&blocks, &count, &units, &sums};
  return submit(gpu_->cuda().cuLaunchKernel(gpu_->change_words(), std::max(1U, blocks_of(units)), 1,
                                            1, kThreadsPerBlock, 1, 1, 0, stream_.get(),
                                            arguments.data(), nullptr),
                "the kernel of a batch of words");
}

}  // namespace wsync::device::cuda
