// CompletionRun: the running requests of one completion. It stores deliveries until the owner takes
// them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"

namespace wsync::engine::http {

// Thread: the owner's. The service must outlive this object.
class CompletionRun {
 public:
  struct News {
    std::size_t index = 0;  // index of the request
    generation::Delivery delivery;
  };

  // What take() waits for. An answer that is not streamed needs no wake-up for each token.
  enum class Until : std::uint8_t { kNews, kAllFinished };

  // Submits all requests, or none if one of them is refused. Errors as GenerationService::submit().
  [[nodiscard]] static Result<std::unique_ptr<CompletionRun>> start(
      generation::GenerationService& service, const std::vector<generation::Request>& requests,
      Until until = Until::kNews);
  // Cancels the requests that have not finished.
  ~CompletionRun();
  CompletionRun(const CompletionRun&) = delete;
  CompletionRun& operator=(const CompletionRun&) = delete;

  // Waits for the condition that was given to start(), or until the time has passed. Returns the
  // deliveries since the last call, in order.
  [[nodiscard]] std::vector<News> take(std::chrono::milliseconds wait);
  // Whether the last delivery of every request has been taken.
  [[nodiscard]] bool finished() const noexcept { return unfinished_ == 0; }
  // Asks the service to abort the requests that have not finished. Their last deliveries follow.
  void abort();

 private:
  struct Mailbox;
  CompletionRun(generation::GenerationService& service, Until until, std::size_t requests);

  generation::GenerationService& service_;
  std::shared_ptr<Mailbox> mailbox_;  // shared with the listeners
  std::vector<generation::RequestId> ids_;
  std::vector<bool> ended_;
  std::size_t unfinished_ = 0;
};

}  // namespace wsync::engine::http
