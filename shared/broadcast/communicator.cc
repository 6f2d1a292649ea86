#include "shared/broadcast/communicator.h"

#include <set>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/broadcast/local/communicator.h"
#include "shared/broadcast/nccl_library.h"
#include "shared/device/cuda_library.h"
#include "shared/device/worker_stream.h"

namespace wsync::collective {
namespace {

Result<> check_size(std::uint32_t size) {
  if (size >= 1 && size <= limits::kDeviceCount) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a group of {} devices, expected 1 to {}", size, limits::kDeviceCount));
}

}  // namespace

std::string_view group_kind_name(GroupKind kind) noexcept {
  switch (kind) {
    case GroupKind::kLocal:
      return "local";
    case GroupKind::kNccl:
      return "nccl";
  }
  return "unknown";
}

Result<> check_broadcast(const Broadcast& broadcast, Rank rank, std::uint32_t size) {
  const auto root = static_cast<std::uint32_t>(broadcast.root);
  if (root >= size)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a broadcast from rank {} in a group of {}", root, size));
  WSYNC_TRY(device::check_region(broadcast.destination, true));
  if (broadcast.root != rank) return {};
  WSYNC_TRY(device::check_region(broadcast.source, false));
  if (broadcast.source.bytes == broadcast.destination.bytes) return {};
  return fail(ErrorCode::kInvalidInput,
              fmt::format("a broadcast of {} bytes into {} bytes", broadcast.source.bytes,
                          broadcast.destination.bytes));
}

std::string nccl_version_text(std::uint32_t code) {
  if (code < 10000) return fmt::format("{}.{}.{}", code / 1000, code % 1000 / 100, code % 100);
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

Result<const NcclBackend*> nccl_backend() {
  const auto entry = WSYNC_TRY(device::cuda_symbol(kNcclEntry));
  const NcclBackend* backend = reinterpret_cast<NcclEntry>(entry)();
  if (backend->size != sizeof(NcclBackend))
    return fail(ErrorCode::kRefused, "libwsync_cuda.so is of another build than this program");
  return backend;
}

Result<std::unique_ptr<Group>> make_group(GroupKind kind, std::uint32_t size) {
  WSYNC_TRY(check_size(size));
  if (kind == GroupKind::kLocal) return local::make_local_group(size);
  const auto nccl = WSYNC_TRY(nccl_backend());
  return nccl->make_group(size);
}

FittingGroup fitting_group(const std::vector<device::Device*>& devices) {
  const auto local = [](std::string why) {
    return FittingGroup{.kind = GroupKind::kLocal, .why_not_nccl = std::move(why)};
  };
  std::set<std::string> gpus;
  for (const device::Device* device : devices) {
    if (device->kind() != DeviceKind::kCuda) return local("not all devices are on GPUs");
    if (!gpus.insert(device->uuid()).second) return local("devices share a GPU");
  }
  if (devices.size() < 2) return local("one device");
  const auto nccl = nccl_backend();
  if (!nccl) return local(nccl.error().message());
  if (const auto facts = (*nccl)->facts(); !facts) return local(facts.error().message());
  return {.kind = GroupKind::kNccl, .why_not_nccl = {}};
}

Result<std::vector<std::unique_ptr<Communicator>>> join_all(
    GroupKind kind, const std::vector<device::Device*>& devices, TimePoint deadline) {
  auto group = WSYNC_TRY(make_group(kind, static_cast<std::uint32_t>(devices.size())));
  std::vector<std::unique_ptr<Communicator>> all;
  for (device::Device* device : devices) {
    auto joined = WSYNC_TRY(group->join(Rank{static_cast<std::uint32_t>(all.size())}, *device));
    all.push_back(std::move(joined));
  }
  for (const auto& communicator : all) WSYNC_TRY(communicator->wait_joined(deadline));
  return all;
}

}  // namespace wsync::collective
