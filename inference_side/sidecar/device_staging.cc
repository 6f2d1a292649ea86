#include "inference_side/sidecar/device_staging.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/base/weight_limits.h"
#include "shared/device/memory_gate.h"

namespace wsync::agent {
namespace {

// Unregistering a slice takes about 15 ms, for which a run may have to wait.
constexpr std::size_t kSliceBytes = limits::kGiB;

double seconds_since(TimePoint begin) {
  return std::chrono::duration<double>(now() - begin).count();
}

// The bytes stay where they are. A device that cannot pin them copies them all the same, but more
// slowly.
Result<std::shared_ptr<RegisteredMemory>> register_mapping(const reload::DeviceGroup& group,
                                                           const staging::HeldVersion& version) {
  const TimePoint begin = now();
  const std::span<const std::byte> bytes = version.mapping().bytes();
  auto memory = std::make_shared<RegisteredMemory>();
  std::string fallback;
  std::uint32_t fallen_back = 0;
  for (std::uint32_t d = 0; d < group.size(); ++d) {
    bool is_registered = true;
    for (std::size_t at = 0; at < bytes.size() && is_registered; at += kSliceBytes) {
      const auto slice = bytes.subspan(at, std::min(kSliceBytes, bytes.size() - at));
      auto made = group.device(reload::DeviceIndex{d}).register_host(slice);
      if (!made) return fail(made.error().with_context("registering the staged bytes"));
      is_registered = (*made)->registered();
      if (!is_registered && fallback.empty()) fallback = (*made)->fallback();
      memory->add(std::move(*made));
    }
    if (!is_registered) ++fallen_back;
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

// Goes with the mapping, and unregisters it just before.
class EndOfMapping {
 public:
  explicit EndOfMapping(std::shared_ptr<RegisteredMemory> memory) : memory_(std::move(memory)) {}
  EndOfMapping(const EndOfMapping&) = delete;
  EndOfMapping& operator=(const EndOfMapping&) = delete;
  ~EndOfMapping() { memory_->end(); }

 private:
  std::shared_ptr<RegisteredMemory> memory_;
};

}  // namespace

Result<> DeviceStaging::prepare(DeviceVersion& out) {
  auto buckets = WSYNC_TRY(BucketPlan::create(*out.version->manifest(), group_.buffer_bytes()));
  out.buckets = std::make_shared<const BucketPlan>(std::move(buckets));
  out.memory = WSYNC_TRY(registered(*out.version));
  return {};
}

Result<std::shared_ptr<RegisteredMemory>> DeviceStaging::registered(
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
  version.mapping().accompany(std::make_shared<const EndOfMapping>(memory));
  return memory;
}

void RegisteredMemory::add(std::unique_ptr<device::HostRegistration> slice) {
  const std::lock_guard lock(mutex_);
  if (!slice->registered()) complete_ = false;
  slices_.push_back(std::move(slice));
}

bool RegisteredMemory::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::size_t RegisteredMemory::slices() const {
  const std::lock_guard lock(mutex_);
  return slices_.size();
}

bool RegisteredMemory::complete() const {
  const std::lock_guard lock(mutex_);
  return complete_;
}

void RegisteredMemory::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (auto& slice : slices_) {
    const auto gate = device::MemoryGate::memory_call();
    slice.reset();
  }
  slices_.clear();
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
