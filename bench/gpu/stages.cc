#include "bench/gpu/stages.h"

#include <algorithm>
#include <thread>

#include "bench/gpu/timing.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

}  // namespace

Result<LoneStages::Member> LoneStages::make_member(std::uint32_t gpu, std::uint32_t index,
                                                   std::uint64_t buffer_bytes) {
  Member member;
  auto device = device::make_device(
      {.kind = DeviceKind::kCuda, .index = device::DeviceIndex{index}, .gpu = gpu});
  if (!device) return fail(std::move(device).error());
  member.device = std::move(*device);
  for (auto* memory : {&member.h2d, &member.ipc[0], &member.ipc[1]}) {
    *memory = WSYNC_TRY(member.device->allocate(buffer_bytes));
  }
  auto event = WSYNC_TRY(member.device->create_event());
  member.event = std::move(event);
  member.h2d_stream = WSYNC_TRY(member.device->create_stream(device::StreamRole::kHostToDevice));
  member.broadcast_stream = WSYNC_TRY(member.device->create_stream(device::StreamRole::kBroadcast));
  return member;
}

Result<std::unique_ptr<LoneStages>> LoneStages::create(
    const std::vector<std::uint32_t>& gpus, std::uint64_t buffer_bytes,
    std::optional<collective::GroupKind> collective) {
  std::unique_ptr<LoneStages> made(new LoneStages);
  for (std::uint32_t i = 0; i < gpus.size(); ++i) {
    auto member = WSYNC_TRY(make_member(gpus[i], i, buffer_bytes));
    made->members_.push_back(std::move(member));
  }
  std::vector<device::Device*> devices;
  for (Member& member : made->members_) devices.push_back(member.device.get());
  const auto kind = collective ? *collective : collective::fitting_group(devices).kind;
  auto joined = WSYNC_TRY(collective::join_all(kind, devices, now() + kGpuWorkDeadline));
  for (std::size_t i = 0; i < joined.size(); ++i)
    made->members_[i].communicator = std::move(joined[i]);
  return made;
}

LoneStages::~LoneStages() {
  for (Member& member : members_) {
    member.h2d_stream.reset();
    member.broadcast_stream.reset();
  }
  for (Member& member : members_) member.communicator.reset();
}

Result<nanoseconds> LoneStages::copies_in(const Buckets& buckets) {
  const TimePoint begin = now();
  for (std::uint64_t b = 0; b < buckets.count(); ++b) {
    Member& member = members_[b % members_.size()];
    const auto bytes = buckets.at(b);
    WSYNC_TRY(member.h2d_stream->copy_to_device(
        {.memory = member.h2d.get(), .offset = 0, .bytes = bytes.size()}, bytes));
  }
  for (Member& member : members_) WSYNC_TRY(member.h2d_stream->record(*member.event));
  for (Member& member : members_) WSYNC_TRY(member.event->wait(begin + kGpuWorkDeadline));
  return now() - begin;
}

Result<> LoneStages::broadcast(std::uint64_t bucket, std::uint64_t bytes, TimePoint deadline) {
  const auto source = static_cast<std::uint32_t>(bucket % members_.size());
  for (Member& member : members_) {
    device::Memory* ipc = member.ipc[bucket % 2].get();
    WSYNC_TRY(member.communicator->broadcast(
        {.source = {.memory = members_[source].h2d.get(), .offset = 0, .bytes = bytes},
         .destination = {.memory = ipc, .offset = 0, .bytes = bytes},
         .root = collective::Rank{source},
         .deadline = deadline},
        *member.broadcast_stream));
  }
  return {};
}

Result<nanoseconds> LoneStages::broadcasts(const Buckets& buckets) {
  const TimePoint begin = now();
  for (std::uint64_t b = 0; b < buckets.count(); ++b)
    WSYNC_TRY(broadcast(b, buckets.at(b).size(), begin + kGpuWorkDeadline));
  for (Member& member : members_) WSYNC_TRY(member.broadcast_stream->record(*member.event));
  for (Member& member : members_) WSYNC_TRY(member.event->wait(begin + kGpuWorkDeadline));
  return now() - begin;
}

std::uint64_t reload_offset(std::uint64_t bucket, std::uint64_t bucket_bytes,
                            std::uint64_t reader_bytes) {
  return bucket % (reader_bytes / bucket_bytes) * bucket_bytes;
}

Result<nanoseconds> reloads(std::span<Reader> readers, const Buckets& buckets) {
  std::vector<Result<>> outcomes(readers.size());
  const TimePoint begin = now();
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < readers.size(); ++r)
      threads.emplace_back([&, r] {
        for (std::uint64_t b = 0; b < buckets.count() && outcomes[r]; ++b) {
          const auto copied = readers[r].copy(
              {.mapping = b % 2,
               .bytes = buckets.at(b).size(),
               .offset = reload_offset(b, buckets.bucket_bytes, readers[r].bytes())});
          if (!copied) outcomes[r] = fail(copied.error());
        }
      });
  }
  const nanoseconds taken = now() - begin;
  for (const auto& outcome : outcomes) WSYNC_TRY(outcome);
  return taken;
}

}  // namespace wsync::bench
