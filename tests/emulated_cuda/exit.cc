// The end of the process: what has not been given back is reported, and the streams' threads end.
#include <cstdio>
#include <string>
#include <unistd.h>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/event.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

// Also to stderr: the program's own look at the error file, if it takes one, was before.
void report_number(std::size_t count, const char* what) {
  if (count == 0) return;
  report("at the end of the process: " + std::to_string(count) + " " + what);
  if (!settings().report.empty())
    std::fprintf(stderr, "emulated driver: left at the end: %zu %s\n", count, what);
}

// What is left in a context that failed cannot be given back in an orderly way, and what was left
// in one that is gone has been reported.
bool excused(const State& all, std::uint64_t context) {
  const auto found = all.contexts.find(context);
  return found == all.contexts.end() || found->second->error != CUDA_SUCCESS;
}

// The same for memory of no context.
bool excused_on(const State& all, int device) {
  const auto& context = all.primary[static_cast<std::size_t>(device)];
  return context != nullptr && context->error != CUDA_SUCCESS;
}

void report_leaks(const State& all) {
  std::size_t memories = 0;
  std::size_t mapped = 0;
  for (const auto& [address, block] : all.blocks) {
    if (block.storage == nullptr) continue;
    if (block.mapping != nullptr)
      mapped += !excused_on(all, block.device);
    else
      memories += !excused(all, block.context);
  }
  std::size_t handles = 0;
  for (const auto& [id, physical] : all.physical) handles += !excused_on(all, physical.device);
  std::size_t reserved = 0;
  for (const auto& [address, reservation] : all.reservations) reserved += !reservation.freed;
  std::size_t allocated = 0;
  std::size_t registered = 0;
  for (const auto& [address, range] : all.pinned) {
    if (!excused(all, range->context)) ++(range->allocated ? allocated : registered);
  }
  std::size_t streams = 0;
  for (const auto& [id, stream] : all.streams) streams += !excused(all, stream->context().id);
  std::size_t events = 0;
  for (const auto& [id, event] : all.events) events += !excused(all, event->context);
  std::size_t modules = 0;
  for (const auto& [id, module] : all.modules) modules += !excused(all, module.context);
  std::size_t contexts = 0;
  for (const auto& context : all.primary)
    contexts += context != nullptr && context->error == CUDA_SUCCESS;
  report_number(memories, "device memories are not freed");
  report_number(mapped, "mappings are not unmapped");
  report_number(handles, "handles of memory are not released");
  report_number(reserved, "reserved ranges of addresses are not freed");
  report_number(allocated, "pinned host memories are not freed");
  report_number(registered, "registered host memories are not unregistered");
  report_number(streams, "streams are not destroyed");
  report_number(events, "events are not destroyed");
  report_number(modules, "modules are not unloaded");
  report_number(contexts, "primary contexts are still retained");
}

// After every destructor of the program's own objects: as the library is unloaded.
__attribute__((destructor)) void at_exit() {
  State& all = state();
  if (all.process != ::getpid()) return;  // never initialised, or a forked child
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::scoped_lock lock(all.mutex);
    report_leaks(all);
    all.stopping = true;
    streams.swap(all.draining);
    for (auto& [id, stream] : all.streams) streams.push_back(stream);
    all.streams.clear();
  }
  for (const auto& stream : streams) stream->join();
}

}  // namespace
}  // namespace emulated_cuda
