#include "shared/device/device.h"

#include <mutex>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/device/cuda_library.h"
#include "shared/device/host/device.h"
#include "shared/device/mps.h"

namespace wsync::device {
namespace {

// Once in a process, when it first opens a GPU.
void say_mps() {
  static std::once_flag said;
  std::call_once(said, [] {
    const MpsDaemon daemon = find_mps_daemon();
    if (daemon.state == MpsDaemon::State::kListens)
      log_info("{}; a fault of one of them on a GPU is a fault of all of them", mps_text(daemon));
    else if (const std::string advice = mps_advice(daemon); !advice.empty())
      log_warning("{}; {}", mps_text(daemon), advice);
    else
      log_debug("{}", mps_text(daemon));
  });
}

}  // namespace

std::string_view device_kind_name(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::kUnified:
      return "unified";
    case DeviceKind::kSeparate:
      return "separate";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

std::string_view stream_role_name(StreamRole role) noexcept {
  switch (role) {
    case StreamRole::kHostToDevice:
      return "H2D stream";
    case StreamRole::kBroadcast:
      return "broadcast stream";
    case StreamRole::kReload:
      return "reload stream";
    case StreamRole::kDeviceToHost:
      return "D2H stream";
  }
  return "stream";
}

Result<std::unique_ptr<Device>> make_device(const DeviceOptions& options) {
  const auto index = static_cast<std::uint32_t>(options.index);
  if (index >= limits::kDeviceCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("device index {} is too large, a sidecar uses at most {} devices",
                            index, limits::kDeviceCount));
  switch (options.kind) {
    case DeviceKind::kUnified:
    case DeviceKind::kSeparate:
      return host::make_host_device(options);
    case DeviceKind::kCuda: {
      const auto cuda = WSYNC_TRY(cuda_backend());
      auto made = cuda->make_device(options);
      if (made) say_mps();
      return made;
    }
  }
  return fail(ErrorCode::kInternal, "make_device: unknown device kind");
}

}  // namespace wsync::device
