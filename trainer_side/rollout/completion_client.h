// A client of engines that speak OpenAI's completions over HTTP with vLLM's additions: token ids,
// log-probabilities, and the versions that generated each token.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"
#include "trainer_side/rollout/rollout.h"

namespace wsync::rollout {

struct CompletionQuestion {
  std::string prompt;         // bytes; sent as token ids
  std::uint32_t answers = 1;  // n
  std::uint32_t max_tokens = 16;
  double temperature = 1;
  std::uint64_t seed = 0;
  char stop = kEndOfAnswer;  // its token ends an answer, and is part of it
};

// Thread: one question at a time for each client; cancel() from any thread.
class CompletionClient {
 public:
  // `url`: http://HOST:PORT, HOST a name, an IPv4 address or an IPv6 one in brackets. kInvalidInput
  // says what is wrong with it. Connects with the first question, and keeps the connection.
  // `deadline`: of one question, its connection included.
  [[nodiscard]] static Result<std::unique_ptr<CompletionClient>> create(
      const std::string& url, std::chrono::milliseconds deadline);
  ~CompletionClient();

  // One rollout for each answer, rewards and advantages 0. kPeerLost: it does not answer, or hangs
  // up; kDeadline; kBusy: it is not ready (503), has too much to do (429) or has ended the request
  // (a pause that aborts); kInvalidInput: the answer is not as it has to be (HTTP, JSON, lengths,
  // spans that do not cover the tokens, values that are not finite; see completion_answer.h);
  // kRefused: any other status, with its message; kCancelled.
  [[nodiscard]] Result<std::vector<Rollout>> ask(const CompletionQuestion& question);
  // What the engine serves (/ready, then /weight_info); kBusy when it is not ready. Errors as
  // ask().
  [[nodiscard]] Result<Version> served();
  // Ends a question that runs, and every later one, with kCancelled.
  void cancel() noexcept;
  [[nodiscard]] const std::string& url() const noexcept;

 private:
  struct State;
  explicit CompletionClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::rollout
