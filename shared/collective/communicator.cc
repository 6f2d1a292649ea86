#include "shared/collective/communicator.h"

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/collective/host/communicator.h"

namespace wsync::collective {
namespace {

tl::unexpected<Error> no_backend(device::DeviceKind kind) {
  return fail(ErrorCode::kRefused,
              fmt::format("a group of {} devices is refused, this release has no collective "
                          "backend for them; use unified or separate host devices",
                          device::device_kind_name(kind)));
}

Result<> check_size(std::uint32_t size) {
  if (size >= 1 && size <= limits::kDeviceCount) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a group of {} devices, expected 1 to {}", size, limits::kDeviceCount));
}

}  // namespace

Result<std::unique_ptr<Group>> make_group(device::DeviceKind kind, std::uint32_t size) {
  WSYNC_TRY(check_size(size));
  switch (kind) {
    case device::DeviceKind::kUnified:
    case device::DeviceKind::kSeparate:
      return host::make_host_group(size);
    case device::DeviceKind::kCuda:
      return no_backend(kind);
  }
  return fail(ErrorCode::kInternal, "make_group: the device kind is not a listed one");
}

Result<std::unique_ptr<Group>> attach_group(device::DeviceKind kind, const Bytes& /*id*/,
                                            std::uint32_t size) {
  WSYNC_TRY(check_size(size));
  if (kind == device::DeviceKind::kCuda) return no_backend(kind);
  return fail(ErrorCode::kRefused,
              "host devices of one group must be driven by one process: a group cannot be "
              "joined from another one");
}

Result<std::vector<std::unique_ptr<Communicator>>> join_all(
    const std::vector<device::Device*>& devices, TimePoint deadline) {
  if (devices.empty()) return fail(ErrorCode::kInvalidInput, "a group without devices");
  auto group = make_group(devices.front()->kind(), static_cast<std::uint32_t>(devices.size()));
  if (!group) return fail(std::move(group).error());
  std::vector<std::unique_ptr<Communicator>> all;
  for (device::Device* device : devices) {
    auto joined = (*group)->join(Rank{static_cast<std::uint32_t>(all.size())}, *device);
    if (!joined) return fail(std::move(joined).error());
    all.push_back(std::move(*joined));
  }
  for (const auto& communicator : all) WSYNC_TRY(communicator->wait_joined(deadline));
  return all;
}

}  // namespace wsync::collective
