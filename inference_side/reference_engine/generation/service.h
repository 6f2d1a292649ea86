// GenerationService: the interface of a generating engine for its servers. Generator (generator.h)
// implements it for the leader of a replica.
//
// Thread: any, also several at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "inference_side/reference_engine/generation/request.h"
#include "inference_side/reference_engine/generation/scheduler.h"
#include "shared/control/messages.h"

namespace wsync::engine::generation {

// A notification for the listener of a request. The one with `finished` is the last.
struct Delivery {
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finished;
};
// Called on the thread that runs the steps. It must store the delivery and return without blocking.
using Listener = std::function<void(Delivery)>;

struct ServiceInfo {
  std::string model;  // model name in requests
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::optional<Token> end_token;
  bool has_weights = false;  // a version was committed, or the checkpoint's weights were loaded
  Version version;           // of the weights
  bool paused = false;       // paused by a client; a sidecar's switch does not count
  bool serving = false;  // steps run now: weights are loaded, all ranks are connected, not paused
  std::string not_serving;  // otherwise the reason, one sentence
};

class GenerationService {
 public:
  virtual ~GenerationService() = default;

  // Adds a request. Returns kInvalidInput or kResourceExhausted as Scheduler::add(), kCancelled if
  // the engine is stopping. Requests wait while the engine is paused or has no weights.
  [[nodiscard]] virtual Result<RequestId> submit(Request request, Listener listener) = 0;
  // Cancels a request. The listener is not called after this returns.
  virtual void cancel(RequestId id) = 0;

  // Pauses, and returns when no step runs. kAbort finishes all running and waiting requests with
  // kAbort. kWait lets running requests finish and holds back waiting ones. kKeep freezes all
  // requests. `clear_cache` drops keys and values, so they are computed again. Returns kDeadline
  // (kWait only), with what still runs; the engine then continues as before the call.
  [[nodiscard]] virtual Result<> pause(PauseMode mode, bool clear_cache,
                                       std::chrono::milliseconds deadline) = 0;
  virtual void resume() = 0;
  // Ends these requests with kAbort, or all requests if `ids` is empty.
  virtual void abort(const std::vector<RequestId>& ids) = 0;
  // Drops the keys and values of all prefixes. Returns false if sequences are running; these keep
  // their own.
  [[nodiscard]] virtual bool reset_prefix_cache() = 0;

  [[nodiscard]] virtual ServiceInfo info() const = 0;
  [[nodiscard]] virtual SchedulerStats stats() const = 0;
};

}  // namespace wsync::engine::generation
