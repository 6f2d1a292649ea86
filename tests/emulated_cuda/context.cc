// Primary contexts and which one is current.
#include "tests/emulated_cuda/context.h"

#include <vector>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/event.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

thread_local std::vector<std::uint64_t> stack;  // the last one is current; 0: none

// What dies with a context and should have been given back before; the mutex is held.
void report_left(const State& all, const Context& context) {
  if (context.error != CUDA_SUCCESS) return;
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t memories = 0;
  for (const auto& [id, stream] : all.streams) streams += stream->context().id == context.id;
  for (const auto& [id, event] : all.events) events += event->context == context.id;
  for (const auto& [address, block] : all.blocks)
    memories += block.storage != nullptr && block.context == context.id;
  if (streams + events + memories > 0)
    report("cuDevicePrimaryCtxRelease_v2: the context of device " + std::to_string(context.device) +
           " goes with " + std::to_string(memories) + " memories, " + std::to_string(streams) +
           " streams and " + std::to_string(events) + " events left in it");
}

}  // namespace

std::shared_ptr<Context> current() {
  if (stack.empty()) return nullptr;
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.contexts.find(stack.back());
  return found == all.contexts.end() ? nullptr : found->second;
}

bool reaches(const Context& context, int device) {
  if (context.device == device) return true;
  const auto& peer = state().primary[static_cast<std::size_t>(device)];
  return peer != nullptr && context.peers.contains(peer->id);
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  constexpr const char* kName = "cuDevicePrimaryCtxRetain";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device(kName, device)) return bad;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const auto at = static_cast<std::size_t>(device);
    auto& primary = all.primary[at];
    if (primary == nullptr) {
      primary = std::make_shared<Context>();
      primary->id = all.next_id++;
      primary->device = device;
      all.contexts[primary->id] = primary;
    }
    ++all.retained[at];
    *context = make_handle<CUcontext>(HandleKind::kContext, primary->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  constexpr const char* kName = "cuDevicePrimaryCtxRelease_v2";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (const CUresult bad = check_device(kName, device)) return bad;
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const auto at = static_cast<std::size_t>(device);
    if (all.retained[at] == 0)
      return misuse(kName, CUDA_ERROR_INVALID_CONTEXT,
                    "nobody retains the context of device " + std::to_string(device));
    if (--all.retained[at] > 0) return CUDA_SUCCESS;
    report_left(all, *all.primary[at]);
    all.contexts.erase(all.primary[at]->id);
    all.primary[at] = nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  constexpr const char* kName = "cuCtxPushCurrent_v2";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = id_of(HandleKind::kContext, context);
    if (!all.contexts.contains(id))
      return misuse(kName, CUDA_ERROR_INVALID_CONTEXT, "no such context, or no longer");
    stack.push_back(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  constexpr const char* kName = "cuCtxPopCurrent_v2";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    if (stack.empty())
      return misuse(kName, CUDA_ERROR_INVALID_CONTEXT, "no context is current on this thread");
    if (context != nullptr) *context = make_handle<CUcontext>(HandleKind::kContext, stack.back());
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  constexpr const char* kName = "cuCtxSetCurrent";
  return call(kName, Needs::kDriver, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    if (!stack.empty()) stack.pop_back();
    if (context == nullptr) return CUDA_SUCCESS;
    const std::uint64_t id = id_of(HandleKind::kContext, context);
    if (!all.contexts.contains(id))
      return misuse(kName, CUDA_ERROR_INVALID_CONTEXT, "no such context, or no longer");
    stack.push_back(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return call("cuCtxGetCurrent", Needs::kDriver, [&]() -> CUresult {
    *context = stack.empty() ? nullptr : make_handle<CUcontext>(HandleKind::kContext, stack.back());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* min, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", Needs::kContext, [&]() -> CUresult {
    if (min != nullptr) *min = kLowestPriority;
    if (greatest != nullptr) *greatest = kGreatestPriority;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  constexpr const char* kName = "cuCtxEnablePeerAccess";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (flags != 0) return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    const auto own = current();
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = id_of(HandleKind::kContext, peer);
    const auto found = all.contexts.find(id);
    if (found == all.contexts.end() || id == own->id)
      return misuse(kName, CUDA_ERROR_INVALID_CONTEXT, "no context of another device");
    if (!settings().peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    // Devices that share a context cannot know what the other has enabled: no misuse.
    return own->peers.insert(id).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

int emulated_cuda_is_retained(int device) {
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const auto at = static_cast<std::size_t>(device);
  return device >= 0 && at < all.retained.size() && all.retained[at] > 0 ? 1 : 0;
}

}  // extern "C"
