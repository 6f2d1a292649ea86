// HTTP client for engines with OpenAI's completions and vLLM's additions: token ids,
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
  char stop = kEndOfAnswer;  // the token that ends an answer, and is part of it
};

// Thread: one request at a time for each client; cancel() from any thread.
class CompletionClient {
 public:
  // `url`: http://HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets.
  // `deadline` is the limit for one request, including the connection. Returns kInvalidInput with
  // the reason if the URL is malformed. The client connects with the first request and keeps the
  // connection. `authorization`: value of that header, for engines that need a token; empty: none.
  [[nodiscard]] static Result<std::unique_ptr<CompletionClient>> create(
      const std::string& url, std::chrono::milliseconds deadline,
      const std::string& authorization = {});
  ~CompletionClient();

  // Returns one rollout for each answer, with rewards and advantages 0.
  //
  // Errors: kPeerLost: no answer, or the connection was closed. kDeadline. kBusy: not ready (503),
  // too many requests (429), or the request was aborted (by a pause). kInvalidInput: malformed
  // answer (HTTP, JSON, lengths, spans that do not cover the tokens, values that are not finite;
  // see completion_answer.h). kRefused: any other status, with its message. kCancelled.
  [[nodiscard]] Result<std::vector<Rollout>> ask(const CompletionQuestion& question);
  // Returns the version that the engine serves (/ready, then /weight_info). Returns kBusy if it is
  // not ready. Other errors as ask().
  [[nodiscard]] Result<Version> served();
  // Ends the running request and all later ones with kCancelled.
  void cancel() noexcept;
  [[nodiscard]] const std::string& url() const noexcept;

 private:
  struct State;
  explicit CompletionClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::rollout
