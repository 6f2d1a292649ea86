// Completions: the handler of /v1/completions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/http/replies.h"

namespace wsync::engine::http {

struct CompletionOptions {
  std::size_t at_once = 0;     // maximum of completions at the same time; more are refused with 429
  bool has_tokenizer = false;  // if so, tokens are not bytes
};

// Thread: any, also several at once. The service must outlive this object.
class Completions {
 public:
  Completions(const CompletionOptions& options, generation::GenerationService& service);

  void answer(Exchange& exchange);

 private:
  class Place;  // slot of a running completion
  struct Stream;
  struct Work;

  [[nodiscard]] Result<std::shared_ptr<Work>> begin(const Exchange& exchange);
  void answer_whole(Exchange& exchange, Work& work);
  void answer_stream(Exchange& exchange, std::shared_ptr<Work> work);

  const CompletionOptions options_;
  generation::GenerationService& service_;
  const std::uint64_t process_name_;  // makes ids of different servers distinct
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::size_t> running_{0};
};

}  // namespace wsync::engine::http
