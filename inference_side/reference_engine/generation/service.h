// GenerationService: an engine that generates, as its servers see it. Implemented by Generator
// (generator.h) for the leader of a replica.
//
// Thread: any, several at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "inference_side/reference_engine/generation/request.h"
#include "inference_side/reference_engine/generation/scheduler.h"
#include "shared/control/messages.h"

namespace wsync::engine::generation {

// What a request's listener is told. `finished` is the last call.
struct Delivery {
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finished;
};
// Called on the thread that runs the steps: it stores and returns.
using Listener = std::function<void(Delivery)>;

struct ServiceInfo {
  std::string model;  // its name in requests
  std::uint32_t vocabulary = 0;
  std::uint32_t max_positions = 0;
  std::optional<Token> end_token;
  bool has_weights = false;  // some version has been committed, or the checkpoint's were loaded
  Version version;           // of the weights
  bool paused = false;       // by a client; a sidecar's switch is not counted
  bool serving = false;      // steps are run now: weights, every rank there, not paused
  std::string not_serving;   // otherwise: why, one sentence
};

class GenerationService {
 public:
  virtual ~GenerationService() = default;

  // kInvalidInput, kResourceExhausted as Scheduler::add(); kCancelled when the engine is ending.
  // While the engine is paused or has no weights, requests wait.
  [[nodiscard]] virtual Result<RequestId> submit(Request request, Listener listener) = 0;
  // The listener is not called after this returns.
  virtual void cancel(RequestId id) = 0;

  // Returns when no step runs any more. kAbort ends what runs or waits with kAbort; kWait lets what
  // runs end and holds back what waits; kKeep holds everything where it is. `clear_cache`: keys and
  // values are dropped, and computed again. kDeadline (kWait only): what still runs; the engine
  // then goes on as before the call.
  [[nodiscard]] virtual Result<> pause(PauseMode mode, bool clear_cache,
                                       std::chrono::milliseconds deadline) = 0;
  virtual void resume() = 0;
  // Ends these requests, or all if there are none, with kAbort.
  virtual void abort(const std::vector<RequestId>& ids) = 0;
  // Drops keys and values of all prefixes; false when sequences run, whose own are kept.
  [[nodiscard]] virtual bool reset_prefix_cache() = 0;

  [[nodiscard]] virtual ServiceInfo info() const = 0;
  [[nodiscard]] virtual SchedulerStats stats() const = 0;
};

}  // namespace wsync::engine::generation
