#include "tests/emulated_cuda/event.h"

#include <string>

#include "tests/emulated_cuda/call.h"
#include "tests/emulated_cuda/stream.h"

namespace emulated_cuda {
namespace {

void complete(EventState& event, std::uint64_t ticket) {
  std::uint64_t before = event.completed;
  while (before < ticket && !event.completed.compare_exchange_weak(before, ticket)) {
  }
}

// What never comes holds up the stream for good, as a GPU's semaphore would.
CUresult wait_for(const EventState& event, std::uint64_t ticket) {
  while (event.completed < ticket && pause_unless_stopping()) {
  }
  return CUDA_SUCCESS;
}

CUresult query(const EventState& event) {
  return event.completed >= event.recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

}  // namespace

CUresult find_event(const char* name, CUevent handle, std::shared_ptr<EventState>& event) {
  State& all = state();
  const std::scoped_lock lock(all.mutex);
  const std::uint64_t id = id_of(HandleKind::kEvent, handle);
  const auto found = all.events.find(id);
  if (found == all.events.end())
    return misuse(name, CUDA_ERROR_INVALID_HANDLE,
                  id == 0 ? "no event" : "the event has been destroyed");
  event = found->second;
  return CUDA_SUCCESS;
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  constexpr const char* kName = "cuEventCreate";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if ((flags & ~kKnown) != 0)
      return misuse(kName, CUDA_ERROR_INVALID_VALUE,
                    "flags " + std::to_string(flags) + " (interprocess events are not emulated)");
    const auto context = current();
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const std::uint64_t id = all.next_id++;
    auto made = std::make_shared<EventState>();
    made->context = context->id;
    all.events[id] = std::move(made);
    *event = make_handle<CUevent>(HandleKind::kEvent, id);
    return CUDA_SUCCESS;
  });
}

// Work that has it still completes it.
CUresult cuEventDestroy(CUevent handle) {
  constexpr const char* kName = "cuEventDestroy_v2";
  return call(kName, Needs::kRelease, [&]() -> CUresult {
    State& all = state();
    const std::scoped_lock lock(all.mutex);
    const auto found = all.events.find(id_of(HandleKind::kEvent, handle));
    if (found == all.events.end())
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "no event, or destroyed before");
    all.events.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  constexpr const char* kName = "cuEventRecord";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<EventState> event;
    if (const CUresult bad = find_stream(kName, stream_handle, stream)) return bad;
    if (const CUresult bad = find_event(kName, handle, event)) return bad;
    if (event->context != stream->context().id)
      return misuse(kName, CUDA_ERROR_INVALID_HANDLE, "event and stream are of two contexts");
    const std::uint64_t ticket = ++event->recorded;
    // Also after a failure: who waits for it learns of the failure elsewhere.
    stream->push({.kind = "event",
                  .work =
                      [event, ticket](std::byte*&) {
                        complete(*event, ticket);
                        return CUDA_SUCCESS;
                      },
                  .always = true});
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  constexpr const char* kName = "cuStreamWaitEvent";
  return call(kName, Needs::kContext, [&]() -> CUresult {
    if (flags != 0) return misuse(kName, CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    std::shared_ptr<Stream> stream;
    std::shared_ptr<EventState> event;
    if (const CUresult bad = find_stream(kName, stream_handle, stream)) return bad;
    if (const CUresult bad = find_event(kName, handle, event)) return bad;
    const std::uint64_t ticket = event->recorded;
    stream->push({.kind = "wait",
                  .work = [event, ticket](std::byte*&) { return wait_for(*event, ticket); }});
    return CUDA_SUCCESS;
  });
}

CUresult cuEventQuery(CUevent handle) {
  return call("cuEventQuery", Needs::kDriver, [&]() -> CUresult {
    std::shared_ptr<EventState> event;
    if (const CUresult bad = find_event("cuEventQuery", handle, event)) return bad;
    return query(*event);
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return call("cuEventSynchronize", Needs::kContext, [&]() -> CUresult {
    std::shared_ptr<EventState> event;
    if (const CUresult bad = find_event("cuEventSynchronize", handle, event)) return bad;
    while (query(*event) == CUDA_ERROR_NOT_READY && pause_unless_stopping()) {
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
