#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <unistd.h>

#include "shared/broadcast/nccl/communicator.h"
#include "shared/broadcast/nccl/hardware.h"
#include "shared/broadcast/nccl/library.h"
#include "shared/broadcast/nccl_library.h"
#include "shared/device/cuda/driver.h"
#include "shared/device/cuda/stream.h"

namespace wsync::collective {
namespace nccl {
namespace {

Result<void*> native_stream(device::Stream& stream) {
  auto* cuda = dynamic_cast<device::cuda::CudaStream*>(&stream);
  if (cuda == nullptr)
    return fail(ErrorCode::kInvalidInput,
                "an NCCL broadcast needs a stream of a CUDA device, and this stream belongs to "
                "another kind of device");
  return static_cast<void*>(cuda->native());
}

Result<bool> stream_is_idle(void* stream) {
  const auto cuda = WSYNC_TRY(device::cuda::driver());
  const CUresult code = cuda->cuStreamQuery(static_cast<CUstream>(stream));
  if (code == CUDA_ERROR_NOT_READY) return false;
  WSYNC_TRY(device::cuda::check(*cuda, code, "a broadcast on its stream"));
  return true;
}

Result<std::string> gpu_of(const device::Device& device) {
  if (device.kind() != DeviceKind::kCuda)
    return fail(ErrorCode::kInvalidInput, device.name() +
                                              ": NCCL broadcasts only between GPUs, and this "
                                              "device is not a GPU; use the local collective");
  return device.uuid();
}

Gpu gpu_behind(device::Stream& stream) {
  auto* cuda = dynamic_cast<device::cuda::CudaStream*>(&stream);
  if (cuda == nullptr)
    return {
        .enter = [] {}, .abandoned = [] { return false; }, .abandon = [](const std::string&) {}};
  return {.enter =
              [context = cuda->gpu().context()] {
                // An error here can be ignored: NCCL also sets the device, fails in the same way,
                // and reports it.
                (void)context->cuda().cuCtxSetCurrent(context->handle());
              },
          .abandoned = [context = cuda->gpu().context()] { return context->abandoned(); },
          .abandon =
              [context = cuda->gpu().context()](const std::string& why) { context->abandon(why); }};
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace

Hardware cuda_hardware() {
  return {.native = native_stream, .idle = stream_is_idle, .gpu = gpu_of, .of = gpu_behind};
}

// This NCCL environment variable overrides the configuration of a communicator, so no deadline
// would hold any more.
Result<> check_environment() {
  const char* blocking = std::getenv("NCCL_COMM_BLOCKING");
  if (blocking == nullptr || std::string_view(blocking) != "1") return {};
  return fail(ErrorCode::kRefused,
              "NCCL_COMM_BLOCKING=1 is set: NCCL would wait without a deadline; unset it, or use "
              "the local collective");
}

Result<Site> this_site() {
  WSYNC_TRY(check_environment());
  const auto library = WSYNC_TRY(nccl());
  const auto cuda = WSYNC_TRY(device::cuda::driver());
  const auto version = WSYNC_TRY(device::cuda::driver_version(*cuda));
  return Site{.nccl = library,
              .hardware = cuda_hardware(),
              .process = {.host = host_name(),
                          .rank = {},
                          .gpu = {},
                          .driver_cuda = version,
                          .build_cuda = CUDA_VERSION},
              .ranks_share_gpus = ranks_share_gpus(*library)};
}

}  // namespace nccl

namespace {

Result<std::unique_ptr<Group>> make_here(std::uint32_t size) {
  auto site = WSYNC_TRY(nccl::this_site());
  return nccl::make_nccl_group(std::move(site), size);
}

Result<NcclFacts> facts_here() {
  const auto library = WSYNC_TRY(nccl::nccl());
  const char* named = std::getenv("NCCL_SOCKET_IFNAME");
  return NcclFacts{.library = library->path,
                   .version = library->version,
                   .built_with = NCCL_VERSION_CODE,
                   .interface = named == nullptr ? "" : named,
                   .ranks_share_gpus = nccl::ranks_share_gpus(*library)};
}

constexpr NcclBackend kBackend{
    .size = sizeof(NcclBackend), .make_group = make_here, .facts = facts_here};

}  // namespace
}  // namespace wsync::collective

extern "C" __attribute__((visibility("default"))) const wsync::collective::NcclBackend*
wsync_nccl_backend() {
  return &wsync::collective::kBackend;
}
