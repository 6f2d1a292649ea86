// Completions: the handler of /v1/completions, and which of them run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/http/replies.h"

namespace wsync::engine::http {

struct CompletionOptions {
  std::size_t at_once = 0;     // completions that are answered at once; more are refused with 429
  bool has_tokenizer = false;  // so tokens are no bytes
};

// Thread: any, several at once. Outlived by the service.
class Completions {
 public:
  Completions(const CompletionOptions& options, generation::GenerationService& service);

  void answer(Exchange& exchange);
  // Ends the completions of these names, which are the ids of their answers with or without the
  // "cmpl-". Returns the names that no running completion has.
  std::vector<std::string> abort(const std::vector<std::string>& names);

 private:
  class Entry;  // in running_
  struct Stream;
  struct Work;
  struct Running {
    std::vector<generation::RequestId> ids;  // none before all are submitted
    bool aborted = false;                    // by its name
  };

  std::string new_name();
  [[nodiscard]] Result<std::shared_ptr<Work>> begin(const Exchange& exchange);
  void answer_whole(Exchange& exchange, Work& work);
  void answer_stream(Exchange& exchange, std::shared_ptr<Work> work);

  const CompletionOptions options_;
  generation::GenerationService& service_;
  const std::uint64_t process_name_;  // tells the names of two servers apart
  std::mutex mutex_;                  // of what follows
  std::uint64_t begun_ = 0;
  std::multimap<std::string, Running, std::less<>> running_;
};

}  // namespace wsync::engine::http
