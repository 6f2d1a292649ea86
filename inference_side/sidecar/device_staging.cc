#include "inference_side/sidecar/device_staging.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"

namespace wsync::agent {
namespace {

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(now() - begin).count();
}

// The bytes stay where they are. A device that cannot pin them copies them all the same, but more
// slowly.
Result<std::shared_ptr<device::RegisteredMemory>> register_mapping(
    const reload::DeviceGroup& group, const staging::HeldVersion& version) {
  const TimePoint begin = now();
  const std::span<const std::byte> bytes = version.mapping().bytes();
  auto memory = std::make_shared<device::RegisteredMemory>();
  std::string fallback;
  std::uint32_t fallen_back = 0;
  for (std::uint32_t d = 0; d < group.size(); ++d) {
    auto why = memory->register_with(group.device(reload::DeviceIndex{d}), bytes);
    if (!why) return fail(why.error().with_context("registering the staged bytes"));
    if (why->empty()) continue;
    if (fallback.empty()) fallback = *why;
    ++fallen_back;
  }
  if (fallen_back > 0)
    log_warning(
        "version {}: its {} bytes are not registered with {} of {} devices ({}): each copy to such "
        "a device goes through pinned buffers, which is slower and makes the pause longer",
        version.version().to_string(), bytes.size(), fallen_back, group.size(), fallback);
  else
    log_debug("version {}: {} bytes registered with {} devices in {:.3f} s",
              version.version().to_string(), bytes.size(), group.size(), seconds_since(begin));
  return memory;
}

}  // namespace

Result<> DeviceStaging::prepare(DeviceVersion& out) {
  auto buckets = WSYNC_TRY(BucketPlan::create(*out.version->manifest(), group_.buffer_bytes()));
  out.buckets = std::make_shared<const BucketPlan>(std::move(buckets));
  out.memory = WSYNC_TRY(registered(*out.version));
  return {};
}

Result<std::shared_ptr<device::RegisteredMemory>> DeviceStaging::registered(
    const staging::HeldVersion& version) {
  std::erase_if(registered_, [](const auto& entry) { return entry.second->ended(); });
  const std::byte* at = version.mapping().bytes().data();
  if (const auto found = registered_.find(at); found != registered_.end()) {
    if (found->second->complete()) return found->second;
    // What was refused for the version before may be granted now, such as memory to lock.
    found->second->end();
  }
  auto memory = WSYNC_TRY(register_mapping(group_, version));
  registered_[at] = memory;
  version.mapping().accompany(device::end_of_mapping(memory));
  return memory;
}

DeviceStaging::DeviceStaging(Loop& loop, const reload::DeviceGroup& group)
    : group_(group),
      worker_(loop, {.name = "device-staging", .max_queued = 4 * limits::kStagedCount}) {}

DeviceStaging::~DeviceStaging() {
  *alive_ = false;
  worker_.stop();
  // Empty the cells here: a completion that still waits in the loop would otherwise unregister its
  // version after the devices are destroyed.
  for (const auto& [number, cell] : computing_) cell->reset();
  // Mappings may outlive the devices.
  for (const auto& [at, memory] : registered_) memory->end();
}

void DeviceStaging::add(std::shared_ptr<const staging::HeldVersion> version,
                        std::function<void()> on_ready) {
  const std::uint64_t number = next_++;
  entries_[version->version()] = {.number = number, .ready = nullptr};
  const auto cell = std::make_shared<Cell>(std::make_shared<DeviceVersion>());
  (*cell)->version = std::move(version);
  computing_[number] = cell;
  const auto submitted = worker_.submit(
      [this, cell] {
        if (const auto made = prepare(**cell); !made) (*cell)->usable = fail(made.error());
      },
      [this, alive = alive_, number, on_ready] {
        if (*alive) computed(number, on_ready);
      });
  if (submitted) return;
  (*cell)->usable = fail(submitted.error());
  computed(number, on_ready);
}

void DeviceStaging::computed(std::uint64_t number, const std::function<void()>& on_ready) {
  auto computing = computing_.extract(number);
  std::shared_ptr<const DeviceVersion> version = std::move(*computing.mapped());
  const auto entry = entries_.find(version->version->version());
  if (entry == entries_.end() || entry->second.number != number) {
    release(std::move(version));
    return;
  }
  entry->second.ready = std::move(version);
  on_ready();
}

void DeviceStaging::remove(const Version& version) {
  auto entry = entries_.extract(version);
  if (entry && entry.mapped().ready) release(std::move(entry.mapped().ready));
}

// Unregistering is slow, so the last pointer is released on the worker thread.
void DeviceStaging::release(std::shared_ptr<const DeviceVersion> version) {
  auto last = std::make_shared<std::shared_ptr<const DeviceVersion>>(std::move(version));
  (void)worker_.submit([last] { last->reset(); });
}

std::shared_ptr<const DeviceVersion> DeviceStaging::find(const Version& version) const {
  const auto entry = entries_.find(version);
  return entry == entries_.end() ? nullptr : entry->second.ready;
}

}  // namespace wsync::agent
