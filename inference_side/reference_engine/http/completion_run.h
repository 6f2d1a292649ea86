// CompletionRun: the requests of one completion while they run. What is delivered is kept until it
// is taken.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"

namespace wsync::engine::http {

// Thread: its owner's. Outlived by the service.
class CompletionRun {
 public:
  struct News {
    std::size_t index = 0;  // of the request
    generation::Delivery delivery;
  };

  // What take() waits for. Whoever answers once does not want to be woken for each token.
  enum class Until : std::uint8_t { kNews, kAllFinished };

  // Submits all of them or, when one is refused, none. Errors as GenerationService::submit().
  [[nodiscard]] static Result<std::unique_ptr<CompletionRun>> start(
      generation::GenerationService& service, const std::vector<generation::Request>& requests,
      Until until = Until::kNews);
  // Cancels what has not finished.
  ~CompletionRun();
  CompletionRun(const CompletionRun&) = delete;
  CompletionRun& operator=(const CompletionRun&) = delete;

  // What has been delivered since the last call, in its order; waits for what start() was told, or
  // until the time is over.
  [[nodiscard]] std::vector<News> take(std::chrono::milliseconds wait);
  // The last delivery of every request has been taken.
  [[nodiscard]] bool finished() const noexcept { return unfinished_ == 0; }
  // Asks the service to end what has not finished; its last deliveries follow.
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
